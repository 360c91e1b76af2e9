//! An event: what somebody has signed.
//!
//! It is read strictly, because what is let in is given out again: each field exactly as NIP-01 has it,
//! none twice, the id that of the content, the signature that of the author. Fields that NIP-01 does not
//! know are left out of what is kept. Reading is cheap and says nothing of the signature; checking that
//! is work for a thread that may be busy ([`Parsed::verify`]).

use std::sync::Arc;

use aws_lc_rs::digest::{SHA256, digest};
use serde::{Deserialize, Serialize};

use super::hex::{decode, encode};
use super::sign;
use super::{Id, Key};

/// What is wrong with an event, in words for whoever sent it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Fault(pub(crate) String);

impl Fault {
    pub(crate) fn new(words: impl Into<String>) -> Self {
        Self(words.into())
    }
}

/// An event whose id and signature hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Event {
    pub(crate) id: Id,
    pub(crate) author: Key,
    pub(crate) created_at: i64,
    pub(crate) kind: u16,
    pub(crate) tags: Vec<Vec<String>>,
    pub(crate) content: String,
    sig: [u8; 64],
}

/// An event that is well made; nobody has looked at its signature.
#[derive(Clone, Debug)]
pub(crate) struct Parsed(Arc<Event>);

/// As it is on the wire, in the order in which it is given out.
#[derive(Debug, Serialize, Deserialize)]
struct Wire {
    id: String,
    pubkey: String,
    created_at: i64,
    kind: u16,
    tags: Vec<Vec<String>>,
    content: String,
    sig: String,
}

impl Parsed {
    /// Reads an event.
    pub(crate) fn read(json: &str) -> Result<Self, Fault> {
        // To serde, a list of the fields in their order would be as good.
        if !json.trim_start().starts_with('{') {
            return Err(Fault::new("not an event: it is no object"));
        }
        let wire: Wire = serde_json::from_str(json).map_err(|error| malformed(&error))?;
        let no = |field: &str, digits: usize| {
            Fault::new(format!(
                "{field} is not {digits} digits of lower-case hexadecimal"
            ))
        };
        let event = Event {
            id: Id::parse(&wire.id).ok_or_else(|| no("id", 64))?,
            author: Key::parse(&wire.pubkey).ok_or_else(|| no("pubkey", 64))?,
            created_at: wire.created_at,
            kind: wire.kind,
            tags: wire.tags,
            content: wire.content,
            sig: decode(&wire.sig).ok_or_else(|| no("sig", 128))?,
        };
        if event.created_at < 0 {
            return Err(Fault::new("created_at is below zero"));
        }
        if event.tags.iter().any(Vec::is_empty) {
            return Err(Fault::new("a tag is an empty list"));
        }
        Ok(Self(Arc::new(event)))
    }

    /// The id that it claims to have, for an answer.
    pub(crate) fn id(&self) -> Id {
        self.0.id
    }

    /// What it says, unproven.
    pub(crate) fn claims(&self) -> &Event {
        &self.0
    }

    /// Takes it as it is: somebody has verified it before.
    pub(crate) fn trusted(self) -> Arc<Event> {
        self.0
    }

    /// Checks that the id is that of the content and the signature that of the author. It takes about as
    /// long as a round trip on a local network.
    pub(crate) fn verify(&self) -> Result<Arc<Event>, Fault> {
        let event = &self.0;
        if event.hash() != event.id && event.hash_verbatim() != Some(event.id) {
            return Err(Fault::new("id is not the hash of the event"));
        }
        if !sign::is_signed(&event.id, &event.author, &event.sig) {
            return Err(Fault::new(
                "sig is not a signature of the event by its pubkey",
            ));
        }
        Ok(Arc::clone(event))
    }
}

impl Event {
    /// Signs an event.
    pub(super) fn signed(
        signer: &sign::Signer,
        created_at: i64,
        kind: u16,
        tags: Vec<Vec<String>>,
        content: String,
    ) -> Self {
        let mut event = Self {
            id: Id([0; 32]),
            author: signer.key(),
            created_at,
            kind,
            tags,
            content,
            sig: [0; 64],
        };
        event.id = event.hash();
        event.sig = signer.sign(&event.id);
        event
    }

    /// The hash of what is signed.
    fn hash(&self) -> Id {
        id_of(&self.serialized())
    }

