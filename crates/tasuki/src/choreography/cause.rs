//! The event that a service reacts to: what of it goes on in what follows.

use uuid::Uuid;

use crate::bus::Delivery;
use crate::inbox;
use crate::outbox;

/// An event that something follows from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cause {
    pub(super) id: Uuid,
    pub(super) event_type: String,
    pub(super) correlation_id: String,
    pub(super) causation_id: Option<Uuid>,
    pub(super) traceparent: Option<String>,
}

impl Cause {
    /// The event with this id, which begins a chain of its own unless
    /// [`correlation_id`](Self::correlation_id) says otherwise.
    #[must_use]
    pub fn new(id: impl Into<Uuid>, event_type: impl Into<String>) -> Self {
        let id = id.into();
        Self {
            id,
            event_type: event_type.into(),
            correlation_id: id.to_string(),
            causation_id: None,
            traceparent: None,
        }
    }

    /// A message of the bus, by its headers; `None` for one without an id. One without a correlation
    /// id, or with one that can't be stored, begins a chain that is named by its own id.
    #[must_use]
    pub fn of(delivery: &Delivery) -> Option<Self> {
        let event_type = delivery.header("event_type").unwrap_or(&delivery.subject);
        let mut cause = Self::new(delivery.id?, event_type);
        if let Some(correlation_id) = delivery.correlation_id() {
            cause = cause.correlation_id(correlation_id);
        }
        cause.causation_id = delivery.causation_id();
        cause.traceparent = delivery.traceparent().map(str::to_owned);
        Some(cause)
    }

    /// The chain that the event is a part of. Text that can't be stored is left out: a sender's
    /// mistake there must not keep the event from its effect.
    #[must_use]
    pub fn correlation_id(mut self, correlation_id: impl Into<String>) -> Self {
        let correlation_id = correlation_id.into();
        if outbox::is_correlation_id(&correlation_id) {
            self.correlation_id = correlation_id;
        }
        self
    }

    /// The event that it follows from itself.
    #[must_use]
    pub fn causation_id(mut self, event: impl Into<Uuid>) -> Self {
        self.causation_id = Some(event.into());
        self
    }

    /// The trace that it belongs to, by the W3C `traceparent` that came with it.
    #[must_use]
    pub fn traceparent(mut self, traceparent: impl Into<String>) -> Self {
        self.traceparent = Some(traceparent.into());
        self
    }

    /// As the inbox records it.
    pub(super) fn arrived(&self) -> inbox::Event<'_> {
        let event = inbox::Event::new(self.id);
        match &self.traceparent {
            Some(traceparent) => event.traceparent(traceparent),
            None => event,
        }
    }
}
