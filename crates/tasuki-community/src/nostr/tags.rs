//! What the tags of an event say to a relay.

use std::fmt;

use aws_lc_rs::digest::{Context, SHA256};
use serde_json::Value;
use uuid::Uuid;

use super::{Class, DELETION, Event, Id, Key, class};

/// The tag of what only its author may publish (NIP-70).
const PROTECTED: &str = "-";

/// The name and value of a tag that is looked for, as a key of fixed size: values are of any length and
/// may hold what PostgreSQL's texts can't.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct TagKey(pub(crate) Uuid);

impl TagKey {
    pub(crate) fn of(name: char, value: &str) -> Self {
        let mut buffer = [0; 4];
        let name = name.encode_utf8(&mut buffer).as_bytes();
        Self(short_hash(&[name, value.as_bytes()]))
    }
}

/// The first 16 bytes of a hash. All parts but the last must be of a fixed length, or known.
pub(crate) fn short_hash(parts: &[&[u8]]) -> Uuid {
    let mut hash = Context::new(&SHA256);
    for part in parts {
        hash.update(part);
    }
    let mut short = [0; 16];
    for (to, from) in short.iter_mut().zip(hash.finish().as_ref()) {
        *to = *from;
    }
    Uuid::from_bytes(short)
}

/// Who, which kind and which `d`: what all versions of a replaceable or addressable event have in common.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Coordinate {
    pub(crate) kind: u16,
    pub(crate) author: Key,
    pub(crate) d: String,
}

impl Coordinate {
    /// Reads `<kind>:<pubkey>:<d>`; nothing for what names no replaceable or addressable event.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let mut parts = text.splitn(3, ':');
        let kind = parts.next()?;
        // `+7` and `007` are numbers to Rust, and not to NIP-01.
        let digits = kind.bytes().all(|digit| digit.is_ascii_digit());
        let kind: u16 = kind.parse().ok().filter(|_| digits)?;
        let author = Key::parse(parts.next()?)?;
        let d = match class(kind) {
            // It may be empty, but not missing.
            Class::Addressable => parts.next()?,
            // It has none, whatever is written there.
            Class::Replaceable => "",
            Class::Regular | Class::Ephemeral => return None,
        };
        let d = d.to_owned();
        Some(Self { kind, author, d })
    }
}

impl fmt::Display for Coordinate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.kind, self.author, self.d)
    }
}

/// What a deletion asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Deletion {
    pub(crate) ids: Vec<Id>,
    pub(crate) coordinates: Vec<Coordinate>,
}

