//! Transactional outbox: an event leaves this database if, and only if, the transaction that
//! wrote it commits.
//!
//! [`Outbox::enqueue`] runs in the caller's transaction. A [`Relay`] publishes committed events
//! afterwards, at least once each, in batches; a [`Reconciler`] notices that the broker has lost
//! what it had acknowledged, and sends it again. So an event may arrive twice, also after days:
//! every consumer pairs this module with an [inbox](crate::inbox).
//!
//! Invariants: a row leaves `outbox_events` only when the broker has acknowledged it, and
//! then it stays in `outbox_published`, with the place where the broker said that it is, for 24
//! hours unless [upkeep](crate::upkeep) is told otherwise. A broker that can't be reached costs an event nothing.
//!
//! Order: events with the same [ordering key](Event::ordered_by) are published in the order in
//! which they were enqueued, provided that their writers are serialised (they lock the
//! aggregate, as they do who number its versions). Keys are served in turn, so a busy one
//! holds up no other. Events without a key are published in any order, the oldest first.
//!
//! Not promised: order after an event of the key has died, was redriven, or was lost by the
//! broker and sent again. Consumers that care compare versions. Nor that a loss is repaired which
//! the broker suffers after an event has left `outbox_published`. Not here: payload schemas.

mod away;
mod event;
mod memory;
mod reconcile;
mod relay;
mod routes;
mod store;

use std::sync::Arc;

use sqlx::{PgConnection, PgPool};
use uuid::Uuid;

pub(crate) use event::is_correlation_id;
pub use event::{Event, InvalidEvent};
pub use reconcile::{Reconciler, Suspicion};
pub use relay::{Published, Relay, RelaySettings, relay};
pub use routes::Routes;
pub use store::EventRow;

use crate::Schema;
use crate::together::Together;
use crate::worker::{Bell, Listener, Ringer};

/// The outbox in one schema. Clones are the same outbox, and share its bell.
#[derive(Clone, Debug)]
pub struct Outbox {
    store: Arc<store::Store>,
    bell: Bell,
    trace: fn() -> Option<String>,
}

/// Why an event was not written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The event can't be sent, and was refused before the database saw it: the transaction is
    /// as it was.
    #[error("the event can't be sent")]
    Invalid(#[from] InvalidEvent),
    /// The database refused it; the transaction is over.
    #[error("the outbox could not be written")]
    Store(#[from] sqlx::Error),
}

impl Outbox {
    /// The outbox in `schema`, whose tables [`migrate`](crate::migrate()) has installed.
    #[must_use]
    pub fn new(schema: &Schema) -> Self {
        Self {
            store: Arc::new(store::Store::new(schema)),
            bell: Bell::new(),
            trace: || None,
        }
    }

    /// Stores with each event that has none the `traceparent` that this answers: the trace of
    /// whoever enqueues.
    #[must_use]
    pub fn with_trace(mut self, current: fn() -> Option<String>) -> Self {
        self.trace = current;
        self
    }

    /// The trace of whoever enqueues. One that can't travel is none: it must not fail an event.
    pub(crate) fn traceparent(&self) -> Option<String> {
        (self.trace)().filter(|text| event::is_traceparent(text))
    }

    /// Writes `event` in the caller's transaction: it is published if that commits, and only
    /// then. [`ring`](Self::ring) afterwards saves the wait for the relay's poll.
    ///
    /// # Errors
    /// When the event can't be sent, or the database refuses it.
    pub async fn enqueue(
        &self,
        transaction: &mut PgConnection,
        event: &Event,
    ) -> Result<Uuid, Error> {
        event.check()?;
        let trace = self.traceparent();
        self.store
            .insert(transaction, event, trace.as_deref())
            .await?;
        Ok(event.id)
    }

    /// Writes many events, in one statement; events of one key keep the order of the slice.
    ///
    /// # Errors
    /// When one of them can't be sent, or the database refuses one: then none is written.
    pub async fn enqueue_all(
        &self,
        transaction: &mut PgConnection,
        events: &[Event],
    ) -> Result<(), Error> {
        for event in events {
            event.check()?;
        }
        if !events.is_empty() {
            let trace = self.traceparent();
            self.store
                .insert_all(transaction, events, trace.as_deref())
                .await?;
        }
        Ok(())
    }

    /// Adds many events to a statement of the caller's, as [`enqueue_all`](Self::enqueue_all).
    ///
    /// # Errors
    /// When one of them can't be sent.
    pub fn enqueue_with(&self, together: &mut Together, events: &[Event]) -> Result<(), Error> {
        for event in events {
            event.check()?;
        }
        if !events.is_empty() {
            let trace = self.traceparent();
            self.store
                .insert_all_with(together, events, trace.as_deref())?;
        }
        Ok(())
    }

    /// Wakes the relays here and, where a [`ringer`](Self::ringer) runs, elsewhere. Call it after
    /// the commit; forgetting it costs at most one poll.
    pub fn ring(&self) {
        self.bell.ring();
    }

    /// What [`ring`](Self::ring) rings.
    #[must_use]
    pub const fn bell(&self) -> &Bell {
        &self.bell
    }

    /// A worker that passes rings on to other processes, where a [`listener`](Self::listener) runs.
    #[must_use]
    pub fn ringer(&self, pool: &PgPool) -> Ringer {
        let name = format!("{}-ringer", self.channel());
        Ringer::new(&name, pool.clone(), self.channel(), &self.bell)
    }

    /// A worker that wakes the relays of this process when a [`ringer`](Self::ringer) of another
    /// rings. It keeps one connection of `pool`, which must reach PostgreSQL directly.
    #[must_use]
    pub fn listener(&self, pool: &PgPool) -> Listener {
        let name = format!("{}-listener", self.channel());
        Listener::new(&name, pool.clone()).rings(self.channel(), &self.bell)
    }

    /// The channel between the two, for a [`Listener`] that hears several.
    #[must_use]
    pub fn channel(&self) -> &str {
        self.store.channel()
    }

    /// Every statement, for a test that prepares them all.
    #[doc(hidden)]
    pub fn statements(&self) -> impl Iterator<Item = &str> {
        self.store.statements()
    }
}
