//! An event that is to be sent.

use bytes::Bytes;
use time::OffsetDateTime;
use uuid::Uuid;

/// Names travel as headers and are indexed: longer ones are a mistake.
const NAME_LIMIT: usize = 255;
/// Keys may be made of several ids.
const KEY_LIMIT: usize = 512;

/// One event, as the outbox stores it.
#[derive(Clone, Debug)]
#[must_use]
pub struct Event {
    pub(super) id: Uuid,
    pub(super) event_type: String,
    pub(super) aggregate_key: String,
    pub(super) ordering_key: Option<String>,
    pub(super) payload: Bytes,
    pub(super) traceparent: Option<String>,
    pub(super) occurred_at: Option<OffsetDateTime>,
}

/// What is wrong with an event.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field} {problem}")]
pub struct InvalidEvent {
    field: &'static str,
    problem: &'static str,
}

impl Event {
    /// An event with the id `id`, by which it is told apart for ever: a `UUIDv7`, made where the
    /// event is made. `aggregate_key` names what it is about, `<type>:<id>`.
    pub fn new(
        id: impl Into<Uuid>,
        event_type: impl Into<String>,
        aggregate_key: impl Into<String>,
        payload: impl Into<Bytes>,
    ) -> Self {
        Self {
            id: id.into(),
            event_type: event_type.into(),
            aggregate_key: aggregate_key.into(),
            ordering_key: None,
            payload: payload.into(),
            traceparent: None,
            occurred_at: None,
        }
    }

    /// Publishes events with the same key in the order in which they were enqueued. Usually
    /// the aggregate, or the tenant; keys also share the relay fairly.
    pub fn ordered_by(mut self, key: impl Into<String>) -> Self {
        self.ordering_key = Some(key.into());
        self
    }

    /// The W3C trace context that the event belongs to.
    pub fn traceparent(mut self, traceparent: Option<String>) -> Self {
        self.traceparent = traceparent;
        self
    }

    /// When it happened, if that is not the time of the transaction.
    pub const fn occurred_at(mut self, at: OffsetDateTime) -> Self {
        self.occurred_at = Some(at);
        self
    }

    /// The event's id.
    #[must_use]
    pub const fn id(&self) -> Uuid {
        self.id
    }

    /// Whether it can be stored and sent: names become headers, so they have no control
    /// characters, and PostgreSQL refuses NUL.
    pub(super) fn check(&self) -> Result<(), InvalidEvent> {
        name("event_type", &self.event_type, NAME_LIMIT)?;
        name("aggregate_key", &self.aggregate_key, KEY_LIMIT)?;
        if let Some(key) = &self.ordering_key {
            name("ordering_key", key, KEY_LIMIT)?;
        }
        if let Some(traceparent) = &self.traceparent {
            name("traceparent", traceparent, NAME_LIMIT)?;
        }
        Ok(())
    }
}

/// Whether this can travel as a trace context.
pub(super) fn is_traceparent(text: &str) -> bool {
    name("traceparent", text, NAME_LIMIT).is_ok()
}

fn name(field: &'static str, text: &str, limit: usize) -> Result<(), InvalidEvent> {
    let problem = if text.is_empty() {
        "is empty"
    } else if text.len() > limit {
        "is too long"
    } else if text.chars().any(char::is_control) {
        "has control characters"
    } else {
        return Ok(());
    };
    Err(InvalidEvent { field, problem })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(event_type: &str, aggregate_key: &str) -> Event {
        Event::new(Uuid::nil(), event_type, aggregate_key, Bytes::new())
    }

    #[test]
    fn an_event_that_could_not_be_sent_is_refused_with_the_field_that_is_wrong() {
        let long = "k".repeat(513);
        for (event, words) in [
            (event("", "a:1"), "event_type is empty"),
            (event("a\0b", "a:1"), "event_type has control characters"),
            (
                event("A", "a\r\nb: c"),
                "aggregate_key has control characters",
            ),
            (event("A", "a:1").ordered_by(""), "ordering_key is empty"),
            (
                event("A", "a:1").ordered_by(long),
                "ordering_key is too long",
            ),
        ] {
            assert_eq!(event.check().unwrap_err().to_string(), words);
        }
        assert_eq!(event("A", "user:é").ordered_by("k").check(), Ok(()));
    }
}
