//! Messages as JetStream reads and writes them.

use std::sync::Arc;

use async_nats::header::{HeaderName, HeaderValue, NATS_MESSAGE_ID};
use async_nats::jetstream;
use async_nats::{HeaderMap, Subject};
use serde::Deserialize;
use time::OffsetDateTime;
use uuid::Uuid;

use super::api::{Failure, is_passing};
use crate::bus::{Message, PublishError, subject};
use crate::worker;

/// `NATS/1.0`, a line break, and the empty line at the end.
const HEADER_FRAME: usize = 12;
/// What stands around every header: a colon, a space, a line break.
const HEADER_GLUE: usize = 4;
/// The name and value of the header with the message id.
const ID_HEADER: usize = 11 + 36 + HEADER_GLUE;
/// What the headers of an atomic batch add at the most: an id of 32 digits, a number of four,
/// the commit.
pub(super) const BATCH_HEADERS: usize = 13 + 32 + 19 + 4 + 17 + 1 + 3 * HEADER_GLUE;

/// What JetStream answers to a message.
#[derive(Debug, Deserialize)]
pub(super) struct Ack {
    #[serde(default)]
    pub(super) stream: String,
    #[serde(default, rename = "seq")]
    pub(super) sequence: u64,
    #[serde(default)]
    pub(super) duplicate: bool,
    /// The id of the batch that the message committed.
    #[serde(default)]
    pub(super) batch: Option<String>,
    /// How many messages that batch had.
    #[serde(default)]
    pub(super) count: usize,
    error: Option<jetstream::Error>,
}

impl Ack {
    pub(super) fn read(reply: &async_nats::Message) -> Result<Self, Failure> {
        let ack: Self = serde_json::from_slice(&reply.payload)
            .map_err(|error| Failure::Silence(error.into()))?;
        match ack.error {
            Some(error) => Err(Failure::No(error)),
            None if ack.sequence == 0 => Err(Failure::Silence("no sequence in the answer".into())),
            None => Ok(ack),
        }
    }
}

/// Whether the broker can be asked to take `message` at all.
pub(super) fn check(message: &Message, max_payload: usize) -> Result<(), PublishError> {
    if !subject::is_publishable(&message.subject) {
        let why = format!("{:?} is not a subject to publish to", message.subject);
        return Err(PublishError::invalid(why));
    }
    for (name, value) in &message.headers {
        let is_name = !name.is_empty() && name.bytes().all(|b| b.is_ascii_graphic() && b != b':');
        if !is_name || value.contains(['\r', '\n']) {
            let why = format!("header {name:?} has a bad name, or a line break in its value");
            return Err(PublishError::invalid(why));
        }
    }
    let size = size(message);
    if size > max_payload {
        let why = format!("{size} bytes, and the broker takes {max_payload}");
        return Err(PublishError::invalid(why));
    }
    Ok(())
}

/// How many bytes of a message count against the broker's limit.
pub(super) fn size(message: &Message) -> usize {
    let headers = message.headers.iter();
    let headers: usize = headers
        .map(|(name, value)| name.len() + value.len() + HEADER_GLUE)
        .sum();
    HEADER_FRAME + ID_HEADER + headers + message.payload.len()
}

/// The headers of a message that has been [checked](check).
pub(super) fn headers(message: &Message) -> HeaderMap {
    let mut headers = HeaderMap::new();
    let mut id = Uuid::encode_buffer();
    let id: &str = message.id.hyphenated().encode_lower(&mut id);
    headers.insert(NATS_MESSAGE_ID, id);
    for (name, value) in &message.headers {
        headers.insert(
            HeaderName::from_static(name),
            HeaderValue::from(value.as_str()),
        );
    }
    headers
}

/// The id that a message was published with, if that was a UUID.
pub(super) fn id(headers: &HeaderMap) -> Option<Uuid> {
    let id = headers.get(NATS_MESSAGE_ID)?;
    Uuid::try_parse(id.as_str()).ok()
}

/// Headers by name.
pub(super) fn plain(headers: &HeaderMap) -> Vec<(String, String)> {
    let headers = headers.iter();
    headers
        .flat_map(|(name, values)| {
            let name: &str = name.as_ref();
            values
                .iter()
                .map(move |value| (name.to_owned(), value.as_str().to_owned()))
        })
        .collect()
}

