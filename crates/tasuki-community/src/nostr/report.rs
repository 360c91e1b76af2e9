//! Reports: somebody says that something should not be here.
//!
//! They are of kind 39005, addressable: who reports the same thing again under the same `d` replaces what
//! he said. What is meant is in a tag `target` (`event:<id>`, `pubkey:<key>`, `address:<kind:pubkey:d>`,
//! `identifier:<NIP-73>`), or else in the first of `e`, `a`, `p`, `i`; why is in `reason`. Ordinary clients
//! report by kind 1984 (NIP-56), where the reason stands behind the target; that is read, too.

use std::fmt;
use std::str::FromStr;

use super::{Coordinate, Event, Id, Key};

/// A report, addressable.
pub(crate) const REPORT: u16 = 39_005;
/// A report as NIP-56 has it.
pub(crate) const NIP_56: u16 = 1984;
/// The kinds of reports.
pub(crate) const REPORTS: [u16; 2] = [REPORT, NIP_56];
/// Bytes of a reason, and of an identifier.
const WORDS: usize = 64;
const IDENTIFIER: usize = 512;

/// What a report, a label or an assertion is about.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Target {
    /// One event.
    Event(Id),
    /// An author.
    Author(Key),
    /// An addressable event, whatever its version.
    Version(Coordinate),
    /// Something outside, as NIP-73 names it.
    Identifier(String),
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Event(id) => write!(f, "event:{id}"),
            Self::Author(key) => write!(f, "pubkey:{key}"),
            Self::Version(coordinate) => write!(f, "address:{coordinate}"),
            Self::Identifier(text) => write!(f, "identifier:{text}"),
        }
    }
}

impl FromStr for Target {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (kind, value) = text.split_once(':').unwrap_or((text, ""));
        Self::read(kind, value).ok_or_else(|| {
            "not event:<id>, pubkey:<key>, address:<kind:pubkey:d> or identifier:<text>".to_owned()
        })
    }
}

impl Target {
    fn read(kind: &str, value: &str) -> Option<Self> {
        match kind {
            "event" | "e" => Id::parse(value).map(Self::Event),
            "pubkey" | "p" => Key::parse(value).map(Self::Author),
            "address" | "a" => Coordinate::parse(value)
                .filter(|it| is_plain(&it.d))
                .map(Self::Version),
            "identifier" | "i" => is_plain(value).then(|| Self::Identifier(value.to_owned())),
            _ => None,
        }
    }

    /// The tag by which others look for it.
    pub(crate) fn tag(&self) -> Vec<String> {
        let (name, value) = match self {
            Self::Event(id) => ("e", id.to_string()),
            Self::Author(key) => ("p", key.to_string()),
            Self::Version(coordinate) => ("a", coordinate.to_string()),
            Self::Identifier(text) => ("i", text.clone()),
        };
        vec![name.to_owned(), value]
    }
}

/// Fit for a column and a line.
fn is_plain(text: &str) -> bool {
    text.len() <= IDENTIFIER && !text.contains(char::is_control)
}

/// What a report says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Report {
    pub(crate) target: Target,
    /// In one word, lower case: `spam`, `abuse`, …; `other` where nothing is said.
    pub(crate) reason: String,
}

impl Report {
    /// Reads a report; nothing for what is none, or does not say what is meant.
    pub(crate) fn of(event: &Event) -> Option<Self> {
        if !REPORTS.contains(&event.kind) {
            return None;
        }
        let tags = event.tags.iter();
        let mut named = tags.filter_map(|tag| {
            let [name, value, rest @ ..] = tag.as_slice() else {
                return None;
            };
            let target = match name.as_str() {
                "target" => value.parse().ok(),
                "e" | "a" | "p" | "i" => Target::read(name, value),
                _ => None,
            };
            Some((rank(name), target?, rest.first()))
        });
        let first = named.next()?;
        let (_, target, behind) = named.fold(
            first,
            |best, next| {
                if next.0 < best.0 { next } else { best }
            },
        );
        let mut tags = event.tags.iter();
        let said = tags.find(|tag| tag.first().is_some_and(|name| name == "reason"));
        let said = said.and_then(|tag| tag.get(1)).or(behind);
        Some(Self {
            target,
            reason: said
                .and_then(|text| word(text))
                .unwrap_or_else(|| "other".to_owned()),
        })
    }
}

/// Which of several is meant: a client that reports an event names its author, too.
fn rank(name: &str) -> u8 {
    match name {
        "target" => 0,
        "e" => 1,
        "a" => 2,
        "i" => 3,
        _ => 4,
    }
}

/// A reason or a label, if it is one word.
pub(crate) fn word(text: &str) -> Option<String> {
    let text = text.trim().to_lowercase();
    let is_word = |letter: char| letter.is_alphanumeric() || letter == '-' || letter == '_';
    (!text.is_empty() && text.len() <= WORDS && text.chars().all(is_word)).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::super::Signer;
    use super::*;

    fn report(kind: u16, tags: &[&[&str]]) -> Option<Report> {
        let tags = tags
            .iter()
            .map(|tag| tag.iter().map(|it| (*it).to_owned()).collect());
        Report::of(&Signer::random().event(1, kind, tags.collect(), String::new()))
    }

    #[test]
    fn what_is_meant_is_the_target_or_what_is_most_exact() {
        let (id, key) = ("ab".repeat(32), "cd".repeat(32));
        let event = Target::Event(Id::parse(&id).unwrap());
        let author = Target::Author(Key::parse(&key).unwrap());
        let read = report(REPORT, &[&["p", &key], &["e", &id], &["reason", "Spam"]]).unwrap();
        assert_eq!((read.target, &*read.reason), (event.clone(), "spam"));
        let named = format!("pubkey:{key}");
        let read = report(REPORT, &[&["e", &id], &["target", &named]]).unwrap();
        assert_eq!((read.target, &*read.reason), (author, "other"));
        let read = report(NIP_56, &[&["e", &id, "illegal"], &["p", &key]]).unwrap();
        assert_eq!((read.target, &*read.reason), (event, "illegal"));
    }

    #[test]
    fn what_says_nothing_is_no_report() {
        let key = "cd".repeat(32);
        assert_eq!(report(1, &[&["p", &key]]), None);
        for tag in [&["e", "x"][..], &["target", "event:"], &["p"]] {
            assert_eq!(report(REPORT, &[tag]), None, "{tag:?}");
        }
        assert_eq!(report(REPORT, &[]), None);
        let read = report(REPORT, &[&["p", &key], &["reason", "two words"]]).unwrap();
        assert_eq!(read.reason, "other");
    }

    #[test]
    fn targets_are_read_as_they_are_written() {
        let key = "cd".repeat(32);
        for text in [
            format!("event:{key}"),
            format!("pubkey:{key}"),
            format!("address:30023:{key}:a:b"),
            "identifier:isbn:9780141036144".to_owned(),
        ] {
            assert_eq!(text.parse::<Target>().unwrap().to_string(), text);
        }
        for bad in ["", "event", "event:AB", "topic:x", "identifier:a\nb"] {
            assert!(bad.parse::<Target>().is_err(), "{bad}");
        }
    }
}
