//! From a text to what can be searched for, without I/O.
//!
//! Words of English letters are left to PostgreSQL's `english`: it knows stems and stop words. Scripts
//! that write no spaces are cut into pairs of neighbouring characters, so that any part of a text is found;
//! all other words are taken as they are. Full and half width, and upper and lower case, are the same.

use std::fmt::Write as _;

use unicode_normalization::{IsNormalized, UnicodeNormalization as _, is_nfkc_quick};

/// The longest word; what is longer is a key, or nonsense.
const WORD: usize = 64;
/// Words and pairs of one text. PostgreSQL knows no place behind the 16,383rd.
const MOST: usize = 16_000;
/// Bytes of all terms of one text: PostgreSQL has room for 1,048,575, and refuses the rest with the whole
/// document. What is left of that is for the document's topics.
const ROOM: usize = 900_000;
/// What PostgreSQL writes beside a term: how many places, each of them, and what makes them even.
pub(super) const BESIDE: usize = 8;
/// A pair of the longest characters.
const PAIR: usize = 8 + BESIDE;

/// What a text is made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Terms {
    /// Words of English letters and digits.
    pub(crate) words: Vec<String>,
    /// Everything else: runs of pairs, and other words.
    runs: Vec<Run>,
    /// Bytes that there is room for.
    room: usize,
}

/// Terms that stand next to each other.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Run {
    /// Characters of a script without spaces.
    Pairs(Vec<char>),
    Word(String),
}

/// How a character is searched for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Script {
    English,
    Spaceless,
    Other,
    None,
}

const fn script(c: char) -> Script {
    match c {
        'a'..='z' | 'A'..='Z' | '0'..='9' => Script::English,
        // The dot between foreign words is none.
        '\u{30a0}' | '\u{30fb}' => Script::None,
        // Kana, with the sign that repeats a character and the one that lengthens a vowel.
        '\u{3040}'..='\u{30ff}' | '\u{31f0}'..='\u{31ff}' | '々' | '〆' | '〇' => {
            Script::Spaceless
        }
        '\u{3400}'..='\u{4dbf}' | '\u{4e00}'..='\u{9fff}' | '\u{f900}'..='\u{faff}' => {
            Script::Spaceless
        }
        '\u{20000}'..='\u{3ffff}' | '\u{ac00}'..='\u{d7af}' => Script::Spaceless,
        // Thai, Lao, Burmese, Khmer.
        '\u{0e00}'..='\u{0eff}' | '\u{1000}'..='\u{109f}' | '\u{1780}'..='\u{17ff}' => {
            Script::Spaceless
        }
        _ => Script::None,
    }
}

fn script_of(c: char) -> Script {
    match script(c) {
        Script::None if c.is_alphanumeric() => Script::Other,
        known => known,
    }
}

impl Terms {
    /// Takes a text apart.
    pub(crate) fn of(text: &str) -> Self {
        let lower = char::to_lowercase;
        // Most texts are folded already, and finding that out is quick.
        if is_nfkc_quick(text.chars()) == IsNormalized::Yes {
            Self::read(text.chars().flat_map(lower))
        } else {
            Self::read(text.nfkc().flat_map(lower))
        }
    }

    fn read(text: impl Iterator<Item = char>) -> Self {
        let mut terms = Self {
            words: Vec::new(),
            runs: Vec::new(),
            room: ROOM,
        };
        let (mut run, mut current) = (Vec::new(), Script::None);
        let is_word = |script| matches!(script, Script::English | Script::Other);
        for c in text.chain([' ']) {
            let script = script_of(c);
            if script != current && !(is_word(script) && is_word(current)) {
                terms.put(std::mem::take(&mut run), current);
                current = script;
            } else if script == Script::Other {
                // A word may have letters of any language.
                current = Script::Other;
            }
            if script != Script::None {
                run.push(c);
            }
        }
        terms
    }

    fn put(&mut self, mut run: Vec<char>, script: Script) {
        match script {
            Script::Spaceless => {
                run.truncate(self.room / PAIR);
                if self.has_room(run.len() * PAIR) && !run.is_empty() {
                    self.runs.push(Run::Pairs(run));
                }
            }
            Script::English | Script::Other => {
                let is_few = self.words.len() + self.runs.len() < MOST;
                let bytes: usize = run.iter().map(|c| c.len_utf8()).sum();
                if run.len() > WORD || !is_few || !self.has_room(bytes + BESIDE) {
                    return;
                }
                let word = run.into_iter().collect();
                match script {
                    Script::English => self.words.push(word),
                    _ => self.runs.push(Run::Word(word)),
                }
            }
            Script::None => {}
        }
    }

    /// Takes so many bytes, if there are as many.
    fn has_room(&mut self, bytes: usize) -> bool {
        let left = self.room.checked_sub(bytes);
        self.room = left.unwrap_or(self.room);
        left.is_some()
    }