/// What the subject for the answer to a delivery tells of it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Told {
    pub(super) deliveries: u64,
    pub(super) sequence: u64,
    pub(super) consumer_sequence: u64,
    pub(super) published_at: OffsetDateTime,
    pub(super) pending: u64,
}

impl Told {
    /// Reads `$JS.ACK.<domain>.<account>.<stream>.<consumer>.<deliveries>.<sequence>
    /// .<consumer sequence>.<time>.<pending>[.<token>]`, or the form without domain and
    /// account.
    pub(super) fn read(reply: &Subject) -> Option<Self> {
        let words: Vec<&str> = reply.strip_prefix("$JS.ACK.")?.split('.').collect();
        let numbers = match words.len() {
            7 => words.get(2..7)?,
            9.. => words.get(4..9)?,
            _ => return None,
        };
        let [deliveries, sequence, consumer_sequence, time, pending] = numbers else {
            return None;
        };
        let published_at = OffsetDateTime::from_unix_timestamp_nanos(time.parse().ok()?).ok()?;
        Some(Self {
            deliveries: deliveries.parse().ok()?,
            sequence: sequence.parse().ok()?,
            consumer_sequence: consumer_sequence.parse().ok()?,
            published_at,
            pending: pending.parse().ok()?,
        })
    }
}

/// One cause, told to many messages.
#[derive(Clone, Debug)]
pub(super) struct Shared {
    cause: Arc<worker::Error>,
    is_refusal: bool,
}

impl Shared {
    /// What it means for one message.
    pub(super) fn for_message(&self) -> PublishError {
        if self.is_refusal {
            PublishError::refused(self.clone())
        } else {
            PublishError::unreachable(self.clone())
        }
    }
}

impl From<Failure> for Shared {
    fn from(failure: Failure) -> Self {
        Self {
            is_refusal: matches!(&failure, Failure::No(error) if !is_passing(error)),
            cause: Arc::new(failure.into()),
        }
    }
}

impl From<PublishError> for Shared {
    fn from(error: PublishError) -> Self {
        let (is_refusal, cause) = match error {
            PublishError::Refused(cause) | PublishError::Invalid(cause) => (true, cause),
            PublishError::Unreachable(cause) => (false, cause),
            PublishError::Held => (false, error.into()),
        };
        Self {
            cause: Arc::new(cause),
            is_refusal,
        }
    }
}

impl std::fmt::Display for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.cause.fmt(f)
    }
}

impl std::error::Error for Shared {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.cause.source()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_of_the_answer_subject_are_read() {
        let told = Told {
            deliveries: 2,
            sequence: 7,
            consumer_sequence: 9,
            published_at: OffsetDateTime::from_unix_timestamp_nanos(1_500_000_000).unwrap(),
            pending: 3,
        };
        for reply in [
            "$JS.ACK.orders.billing.2.7.9.1500000000.3",
            "$JS.ACK._.hash.orders.billing.2.7.9.1500000000.3",
            "$JS.ACK._.hash.orders.billing.2.7.9.1500000000.3.token",
        ] {
            assert_eq!(Told::read(&Subject::from(reply)).as_ref(), Some(&told));
        }
        for reply in ["", "$JS.ACK.", "$JS.ACK.a.b.c", "_INBOX.a.b"] {
            assert_eq!(Told::read(&Subject::from(reply)), None);
        }
    }

    #[test]
    fn what_the_wire_would_break_on_is_refused() {
        let good = Message::new(Uuid::nil(), "a.b", "x").with_header("event_type", "made");
        assert!(check(&good, 1024).is_ok());
        for bad in [
            Message::new(Uuid::nil(), "a b", "x"),
            Message::new(Uuid::nil(), "a.>", "x"),
            good.clone().with_header("x", "a\r\nb: c"),
            good.clone().with_header("a:b", ""),
            Message::new(Uuid::nil(), "a", vec![0; 1024]),
        ] {
            assert!(matches!(check(&bad, 1024), Err(PublishError::Invalid(_))));
        }
    }
}
