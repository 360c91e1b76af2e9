//! Texts as people write them: a few words are everywhere, most are rare. In English, in Japanese
//! (which has no spaces), and in both.
//!
//! The same numbers make the same texts.

use fastrand::Rng;

/// How many words a language has here.
const WORDS: f64 = 20_000.0;
/// In this many of a hundred texts there is Japanese.
const JAPANESE_PERCENT: u8 = 40;

const ENGLISH: [&str; 60] = [
    "people",
    "time",
    "work",
    "relay",
    "network",
    "message",
    "today",
    "morning",
    "community",
    "story",
    "question",
    "answer",
    "project",
    "release",
    "update",
    "server",
    "client",
    "music",
    "photo",
    "weather",
    "coffee",
    "garden",
    "market",
    "train",
    "station",
    "running",
    "team",
    "match",
    "player",
    "season",
    "friend",
    "family",
    "school",
    "student",
    "teacher",
    "history",
    "science",
    "paper",
    "reading",
    "writing",
    "program",
    "database",
    "index",
    "search",
    "event",
    "signature",
    "protocol",
    "version",
    "feature",
    "problem",
    "solution",
    "test",
    "result",
    "number",
    "street",
    "river",
    "mountain",
    "winter",
    "summer",
    "dinner",
];

const JAPANESE: [&str; 60] = [
    "今日",
    "人々",
    "仕事",
    "時間",
    "天気",
    "駅伝",
    "タスキ",
    "選手",
    "東京",
    "京都",
    "電車",
    "写真",
    "音楽",
    "学校",
    "先生",
    "学生",
    "歴史",
    "科学",
    "料理",
    "コーヒー",
    "友達",
    "家族",
    "朝ごはん",
    "夕方",
    "週末",
    "旅行",
    "温泉",
    "桜",
    "雨",
    "雪",
    "新しい",
    "楽しい",
    "難しい",
    "美味しい",
    "ありがとう",
    "おはよう",
    "検索",
    "中継",
    "署名",
    "分散",
    "ネットワーク",
    "サーバー",
    "データベース",
    "プログラム",
    "バージョン",
    "テスト",
    "問題",
    "解決",
    "質問",
    "回答",
    "公園",
    "山登り",
    "海岸",
    "図書館",
    "映画",
    "ゲーム",
    "試合",
    "応援",
    "準備",
    "発表",
];

/// Between Japanese words.
const PARTICLES: [&str; 8] = ["の", "は", "が", "を", "に", "で", "と", "、"];

const SYLLABLES: [&str; 28] = [
    "ka", "ro", "mi", "ten", "sol", "vi", "bar", "ne", "lu", "dor", "pi", "gan", "fe", "ho", "zu",
    "rin", "ta", "mo", "sel", "wa", "qui", "jo", "ber", "ny", "cha", "lo", "tri", "us",
];

const CHARACTERS: [char; 60] = [
    '山', '川', '田', '木', '村', '町', '空', '海', '風', '光', '花', '草', '石', '水', '火', '土',
    '金', '月', '星', '春', '夏', '秋', '冬', '東', '西', '南', '北', '左', '右', '前', '後', '内',
    '外', '力', '心', '手', '足', '目', '口', '耳', '言', '語', '文', '書', '本', '紙', '道', '車',
    '船', '家', '門', '店', '市', '国', '島', '池', '森', '林', '谷', '原',
];

/// A text of some twenty words.
pub(super) fn text(random: &mut Rng) -> String {
    let is_japanese = random.u8(..100) < JAPANESE_PERCENT;
    let is_mixed = random.u8(..10) == 0;
    let mut text = String::new();
    for _ in 0..random.u32(8..=24) {
        let both = is_mixed && random.bool();
        if is_japanese != both {
            text.push_str(&japanese(random, 3.0));
            text.push_str(pick(random, &PARTICLES));
        } else {
            text.push_str(&english(random, 3.0));
            text.push(' ');
        }
    }
    text.truncate(text.trim_end().len());
    text
}

/// What somebody searches for: one word or two, common ones and rare ones, in either language.
pub(super) fn question(random: &mut Rng) -> String {
    let word = |random: &mut Rng, is_japanese| {
        if is_japanese {
            japanese(random, 1.5)
        } else {
            english(random, 1.5)
        }
    };
    let is_japanese = random.bool();
    let first = word(random, is_japanese);
    match random.u8(..10) {
        0..7 => first,
        7..9 => format!("{first} {}", word(random, is_japanese)),
        _ => format!("{first} {}", word(random, !is_japanese)),
    }
}

/// A word; the higher `skew` is, the more often a common one.
fn english(random: &mut Rng, skew: f64) -> String {
    let place = place(random, skew);
    ENGLISH
        .get(place)
        .map_or_else(|| rare_english(place), |word| (*word).to_owned())
}

fn japanese(random: &mut Rng, skew: f64) -> String {
    let place = place(random, skew);
    JAPANESE
        .get(place)
        .map_or_else(|| rare_japanese(place), |word| (*word).to_owned())
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "it is between 0 and the number of words"
)]
fn place(random: &mut Rng, skew: f64) -> usize {
    (random.f64().powf(skew) * WORDS) as usize
}

fn rare_english(place: usize) -> String {
    let mut word = String::new();
    let mut rest = place;
    while rest > 0 {
        word.push_str(SYLLABLES.get(rest % SYLLABLES.len()).unwrap_or(&""));
        rest /= SYLLABLES.len();
    }
    word
}

fn rare_japanese(place: usize) -> String {
    let mut word = String::new();
    let mut rest = place;
    while rest > 0 {
        word.extend(CHARACTERS.get(rest % CHARACTERS.len()));
        rest /= CHARACTERS.len();
    }
    word
}

/// One of some.
pub(super) fn pick<'a>(random: &mut Rng, from: &[&'a str]) -> &'a str {
    from.get(random.usize(..from.len()))
        .copied()
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_in_both_languages_and_always_the_same() {
        let texts = |seed| {
            let mut random = Rng::with_seed(seed);
            (0..200).map(|_| text(&mut random)).collect::<Vec<_>>()
        };
        assert_eq!(texts(1), texts(1));
        assert_ne!(texts(1), texts(2));
        let ascii = texts(1).iter().filter(|it| it.is_ascii()).count();
        assert!((60..160).contains(&ascii), "{ascii} of 200 are English");
    }

    #[test]
    fn rare_words_differ() {
        let words: std::collections::BTreeSet<_> = (60..20_000).map(rare_english).collect();
        assert_eq!(words.len(), 20_000 - 60);
    }
}