    /// Whether there is nothing to search for.
    pub(crate) fn is_empty(&self) -> bool {
        self.words.is_empty() && self.runs.is_empty()
    }

    /// All but the English words as a `tsvector`: pairs of a run have neighbouring places. The last
    /// character of a run is a term as well, so that a single one can be found by its beginning.
    pub(crate) fn vector(&self) -> String {
        let mut vector = String::new();
        let mut place = 0;
        for run in &self.runs {
            // What does not stand next to each other must not look so.
            place += 2;
            for term in 0..run.len() {
                place += 1;
                if place > MOST {
                    return vector;
                }
                vector.push('\'');
                run.put(term, &mut vector);
                let written = write!(vector, "':{place} ");
                debug_assert!(written.is_ok(), "writing to a string does not fail");
            }
        }
        vector
    }

    /// All but the English words as a `tsquery`: every run, wherever it is. Empty when there is none.
    pub(crate) fn query(&self) -> String {
        let runs = self.runs.iter().map(Run::query);
        runs.collect::<Vec<_>>().join(" & ")
    }
}

impl Run {
    /// How many terms it has.
    fn len(&self) -> usize {
        match self {
            Self::Word(_) => 1,
            Self::Pairs(chars) => chars.len(),
        }
    }

    /// Writes one of its terms: a word, a pair, or the last character.
    fn put(&self, term: usize, text: &mut String) {
        match self {
            Self::Word(word) => text.push_str(&quoted(word)),
            Self::Pairs(chars) => text.extend(chars.iter().skip(term).take(2)),
        }
    }

    fn query(&self) -> String {
        match self {
            Self::Word(word) => format!("'{}'", quoted(word)),
            Self::Pairs(chars) => match chars.as_slice() {
                [only] => format!("'{only}':*"),
                chars => {
                    let pairs = chars.windows(2);
                    let pairs = pairs.map(|pair| format!("'{}'", pair.iter().collect::<String>()));
                    format!("({})", pairs.collect::<Vec<_>>().join(" <-> "))
                }
            },
        }
    }
}

/// Letters and digits need no quoting; marks that count as such might.
fn quoted(term: &str) -> String {
    term.replace('\\', "\\\\").replace('\'', "''")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn english_is_words_and_japanese_is_pairs() {
        let terms = Terms::of("Runners RUN: 駅伝のタスキ!");
        assert_eq!(terms.words, ["runners", "run"]);
        assert_eq!(
            terms.vector(),
            "'駅伝':3 '伝の':4 'のタ':5 'タス':6 'スキ':7 'キ':8 "
        );
        assert_eq!(Terms::of("タスキ").query(), "('タス' <-> 'スキ')");
        assert_eq!(Terms::of("襷").query(), "'襷':*");
    }

    #[test]
    fn widths_and_cases_are_the_same() {
        assert_eq!(Terms::of("ﾀｽｷ ＴＡＳＵＫＩ"), Terms::of("タスキ tasuki"));
    }

    #[test]
    fn words_of_other_languages_are_taken_as_they_are() {
        let terms = Terms::of("Übung ДОМ naïve");
        assert!(terms.words.is_empty(), "{terms:?}");
        assert_eq!(terms.query(), "'übung' & 'дом' & 'naïve'");
    }

    #[test]
    fn what_stands_apart_is_not_found_together() {
        // Two places between runs: the last pair of one and the first of the next are no neighbours.
        assert_eq!(
            Terms::of("日本 本語").vector(),
            "'日本':3 '本':4 '本語':7 '語':8 "
        );
        assert_eq!(Terms::of("日本、語").query(), "('日本') & '語':*");
    }

    #[test]
    fn signs_are_nothing_and_keys_are_no_words() {
        assert!(Terms::of("!? … -- 🏃 '").is_empty());
        assert!(Terms::of(&"a".repeat(65)).is_empty());
        let many = Terms::of(&"a ".repeat(20_000));
        assert_eq!(many.words.len(), MOST);
    }

    #[test]
    fn a_text_has_no_more_terms_than_there_is_room_for() {
        let long = "a".repeat(WORD);
        let text = format!("{} {} end", "日".repeat(20_000), [&*long; 16_000].join(" "));
        let terms = Terms::of(&text);
        let bytes: usize = terms.words.iter().map(|it| it.len() + BESIDE).sum();
        assert_eq!(terms.runs, [Run::Pairs(vec!['日'; 20_000])]);
        assert!(20_000 * PAIR + bytes <= ROOM, "{bytes}");
        assert_eq!(terms.words.last().unwrap(), "end", "a short one fits");
        let endless = Terms::of(&"日".repeat(100_000));
        assert_eq!(endless.runs, [Run::Pairs(vec!['日'; ROOM / PAIR])]);
    }
}
