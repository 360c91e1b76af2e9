//! A version of a rule, ready to be asked. Without I/O.

use regex::{Regex, RegexBuilder};
use time::OffsetDateTime;
use unicode_normalization::UnicodeNormalization as _;
use uuid::Uuid;

use super::definition::{Definition, Invalid};
use crate::nostr::{DELETION, NIP_56, REPORT};

/// What a pattern may take in memory, compiled. It is matched in time that grows with the text alone.
const COMPILED: usize = 1 << 20;
/// What labels others.
pub(crate) const LABEL: u16 = 39_006;
const NIP_32: u16 = 1985;
/// Labelled only by rules that name them.
const QUIET: [u16; 5] = [DELETION, NIP_56, REPORT, LABEL, NIP_32];

/// A version of a rule.
#[derive(Debug)]
pub(crate) struct Rule {
    pub(crate) id: Uuid,
    pub(crate) version: i32,
    pub(crate) definition: Definition,
    keywords: Vec<String>,
    pattern: Option<Regex>,
}

/// What of an event a rule looks at.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Subject<'a> {
    pub(crate) kind: u16,
    pub(crate) author: &'a str,
    pub(crate) content: &'a str,
    /// The content, folded.
    pub(crate) folded: &'a str,
    pub(crate) tags: &'a [Vec<String>],
    pub(crate) topics: &'a [String],
}

/// For whom a version is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Life {
    pub(crate) from: OffsetDateTime,
    pub(crate) until: Option<OffsetDateTime>,
}

impl Life {
    /// Whether an event that was accepted then belongs to it.
    pub(crate) fn covers(&self, at: OffsetDateTime) -> bool {
        self.from <= at && self.until.is_none_or(|until| at < until)
    }
}

/// Letters as they are compared: full and half width, upper and lower case are the same.
pub(crate) fn folded(text: &str) -> String {
    text.nfkc().flat_map(char::to_lowercase).collect()
}

impl Rule {
    /// Checks a definition, and makes it ready.
    pub(crate) fn new(id: Uuid, version: i32, definition: Definition) -> Result<Self, Invalid> {
        definition.check()?;
        let pattern = definition.pattern.as_deref().map(|text| {
            let compiled = RegexBuilder::new(text).size_limit(COMPILED).build();
            compiled.map_err(|error| {
                // The last line says what is wrong; those before it draw where.
                let words = error.to_string();
                let words = words.lines().last().unwrap_or_default().to_owned();
                Invalid::new("pattern", format!("is no regular expression: {words}"))
            })
        });
        Ok(Self {
            id,
            version,
            keywords: definition.keywords.iter().map(|it| folded(it)).collect(),
            pattern: pattern.transpose()?,
            definition,
        })
    }

    /// Whether everything that it asks for is there.
    pub(crate) fn matches(&self, it: Subject<'_>) -> bool {
        let wanted = &self.definition;
        let kind = if wanted.kinds.is_empty() {
            !QUIET.contains(&it.kind)
        } else {
            wanted.kinds.contains(&it.kind)
        };
        kind && any(&wanted.authors, |author| author == it.author)
            && any(&wanted.topics, |topic| {
                let topic = topic.to_lowercase();
                it.topics.contains(&topic)
            })
            && wanted
                .tags
                .iter()
                .all(|tag| it.tags.iter().any(|had| had.starts_with(tag)))
            && any(&self.keywords, |word| it.folded.contains(word.as_str()))
            && self
                .pattern
                .as_ref()
                .is_none_or(|pattern| pattern.is_match(it.content))
    }
}

