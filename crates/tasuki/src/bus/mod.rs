//! The message bus: what the outbox publishes to and consumers read from.
//!
//! Four small traits, and two implementations that pass one conformance suite: [`NatsBus`] on
//! JetStream (feature `nats`) and [`MemoryBus`] in one process, for unit tests.
//!
//! | trait | what it is for |
//! | --- | --- |
//! | [`Publisher`] | stores messages, many at once, and says where each one went |
//! | [`Streams`] | makes sure that a stream exists, and asks what it still holds |
//! | [`Subscriber`], [`Subscription`] | durable pull consumers, any number of processes each |
//!
//! A [`Consumer`] is the worker on top: it fetches, hands whole batches to a [`Handler`],
//! and acknowledges strictly after the handler has returned.
//!
//! What holds:
//! - A [`Position`] is where the broker *said* that it stored a message. Brokers forget
//!   ([`Streams::ids_at`] exists to find out), so whoever needs the message keeps the row.
//! - [`PublishError::Unreachable`] is never the message's fault. After it the message may or
//!   may not be stored; publishing it again is always right.
//! - Within one call, no message of an ordering key is stored after one of that key that
//!   failed.
//! - Delivery is at least once, and an id can arrive twice long after any dedupe window:
//!   every consumer pairs this module with an inbox.
//! - Every wait has a deadline.
//!
//! Not promised: that two calls of [`Publisher::publish`] at the same time keep the order of a
//! key between them.

mod confirm;
mod consumer;
mod delivery;
mod memory;
mod message;
mod metrics;
#[cfg(feature = "nats")]
mod nats;
mod spec;
mod subject;

#[cfg(feature = "testing")]
pub mod conformance;

use std::future::Future;
use std::time::Duration;

use uuid::Uuid;

pub use self::consumer::{Consumer, Handler, Verdict};
pub use self::delivery::{Delivered, Delivery, Settle, Settlement, Settling};
pub use self::memory::{MemoryBus, MemorySubscription};
pub use self::message::{Message, Position, PublishError, Stored};
#[cfg(feature = "nats")]
pub use self::nats::{NatsBus, NatsSubscription};
pub use self::spec::{ConsumerSpec, Difference, Storage, StreamError, StreamSpec, StreamState};

/// Stores messages in streams.
pub trait Publisher: Send + Sync + 'static {
    /// Publishes `batch` and gives one result per message, in their order.
    ///
    /// Messages travel together, never one by one; only those that share an
    /// [ordering key](Message::ordering_key) wait for each other. Dropping the future leaves
    /// each message stored or not, as a crash would. A message that is acknowledged as a
    /// duplicate is one that the stream holds.
    fn publish(
        &self,
        batch: Vec<Message>,
    ) -> impl Future<Output = Vec<Result<Position, PublishError>>> + Send;
}

/// Makes streams, and asks what they hold.
pub trait Streams: Send + Sync + 'static {
    /// Creates the stream if it is missing. An existing one is never changed: settings that
    /// differ are [`StreamError::Mismatch`], which names each of them.
    fn ensure_stream(
        &self,
        spec: &StreamSpec,
    ) -> impl Future<Output = Result<StreamState, StreamError>> + Send;

    /// As [`ensure_stream`](Self::ensure_stream), but makes nothing: `None` if it does not exist.
    fn compare_stream(
        &self,
        spec: &StreamSpec,
    ) -> impl Future<Output = Result<Option<StreamState>, StreamError>> + Send;

    /// The stream as it is now; `None` if it does not exist.
    fn stream(
        &self,
        name: &str,
    ) -> impl Future<Output = Result<Option<StreamState>, StreamError>> + Send;

    /// The id of the message at each of `sequences`; `None` where there is no message, or one
    /// whose id is no UUID.
    fn ids_at(
        &self,
        stream: &str,
        sequences: &[u64],
    ) -> impl Future<Output = Result<Vec<Option<Uuid>>, StreamError>> + Send;

    /// The message at `sequence`; `None` where there is none.
    fn message_at(
        &self,
        stream: &str,
        sequence: u64,
    ) -> impl Future<Output = Result<Option<Stored>, StreamError>> + Send;

    /// Every message in `from..=to`, in order, with its sequence and its id; those whose id is
    /// no UUID are left out. Ends at the end of the stream, whatever `to` says.
    fn ids_between(
        &self,
        stream: &str,
        from: u64,
        to: u64,
    ) -> impl Future<Output = Result<Vec<(u64, Uuid)>, StreamError>> + Send;
}

/// Opens durable pull consumers.
pub trait Subscriber: Send + Sync + 'static {
    /// What [`subscribe`](Self::subscribe) opens.
    type Subscription: Subscription;

    /// Makes sure that the stream and the durable exist, whoever comes first, and opens it.
    /// An existing durable goes on where it was; settings that differ are
    /// [`StreamError::Mismatch`].
    fn subscribe(
        &self,
        spec: &ConsumerSpec,
    ) -> impl Future<Output = Result<Self::Subscription, StreamError>> + Send;

    /// Whether stream and durable exist, with the settings of `spec`; those that differ are
    /// [`StreamError::Mismatch`]. Makes and changes nothing.
    fn compare(
        &self,
        spec: &ConsumerSpec,
    ) -> impl Future<Output = Result<bool, StreamError>> + Send;

    /// Forgets how far the durable was and opens it at the first message of the stream: for a
    /// stream that is not the one, or not in the state, that it had been read from.
    fn restart(
        &self,
        spec: &ConsumerSpec,
    ) -> impl Future<Output = Result<Self::Subscription, StreamError>> + Send;
}

/// An open durable consumer.
pub trait Subscription: Send + Sync + 'static {
    /// The stream as it was when this was opened.
    fn opened_on(&self) -> &StreamState;

    /// Up to `max` messages: at once when there are any, else the first to come within
    /// `wait`, else none.
    fn fetch(
        &self,
        max: usize,
        wait: Duration,
    ) -> impl Future<Output = Result<Vec<Delivery>, StreamError>> + Send;

    /// Which connection to the broker this is: another number than before means that it was
    /// lost in between, and with it perhaps messages.
    fn connection(&self) -> u64 {
        0
    }

    /// How far the durable is.
    fn progress(&self) -> impl Future<Output = Result<Progress, StreamError>> + Send;
}

/// How far a durable is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Messages that were not delivered yet.
    pub pending: u64,
    /// Every message up to this number is settled: acknowledged, or given up.
    pub settled: u64,
}
