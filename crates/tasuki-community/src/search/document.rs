//! What of an event can be searched.

use serde_json::Value;

use super::Terms;
use super::terms::BESIDE;
use crate::nostr::Event;

/// The profile of an author: its content is an object.
const PROFILE: u16 = 0;
/// Bytes of the topics of one document: what the terms of its text leave of PostgreSQL's room.
const TOPICS: usize = 100_000;
/// Tags whose value is text for people.
const TEXTS: [&str; 6] = ["title", "subject", "summary", "name", "description", "alt"];

/// A document of the index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Document {
    pub(crate) id: Vec<u8>,
    pub(crate) created_at: i64,
    /// For PostgreSQL's `english`.
    pub(crate) words: String,
    /// A `tsvector` of everything else.
    pub(crate) vector: String,
}

impl Document {
    /// The document of `event`; nothing for a kind that is not among `kinds`, or without any text.
    pub(crate) fn of(event: &Event, topics: &[String], kinds: &[u16]) -> Option<Self> {
        if !kinds.contains(&event.kind) {
            return None;
        }
        let mut text = match event.kind {
            PROFILE => values(&event.content),
            _ => event.content.clone(),
        };
        for tag in &event.tags {
            if let [name, value, ..] = tag.as_slice()
                && TEXTS.contains(&name.as_str())
            {
                text.push('\n');
                text.push_str(value);
            }
        }
        let terms = Terms::of(&text);
        if terms.is_empty() {
            return None;
        }
        let mut vector = terms.vector();
        let mut bytes = 0;
        for topic in topics {
            bytes += topic.len() + BESIDE;
            if bytes > TOPICS {
                break;
            }
            vector.push_str(&format!("'{}' ", topic_term(topic)));
        }
        Some(Self {
            id: event.id.0.to_vec(),
            created_at: event.created_at,
            words: terms.words.join(" "),
            vector,
        })
    }
}

/// The term of a topic: no word has a sign in it.
pub(crate) fn topic_term(topic: &str) -> String {
    format!("={}", topic.replace('\\', "\\\\").replace('\'', "''"))
}

/// The texts of an object, each on a line; the text itself if it is none.
fn values(content: &str) -> String {
    let Ok(Value::Object(fields)) = serde_json::from_str(content) else {
        return content.to_owned();
    };
    let texts = fields.values().filter_map(Value::as_str);
    texts.collect::<Vec<_>>().join("\n")
}
