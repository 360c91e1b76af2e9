//! A message as a consumer gets it, and how it is settled.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use time::OffsetDateTime;
use uuid::Uuid;

use super::{Position, StreamError};

/// What a bus tells of a message that it delivers.
#[derive(Clone, Debug)]
pub struct Delivered {
    /// The id it was published with, if that was a UUID.
    pub id: Option<Uuid>,
    /// Its subject.
    pub subject: Arc<str>,
    /// Its headers, by name.
    pub headers: Vec<(String, String)>,
    /// Its content.
    pub payload: Bytes,
    /// Where it is stored.
    pub position: Position,
    /// When it was stored, by the broker's clock.
    pub published_at: OffsetDateTime,
    /// How often it has been delivered, this time included.
    pub deliveries: u64,
}

/// A message that waits to be settled. One that never is comes again after the consumer's
/// `ack_wait`.
pub struct Delivery {
    told: Delivered,
    settle: Box<dyn Settle>,
}

/// What becomes of a delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Settlement<'a> {
    /// Done: never again.
    Ack,
    /// Again, after this time.
    Nak(Duration),
    /// Never again, although it was not done.
    Term(&'a str),
    /// Still at it: the time for the delivery starts anew.
    InProgress,
}

/// The future that settles a delivery.
pub type Settling<'a> = Pin<Box<dyn Future<Output = Result<(), StreamError>> + Send + 'a>>;

/// Tells the broker what became of one delivery. A bus of your own implements this.
pub trait Settle: Send + Sync + 'static {
    /// Returns when the broker has confirmed, except for [`Settlement::InProgress`], which is
    /// only sent.
    fn settle<'a>(&'a self, settlement: Settlement<'a>) -> Settling<'a>;
}

impl Delivery {
    /// A delivery that `settle` settles.
    pub fn new(told: Delivered, settle: impl Settle) -> Self {
        Self {
            told,
            settle: Box::new(settle),
        }
    }

    /// The value of the header `name`; names are compared without regard to case.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        let mut headers = self.told.headers.iter();
        headers
            .find(|(known, _)| known.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.as_str())
    }

    /// The W3C trace context that the message was published with.
    #[must_use]
    pub fn traceparent(&self) -> Option<&str> {
        self.header("traceparent")
    }

    /// The chain of events that the message is a part of.
    #[must_use]
    pub fn correlation_id(&self) -> Option<&str> {
        self.header("correlation_id")
    }

    /// The event that the message follows from.
    #[must_use]
    pub fn causation_id(&self) -> Option<Uuid> {
        self.header("causation_id")?.parse().ok()
    }

    /// Done: the message does not come again. Returns when the broker has confirmed.
    ///
    /// # Errors
    /// When it has not; the message may then come again.
    pub async fn ack(&self) -> Result<(), StreamError> {
        self.settle.settle(Settlement::Ack).await
    }

    /// Not done: the message comes again after `delay`.
    ///
    /// # Errors
    /// When the broker has not confirmed; the message then comes again after `ack_wait`.
    pub async fn nak(&self, delay: Duration) -> Result<(), StreamError> {
        self.settle.settle(Settlement::Nak(delay)).await
    }

    /// Given up: the message does not come again, and the broker tells `reason` to whoever
    /// listens to its advisories.
    ///
    /// # Errors
    /// When the broker has not confirmed; the message may then come again.
    pub async fn term(&self, reason: &str) -> Result<(), StreamError> {
        self.settle.settle(Settlement::Term(reason)).await
    }

    /// Still at it: `ack_wait` starts anew.
    ///
    /// # Errors
    /// When it can't be sent.
    pub async fn in_progress(&self) -> Result<(), StreamError> {
        self.settle.settle(Settlement::InProgress).await
    }
}

impl std::ops::Deref for Delivery {
    type Target = Delivered;

    fn deref(&self) -> &Delivered {
        &self.told
    }
}

impl fmt::Debug for Delivery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Neither payload nor headers: they are the users' data, and this ends in logs.
        f.debug_struct("Delivery")
            .field("id", &self.told.id)
            .field("subject", &self.told.subject)
            .field("position", &self.told.position)
            .field("deliveries", &self.told.deliveries)
            .finish_non_exhaustive()
    }
}