impl Event {
    /// The values behind a tag's name, of all tags of that name.
    fn values<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        let tags = self.tags.iter();
        let named = tags.filter(move |tag| tag.first().is_some_and(|first| first == name));
        named.filter_map(|tag| tag.get(1)).map(String::as_str)
    }

    /// The topics that it belongs to, lower-cased, each once.
    pub(crate) fn topics(&self) -> Vec<String> {
        let mut topics = Vec::new();
        for value in self.values("t") {
            let topic = value.to_lowercase();
            if !topics.contains(&topic) {
                topics.push(topic);
            }
        }
        topics
    }

    /// The same, each beside the ways in which it may be written where it is looked for.
    pub(crate) fn writings_of_topics(&self) -> Vec<(String, String)> {
        let values = self.values("t").map(|value| (value.to_lowercase(), value));
        values
            .flat_map(|(topic, value)| [(topic.clone(), value.to_owned()), (topic.clone(), topic)])
            .collect()
    }

    /// What can be looked for: tags with a name of one letter, by their first value; in order.
    pub(crate) fn tag_keys(&self) -> Vec<TagKey> {
        let tags = self.tags.iter();
        let keys = tags.filter_map(|tag| {
            let [name, value, ..] = tag.as_slice() else {
                return None;
            };
            Some(TagKey::of(letter(name)?, value))
        });
        let mut keys: Vec<_> = keys.collect();
        keys.sort_unstable();
        keys.dedup();
        keys
    }

    /// When it ends (NIP-40); nothing when it doesn't, or says it in a way that is no time.
    pub(crate) fn expiration(&self) -> Option<i64> {
        self.values("expiration").find_map(|text| text.parse().ok())
    }

    /// Whether only its author may publish it (NIP-70).
    pub(crate) fn is_protected(&self) -> bool {
        let mut tags = self.tags.iter();
        tags.any(|tag| tag.first().is_some_and(|name| name == PROTECTED))
    }

    /// Whether its content is another event, which only that one's author may publish (NIP-70).
    pub(crate) fn holds_protected(&self) -> bool {
        let Ok(held) = serde_json::from_str::<Value>(&self.content) else {
            return false;
        };
        let tags = held.get("tags").and_then(Value::as_array);
        tags.is_some_and(|tags| {
            let mut names = tags.iter().filter_map(|tag| tag.get(0)?.as_str());
            names.any(|name| name == PROTECTED)
        })
    }

    /// What its versions have in common; nothing for events that have no versions, and for addressable
    /// ones without a `d`.
    pub(crate) fn coordinate(&self) -> Option<Coordinate> {
        let d = match class(self.kind) {
            Class::Replaceable => "",
            Class::Addressable => self.d()?,
            Class::Regular | Class::Ephemeral => return None,
        };
        Some(Coordinate {
            kind: self.kind,
            author: self.author,
            d: d.to_owned(),
        })
    }

    /// The first `d`. One without a value is an empty one.
    fn d(&self) -> Option<&str> {
        let mut tags = self.tags.iter();
        let tag = tags.find(|tag| tag.first().is_some_and(|name| name == "d"))?;
        Some(tag.get(1).map_or("", String::as_str))
    }

    /// What it deletes, if that is what it is for. What names nothing that could exist is passed over,
    /// and so are other authors' addressable events.
    pub(crate) fn deletion(&self) -> Option<Deletion> {
        if self.kind != DELETION {
            return None;
        }
        let mut asked = Deletion::default();
        asked.ids.extend(self.values("e").filter_map(Id::parse));
        asked.ids.sort_unstable();
        asked.ids.dedup();
        let coordinates = self.values("a").filter_map(Coordinate::parse);
        let own = coordinates.filter(|it| it.author == self.author);
        asked.coordinates.extend(own);
        asked.coordinates.sort_unstable();
        asked.coordinates.dedup();
        Some(asked)
    }
}

/// A name of one letter.
pub(super) fn letter(name: &str) -> Option<char> {
    let mut letters = name.chars();
    let first = letters.next().filter(char::is_ascii_alphabetic)?;
    letters.next().is_none().then_some(first)
}

#[cfg(test)]
mod tests {
    use super::super::Signer;
    use super::*;

    fn event(kind: u16, tags: &[&[&str]]) -> Event {
        let tags = tags
            .iter()
            .map(|tag| tag.iter().map(|it| (*it).to_owned()).collect());
        Signer::random().event(1, kind, tags.collect(), String::new())
    }

    #[test]
    fn topics_are_lower_case_and_each_once() {
        let event = event(
            1,
            &[
                &["t", "Rust"],
                &["t", "rust", "x"],
                &["t"],
                &["T", "x"],
                &["t", "a"],
            ],
        );
        assert_eq!(event.topics(), ["rust", "a"]);
        let writings = event.writings_of_topics();
        let written =
            |topic: &str, as_it: &str| writings.contains(&(topic.to_owned(), as_it.to_owned()));
        assert!(written("rust", "Rust") && written("rust", "rust") && written("a", "a"));
    }

    #[test]
    fn only_the_first_value_of_tags_of_one_letter_is_looked_for() {
        let event = event(
            1,
            &[
                &["t", "a", "b"],
                &["T", "a"],
                &["tt", "a"],
                &["é", "a"],
                &["e"],
            ],
        );
        let mut wanted = vec![TagKey::of('t', "a"), TagKey::of('T', "a")];
        wanted.sort_unstable();
        assert_eq!(event.tag_keys(), wanted);
    }

