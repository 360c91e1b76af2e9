//! What an event says about who reports and who talks with whom, without I/O.

use uuid::Uuid;

use crate::node::Keys;
use crate::nostr::{Coordinate, Event, Id, Key, REPORT, Report, Target, short_hash};

/// Who has reported through the node.
const REPORTER: &str = "reporter";
/// Bytes of what somebody is called.
const NAME: usize = 256;

/// Somebody says something to somebody.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Said {
    pub(crate) event: Id,
    pub(crate) from: Key,
    pub(crate) to: Reference,
    pub(crate) at: i64,
}

/// To whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Reference {
    /// He is named.
    Key(Key),
    /// He made this event.
    Event(Id),
}

impl Reference {
    pub(crate) const fn bytes(&self) -> [u8; 32] {
        match self {
            Self::Key(key) => key.0,
            Self::Event(id) => id.0,
        }
    }
}

impl Said {
    /// What `event` says, if its kind is among `kinds`: to each key that it names (`p`), to whoever made the
    /// events that it answers (`e`), and to the authors of addresses (`a`). Nobody talks with himself.
    pub(crate) fn of(event: &Event, kinds: &[u16]) -> Vec<Self> {
        if !kinds.contains(&event.kind) {
            return Vec::new();
        }
        let tags = event.tags.iter();
        let named = tags.filter_map(|tag| {
            let [name, value, ..] = tag.as_slice() else {
                return None;
            };
            match name.as_str() {
                "p" => Key::parse(value).map(Reference::Key),
                "a" => Coordinate::parse(value).map(|it| Reference::Key(it.author)),
                "e" => Id::parse(value).map(Reference::Event),
                _ => None,
            }
        });
        let mut named: Vec<_> = named.collect();
        named.sort_unstable_by_key(|it| (it.bytes(), *it));
        named.retain(|it| *it != Reference::Key(event.author));
        // The same digits as a key and as an id are one reference.
        named.dedup_by_key(|it| it.bytes());
        let said = named.into_iter().map(|to| Self {
            event: event.id,
            from: event.author,
            to,
            at: event.created_at,
        });
        said.collect()
    }
}

/// Somebody has reported something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reported {
    /// The same for all versions of one report.
    pub(crate) key: Uuid,
    pub(crate) event: Id,
    pub(crate) reporter: String,
    pub(crate) target: Target,
    pub(crate) reason: String,
    pub(crate) at: i64,
}

impl Reported {
    /// What `event` reports. The node signs for others: who has reported is in a tag then, and without one
    /// it was nobody. Only the node is believed that.
    pub(crate) fn of(event: &Event, own: Option<&Keys>) -> Option<Self> {
        let report = Report::of(event)?;
        let reporter = if own.is_some_and(|keys| keys.is_own(&event.author)) {
            let mut tags = event.tags.iter();
            let tag = tags.find(|tag| tag.first().is_some_and(|name| name == REPORTER))?;
            tag.get(1).filter(|name| is_name(name))?.clone()
        } else {
            event.author.to_string()
        };
        let key = match event.coordinate().filter(|_| event.kind == REPORT) {
            Some(versions) => short_hash(&[b"version", versions.to_string().as_bytes()]),
            None => short_hash(&[b"event", &event.id.0]),
        };
        Some(Self {
            key,
            event: event.id,
            reporter,
            target: report.target,
            reason: report.reason,
            at: event.created_at,
        })
    }

    /// Whether it takes the place of another version: the later one does, and of two at the same second the
    /// one with the lower id (NIP-01).
    pub(crate) fn replaces(&self, other: &Self) -> bool {
        (self.at, other.event) > (other.at, self.event)
    }

    /// Who made the target, where the target says so.
    pub(crate) const fn author(&self) -> Option<Key> {
        match &self.target {
            Target::Author(key) => Some(*key),
            Target::Version(coordinate) => Some(coordinate.author),
            Target::Event(_) | Target::Identifier(_) => None,
        }
    }
}

fn is_name(text: &str) -> bool {
    !text.is_empty() && text.len() <= NAME && !text.contains(char::is_control)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::node::{Voice, make_keys};
    use crate::nostr::Signer;

    fn made(by: &Signer, kind: u16, tags: &[&[&str]]) -> Event {
        let tags = tags
            .iter()
            .map(|tag| tag.iter().map(|it| (*it).to_owned()).collect());
        by.event(1, kind, tags.collect(), String::new())
    }

    #[test]
    fn one_talks_with_who_is_named_and_who_is_answered_and_not_with_oneself() {
        let (by, other) = (Signer::random(), Signer::random());
        let (own, key, id) = (
            by.key().to_string(),
            other.key().to_string(),
            "ab".repeat(32),
        );
        let address = format!("30023:{key}:x");
        let tags: &[&[&str]] = &[
            &["p", &key],
            &["p", &key, "wss://x"],
            &["a", &address],
            &["p", &own],
            &["p", "nobody"],
            &["e", &id, "", "reply"],
            &["e", &key],
            &["q", &id],
        ];
        let said = Said::of(&made(&by, 1, tags), &[1, 7]);
        let to: HashSet<_> = said.iter().map(|it| it.to).collect();
        let event = Reference::Event(Id::parse(&id).unwrap());
        assert_eq!(said.len(), 2, "each once, and the same digits once");
        assert_eq!(to, HashSet::from([Reference::Key(other.key()), event]));
        assert_eq!(Said::of(&made(&by, 30_023, tags), &[1, 7]), []);
    }

    #[test]
    fn a_report_of_the_node_is_that_of_whom_it_names() {
        let home = std::env::temp_dir().join(Uuid::new_v4().to_string());
        make_keys(&home).unwrap();
        let keys = Keys::open(&home).unwrap().unwrap();
        std::fs::remove_dir_all(&home).unwrap();
        let (node, other) = (keys.of(Voice::Moderation), Signer::random());
        let id = "ab".repeat(32);
        let named: &[&[&str]] = &[&["d", "1"], &["e", &id], &["reporter", "ann"]];
        let of = |event: &Event| Reported::of(event, Some(&keys)).map(|it| it.reporter);
        assert_eq!(of(&made(node, REPORT, named)), Some("ann".to_owned()));
        assert_eq!(of(&made(node, REPORT, &[&["d", "1"], &["e", &id]])), None);
        let claimed = of(&made(&other, REPORT, named));
        assert_eq!(
            claimed,
            Some(other.key().to_string()),
            "anybody can write a name"
        );
    }

    #[test]
    fn versions_of_a_report_are_one_and_the_later_one_counts() {
        let (by, id) = (Signer::random(), "ab".repeat(32));
        let version = |at, d: &str| {
            let tags = [["d", d], ["e", &id]].map(|tag| tag.map(str::to_owned).to_vec());
            let event = by.event(at, REPORT, tags.to_vec(), String::new());
            Reported::of(&event, None).unwrap()
        };
        let (first, second, other) = (version(1, "x"), version(2, "x"), version(2, "y"));
        assert_eq!(first.key, second.key);
        assert_ne!(first.key, other.key);
        assert!(second.replaces(&first) && !first.replaces(&second) && !first.replaces(&first));
    }
}
