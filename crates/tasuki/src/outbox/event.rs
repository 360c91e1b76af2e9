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
    pub(super) correlation_id: Option<String>,
    pub(super) causation_id: Option<Uuid>,
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
            correlation_id: None,
            causation_id: None,
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

    /// What everything that belongs together has in common, across services: an order's id, say.
    /// [`choreography`](crate::choreography) hands it on from event to event.
    pub fn correlation_id(mut self, correlation_id: impl Into<String>) -> Self {
        self.correlation_id = Some(correlation_id.into());
        self
    }

    /// The event that this one follows from.
    pub fn causation_id(mut self, event: impl Into<Uuid>) -> Self {
        self.causation_id = Some(event.into());
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

    /// What it is called: `OrderPlaced`.
    #[must_use]
    pub fn event_type(&self) -> &str {
        &self.event_type
    }

    /// Makes it a part of the chain that `correlation_id` names, unless it is of another already.
    pub(crate) fn join(
        &mut self,
        correlation_id: &str,
        cause: Option<Uuid>,
        traceparent: Option<&str>,
    ) {
        let id = self.correlation_id.take();
        self.correlation_id = Some(id.unwrap_or_else(|| correlation_id.to_owned()));
        self.causation_id = self.causation_id.or(cause);
        let trace = self.traceparent.take();
        self.traceparent = trace.or_else(|| traceparent.map(str::to_owned));
    }

    /// The chain that it is a part of, and what it follows from.
    pub(crate) fn chain(&self) -> (Option<&str>, Option<Uuid>) {
        (self.correlation_id.as_deref(), self.causation_id)
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
        if let Some(id) = &self.correlation_id {
            name("correlation_id", id, NAME_LIMIT)?;
        }
        Ok(())
    }
}

/// Whether this can travel as a trace context.
pub(super) fn is_traceparent(text: &str) -> bool {
    name("traceparent", text, NAME_LIMIT).is_ok()
}

/// Whether this can travel as the name of a chain.
pub(crate) fn is_correlation_id(text: &str) -> bool {
    name("correlation_id", text, NAME_LIMIT).is_ok()
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
            (
                event("A", "a:1").correlation_id("a\nb"),
                "correlation_id has control characters",
            ),
        ] {
            assert_eq!(event.check().unwrap_err().to_string(), words);
        }
        assert_eq!(event("A", "user:é").ordered_by("k").check(), Ok(()));
    }
}