/// Whether one of them fits, or none is asked for.
fn any(wanted: &[String], fits: impl Fn(&String) -> bool) -> bool {
    wanted.is_empty() || wanted.iter().any(fits)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn definition() -> Definition {
        Definition {
            kinds: Vec::new(),
            keywords: vec!["ＢＵＹ now".to_owned()],
            pattern: None,
            tags: Vec::new(),
            authors: Vec::new(),
            topics: Vec::new(),
            label: "spam".to_owned(),
            confidence: 0.5,
            expires_in_seconds: 60,
            policy_url: None,
            policy_ref: None,
        }
    }

    fn matches(change: impl FnOnce(&mut Definition), kind: u16, content: &str) -> bool {
        let mut definition = definition();
        change(&mut definition);
        let rule = Rule::new(Uuid::nil(), 1, definition).unwrap();
        let tags = [["client", "bot", "x"].map(str::to_owned).to_vec()];
        rule.matches(Subject {
            kind,
            author: &"ab".repeat(32),
            content,
            folded: &folded(content),
            tags: &tags,
            topics: &["news".to_owned()],
        })
    }

    #[test]
    fn every_condition_must_hold_and_any_of_its_values() {
        assert!(matches(|_| {}, 1, "Please buy ＮＯＷ!"));
        assert!(!matches(|_| {}, 1, "buy later"));
        assert!(!matches(|_| {}, REPORT, "buy now"));
        assert!(matches(|it| it.kinds = vec![7, REPORT], REPORT, "buy now"));
        assert!(!matches(|it| it.kinds = vec![7], 1, "buy now"));
        assert!(matches(
            |it| it.topics = vec!["x".to_owned(), "News".to_owned()],
            1,
            "buy now"
        ));
        assert!(!matches(
            |it| it.topics = vec!["x".to_owned()],
            1,
            "buy now"
        ));
        assert!(!matches(
            |it| it.authors = vec!["cd".repeat(32)],
            1,
            "buy now"
        ));
        let pattern = |text: &str| Some(text.to_owned());
        assert!(matches(
            |it| it.pattern = pattern("[0-9]+円"),
            1,
            "buy now: 100円"
        ));
        assert!(!matches(
            |it| it.pattern = pattern("[0-9]+円"),
            1,
            "buy now"
        ));
        let tag = |tag: &[&str]| vec![tag.iter().map(|it| (*it).to_owned()).collect()];
        assert!(matches(|it| it.tags = tag(&["client"]), 1, "buy now"));
        assert!(matches(
            |it| it.tags = tag(&["client", "bot"]),
            1,
            "buy now"
        ));
        assert!(!matches(|it| it.tags = tag(&["client", "x"]), 1, "buy now"));
    }

    #[test]
    fn what_is_wrong_is_named() {
        type Break = fn(&mut Definition);
        let cases: [(Break, &str); 14] = [
            (|it| it.keywords.clear(), "the rule asks for nothing"),
            (
                |it| it.keywords = vec!["x".to_owned(); 101],
                "keywords has more than 100 values",
            ),
            (|it| it.keywords = vec![" ".to_owned()], "keywords is empty"),
            (
                |it| it.kinds = vec![1; 101],
                "kinds has more than 100 values",
            ),
            (
                |it| it.topics = vec!["a\0".to_owned()],
                "topics has a control character",
            ),
            (
                |it| it.authors = vec!["AB".repeat(32)],
                "authors are not all 64 digits",
            ),
            (|it| it.tags = vec![Vec::new()], "tags are not all a name"),
            (
                |it| it.pattern = Some("(".to_owned()),
                "pattern is no regular expression: error: unclosed group",
            ),
            (
                |it| it.pattern = Some("(\\w{100}){100}".to_owned()),
                "pattern is no regular expression: ",
            ),
            (
                |it| it.label = "Two words".to_owned(),
                "label is not one word",
            ),
            (
                |it| it.confidence = f64::NAN,
                "confidence is not from 0 to 1",
            ),
            (
                |it| it.expires_in_seconds = 0,
                "expires_in_seconds is not from 1",
            ),
            (
                |it| it.policy_url = Some("ftp://x".to_owned()),
                "policy_url is no address",
            ),
            (
                |it| it.policy_ref = Some("x".repeat(513)),
                "policy_ref is longer than 512 bytes",
            ),
        ];
        for (change, words) in cases {
            let mut definition = definition();
            change(&mut definition);
            let wrong = Rule::new(Uuid::nil(), 1, definition)
                .unwrap_err()
                .to_string();
            assert!(wrong.starts_with(words), "{wrong}");
        }
    }

    #[test]
    fn a_version_is_for_what_came_while_it_was_open() {
        let at = |second| OffsetDateTime::from_unix_timestamp(second).unwrap();
        let life = Life {
            from: at(10),
            until: Some(at(20)),
        };
        let covered = [9, 10, 19, 20].map(|second| life.covers(at(second)));
        assert_eq!(covered, [false, true, true, false]);
        assert!(
            Life {
                until: None,
                ..life
            }
            .covers(at(99))
        );
    }
}