    /// The same to the letter of NIP-01, which escapes seven characters and leaves others as they are.
    /// Most write JSON, which has no other control character as it is; both are events. Nothing where
    /// there is no difference.
    fn hash_verbatim(&self) -> Option<Id> {
        let signed = String::from_utf8(self.serialized()).ok()?;
        let verbatim = verbatim(&signed);
        (verbatim != signed).then(|| id_of(verbatim.as_bytes()))
    }

    /// What is signed, as JSON.
    fn serialized(&self) -> Vec<u8> {
        let author = self.author.to_string();
        let signed = (
            0,
            author,
            self.created_at,
            self.kind,
            &self.tags,
            &self.content,
        );
        // Numbers, texts and lists of them can always be written.
        serde_json::to_vec(&signed).unwrap_or_default()
    }

    /// As it is given out.
    pub(crate) fn json(&self) -> String {
        let wire = Wire {
            id: self.id.to_string(),
            pubkey: self.author.to_string(),
            created_at: self.created_at,
            kind: self.kind,
            tags: self.tags.clone(),
            content: self.content.clone(),
            sig: encode(&self.sig),
        };
        serde_json::to_string(&wire).unwrap_or_default()
    }
}

fn id_of(signed: &[u8]) -> Id {
    let mut id = [0; 32];
    id.copy_from_slice(digest(&SHA256, signed).as_ref());
    Id(id)
}

/// JSON with each `\u00..` as the character that it stands for.
fn verbatim(json: &str) -> String {
    let mut text = String::with_capacity(json.len());
    let mut rest = json;
    while let Some((before, escaped)) = rest.split_once('\\') {
        text.push_str(before);
        let digits = escaped.strip_prefix('u').and_then(|it| it.get(..4));
        let code = digits.and_then(|digits| u32::from_str_radix(digits, 16).ok());
        if let Some(character) = code.and_then(char::from_u32) {
            text.push(character);
            rest = escaped.get(5..).unwrap_or_default();
        } else {
            // One of the seven: the character behind it belongs to it, and may be another backslash.
            text.push('\\');
            let length = escaped.chars().next().map_or(0, char::len_utf8);
            let (kept, behind) = escaped.split_at(length);
            text.push_str(kept);
            rest = behind;
        }
    }
    text.push_str(rest);
    text
}