    #[test]
    fn versions_have_author_kind_and_d_in_common() {
        assert_eq!(event(1, &[&["d", "x"]]).coordinate(), None);
        assert_eq!(event(0, &[&["d", "x"]]).coordinate().unwrap().d, "");
        assert_eq!(
            event(30_000, &[&["d", "x:y"], &["d", "z"]])
                .coordinate()
                .unwrap()
                .d,
            "x:y"
        );
        assert_eq!(event(30_000, &[&["d"]]).coordinate().unwrap().d, "");
        assert_eq!(event(30_000, &[]).coordinate(), None);
    }

    #[test]
    fn coordinates_are_read_as_they_are_written() {
        let key = "ab".repeat(32);
        let read = |text: String| Coordinate::parse(&text);
        let whole = read(format!("30023:{key}:a:b")).unwrap();
        assert_eq!((whole.kind, whole.d.as_str()), (30_023, "a:b"));
        assert_eq!(whole.to_string(), format!("30023:{key}:a:b"));
        assert_eq!(read(format!("0:{key}:")).unwrap().d, "");
        assert_eq!(read(format!("30023:{key}:")).unwrap().d, "");
        assert_eq!(read(format!("10002:{key}")).unwrap().d, "");
        for bad in [
            format!("1:{key}:"),
            format!("20001:{key}:"),
            format!("+30023:{key}:a"),
            format!("99999:{key}:a"),
            format!("30023:{}:a", key.to_uppercase()),
            format!("30023:{key}"),
            "30023".to_owned(),
            String::new(),
        ] {
            assert_eq!(read(bad.clone()), None, "{bad}");
        }
    }

    #[test]
    fn a_deletion_names_ids_and_coordinates_of_its_author() {
        let signer = Signer::random();
        let (id, own) = ("cd".repeat(32), format!("30000:{}:x", signer.key()));
        let others = format!("30000:{}:x", "ab".repeat(32));
        let tags = [
            ["e", &*id],
            ["e", "no id"],
            ["e", &*id],
            ["a", &*own],
            ["a", &*others],
        ];
        let tags = tags
            .iter()
            .map(|tag| tag.map(str::to_owned).to_vec())
            .collect();
        let deletion = signer
            .event(1, DELETION, tags, String::new())
            .deletion()
            .unwrap();
        assert_eq!(deletion.ids, [Id::parse(&id).unwrap()]);
        assert_eq!(deletion.coordinates, [Coordinate::parse(&own).unwrap()]);
        assert_eq!(event(1, &[]).deletion(), None);
    }

    #[test]
    fn what_only_its_author_may_publish_is_known_where_another_event_holds_it() {
        let holding = |content: String| Signer::random().event(1, 6, Vec::new(), content);
        let held = event(1, &[&["t", "a"], &["-"]]).json();
        assert!(holding(format!(" {held}\n")).holds_protected());
        assert!(holding(r#"{"tags":[[],7,["-","x"]]}"#.to_owned()).holds_protected());
        for content in [
            String::new(),
            "-".to_owned(),
            event(1, &[&["x", "-"]]).json(),
            r#"{"tags":"-"}"#.to_owned(),
            r#"["-"]"#.to_owned(),
        ] {
            assert!(!holding(content.clone()).holds_protected(), "{content}");
        }
    }

    #[test]
    fn the_end_of_an_event_is_a_number_of_seconds() {
        assert_eq!(
            event(1, &[&["expiration", "1600000000"]]).expiration(),
            Some(1_600_000_000)
        );
        assert_eq!(
            event(1, &[&["expiration", "soon"], &["expiration"]]).expiration(),
            None
        );
        assert!(event(1, &[&["-"]]).is_protected() && !event(1, &[&["x", "-"]]).is_protected());
    }
}