/// What serde says, without the place: its column means nothing to somebody who sent a message around
/// the event.
fn malformed(error: &serde_json::Error) -> Fault {
    let words = error.to_string();
    let words = words.split(" at line ").next().unwrap_or_default();
    Fault::new(format!("not an event: {words}"))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::Signer;
    use super::*;

    fn made() -> Event {
        let tags = vec![vec!["t".to_owned(), "rust".to_owned()]];
        let content = "say \"hi\"\n\t\u{8}\u{c}\r\\ \u{1} \u{7f} 日本 \u{0}".to_owned();
        Signer::random().event(1_700_000_000, 1, tags, content)
    }

    fn fault(change: impl FnOnce(&mut Value)) -> String {
        let mut value: Value = serde_json::from_str(&made().json()).unwrap();
        change(&mut value);
        let read = Parsed::read(&value.to_string());
        read.and_then(|it| it.verify()).unwrap_err().to_string()
    }

    #[test]
    fn an_event_is_read_verified_and_given_out_as_it_was() {
        let event = made();
        let read = Parsed::read(&event.json()).unwrap().verify().unwrap();
        assert_eq!(*read, event);
        assert_eq!(read.json(), event.json());
    }

    #[test]
    fn an_event_of_somebody_else_is_verified() {
        // The first of NIP-01's own kind, made by another implementation.
        let json = concat!(
            r#"{"id":"dc90c95f09947507c1044e8f48bcf6350aa6bff1507dd4acfc755b9239b5c962","#,
            r#""pubkey":"3bf0c63fcb93463407af97a5e5ee64fa883d107ef9e558472c4eb9aaaefa459d","#,
            r#""created_at":1644271588,"kind":1,"tags":[],"content":"now that https://blueskyweb.org/blog/2-7-2022-overview was announced we can stop working on nostr?","#,
            r#""sig":"230e9d8f0ddaf7eb70b5f7741ccfa37e87a455c9a469282e3464e2052d3192cd63a167e196e381ef9d7e69e9ea43af2443b839974dc85d8aaab9efe1d9296524"}"#,
        );
        let event = Parsed::read(json).unwrap().verify().unwrap();
        assert_eq!(event.kind, 1);
    }

    #[test]
    fn every_field_is_as_nip_01_has_it() {
        for (field, bad) in [
            ("id", json!("ABC")),
            ("id", json!(made().id.to_string().to_uppercase())),
            ("pubkey", json!("00")),
            ("sig", json!(7)),
            ("created_at", json!(1.5)),
            ("created_at", json!("1700000000")),
            ("created_at", json!(-1)),
            ("created_at", json!(1e300)),
            ("kind", json!(-1)),
            ("kind", json!(65_536)),
            ("kind", json!(null)),
            ("tags", json!({})),
            ("tags", json!(["t"])),
            ("tags", json!([[]])),
            ("tags", json!([["t", 1]])),
            ("tags", json!([["t", null]])),
            ("content", json!(null)),
            ("content", json!(["a"])),
        ] {
            assert!(
                !fault(|event| event[field] = bad.clone()).is_empty(),
                "{field}"
            );
            let missing = fault(|event| drop(event.as_object_mut().unwrap().remove(field)));
            assert!(missing.contains(field), "{missing}");
        }
        let twice = made()
            .json()
            .replacen("\"kind\":1", "\"kind\":1,\"kind\":1", 1);
        assert!(
            Parsed::read(&twice)
                .unwrap_err()
                .to_string()
                .contains("duplicate")
        );
        let event = made();
        let listed = json!([
            event.id.to_string(),
            event.author.to_string(),
            event.created_at,
            event.kind,
            event.tags,
            event.content,
            encode(&event.sig),
        ]);
        assert!(Parsed::read(&listed.to_string()).is_err());
        for other in ["", "[]", "7", "null", "{", "{\"id\":\"\\u0000\"}"] {
            assert!(Parsed::read(other).is_err(), "{other}");
        }
    }

    #[test]
    fn what_was_changed_after_it_was_signed_is_refused() {
        for (field, other) in [
            ("content", json!("other")),
            ("kind", json!(2)),
            ("created_at", json!(1)),
            ("tags", json!([])),
        ] {
            let words = fault(|event| event[field] = other.clone());
            assert_eq!(words, "id is not the hash of the event", "{field}");
        }
        let (one, other) = (made(), made());
        let words = fault(|event| event["sig"] = json!(encode(&other.sig)));
        assert!(words.starts_with("sig is not"), "{words}");
        let mut stolen = one;
        stolen.author = other.author;
        stolen.id = stolen.hash();
        let words = Parsed::read(&stolen.json()).unwrap().verify().unwrap_err();
        assert!(words.to_string().starts_with("sig is not"), "{words}");
        // Not every 32 bytes are a point of the curve.
        stolen.author = Key([0xff; 32]);
        stolen.id = stolen.hash();
        assert!(Parsed::read(&stolen.json()).unwrap().verify().is_err());
    }

    #[test]
    fn control_characters_are_signed_escaped_or_to_the_letter_of_nip_01() {
        let signer = Signer::random();
        let content = "\u{1} \\u0001 \u{1f}\u{b}\n\t\"\\";
        let mut event = signer.event(1, 1, vec![], content.to_owned());
        let escaped = event.id;
        assert_eq!(read_again(&event).unwrap(), event);
        event.id = event.hash_verbatim().unwrap();
        event.sig = signer.sign(&event.id);
        assert_ne!(event.id, escaped);
        assert_eq!(read_again(&event).unwrap(), event);
        event.content.push('x');
        assert!(read_again(&event).is_err());
        assert_eq!(made_of("plain \\u0001 \n").hash_verbatim(), None);
    }

    fn made_of(content: &str) -> Event {
        Signer::random().event(1, 1, vec![], content.to_owned())
    }

    fn read_again(event: &Event) -> Result<Event, Fault> {
        let verified = Parsed::read(&event.json())?.verify()?;
        Ok((*verified).clone())
    }

    #[test]
    fn what_nip_01_does_not_know_is_left_out() {
        let event = made();
        let more = event.json().replacen('{', "{\"seen_on\":[\"wss://x\"],", 1);
        assert_eq!(
            Parsed::read(&more).unwrap().verify().unwrap().json(),
            event.json()
        );
    }
}
