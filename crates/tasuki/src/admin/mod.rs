//! What the command line and the console may see, in one place: the outbox, the queues, the sagas,
//! two-phase commits, who holds what, the partitions, and where one event or job is.
//!
//! [`Admin`] answers; [`Gauges`] asks it every few seconds and sets the metrics that alerts
//! read. What may be *done* about what died is in [`dlq`](crate::dlq).
//!
//! Zero must be trustworthy. The age of the oldest undelivered event comes from the very table
//! that the relay claims from; beside it stand how many events were ever enqueued, and when the
//! last ones were enqueued and published, so that an outbox that is empty can be told from one
//! that nobody sees into. A read that fails is an error, and never a zero.
//!
//! # What it costs
//! [`Admin::outbox`], [`Admin::queues`], [`Admin::sagas`], [`Admin::twopc`] and
//! [`dlq::Letters::open`](crate::dlq::Letters::open) run every few seconds. They walk indexes from their heads, stop after ten thousand rows, and
//! never read history: the same with a million live rows and with ten million old ones. Above
//! that number a [`Count`] is PostgreSQL's own estimate and says so. The others are for a person
//! who asks.
//!
//! There is nothing here to release an expired lease with: the next claim takes it by itself.

mod gauges;
mod stats;
mod store;

use std::sync::Arc;

use sqlx::PgConnection;
use uuid::Uuid;

use crate::Schema;
use store::Statements;

pub use gauges::Gauges;
pub use stats::{
    Count, Found, Holder, OutboxStats, Partition, Place, QueueStats, SagaStats, TwopcStats,
};

/// Questions about one schema. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Admin {
    statements: Arc<Statements>,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The database could not be asked.
    #[error("the state of {what} could not be read")]
    Read {
        /// What was asked for.
        what: &'static str,
        /// What went wrong.
        #[source]
        source: sqlx::Error,
    },
}

impl Error {
    fn reading(what: &'static str) -> impl FnOnce(sqlx::Error) -> Self {
        move |source| Self::Read { what, source }
    }
}

impl Admin {
    /// Questions about the library's tables in `schema`.
    #[must_use]
    pub fn new(schema: &Schema) -> Self {
        Self {
            statements: Arc::new(Statements::new(schema)),
        }
    }

    /// How the outbox is.
    ///
    /// # Errors
    /// When the database can't be asked.
    pub async fn outbox(&self, connection: &mut PgConnection) -> Result<OutboxStats, Error> {
        let stats = self.statements.outbox(connection).await;
        stats.map_err(Error::reading("the outbox"))
    }

    /// How every queue with a job in it is, in the order of their names; the first 200.
    ///
    /// # Errors
    /// When the database can't be asked.
    pub async fn queues(&self, connection: &mut PgConnection) -> Result<Vec<QueueStats>, Error> {
        let stats = self.statements.queues(connection).await;
        stats.map_err(Error::reading("the queues"))
    }

    /// How the two-phase commits are.
    ///
    /// # Errors
    /// When the database can't be asked.
    pub async fn twopc(&self, connection: &mut PgConnection) -> Result<TwopcStats, Error> {
        let stats = self.statements.twopc(connection).await;
        stats.map_err(Error::reading("the two-phase commits"))
    }

    /// How the sagas are.
    ///
    /// # Errors
    /// When the database can't be asked.
    pub async fn sagas(&self, connection: &mut PgConnection) -> Result<SagaStats, Error> {
        let stats = self.statements.sagas(connection).await;
        stats.map_err(Error::reading("the sagas"))
    }

    /// Who holds jobs, events and sagas at this moment. Reads every row that is due.
    ///
    /// # Errors
    /// When the database can't be asked.
    pub async fn leases(&self, connection: &mut PgConnection) -> Result<Vec<Holder>, Error> {
        let holders = self.statements.leases(connection).await;
        holders.map_err(Error::reading("the leases"))
    }

    /// Every partition in the schema, by table and range.
    ///
    /// # Errors
    /// When the database can't be asked.
    pub async fn partitions(&self, connection: &mut PgConnection) -> Result<Vec<Partition>, Error> {
        let partitions = self.statements.partitions(connection).await;
        partitions.map_err(Error::reading("the partitions"))
    }

    /// Where an event is. `None`: it was never enqueued here, or it was published longer ago
    /// than published events are kept.
    ///
    /// # Errors
    /// When the database can't be asked.
    pub async fn event(
        &self,
        connection: &mut PgConnection,
        id: Uuid,
    ) -> Result<Option<Found>, Error> {
        let event = self.statements.event(connection, id).await;
        event.map_err(Error::reading("the event"))
    }

    /// The events that are neither published nor dead, the oldest first, and at most `limit`.
    ///
    /// # Errors
    /// When the database can't be asked.
    pub async fn waiting(
        &self,
        connection: &mut PgConnection,
        limit: u32,
    ) -> Result<Vec<Found>, Error> {
        let waiting = self.statements.waiting(connection, limit).await;
        waiting.map_err(Error::reading("the outbox"))
    }

    /// Where a job is. `None`: it was never enqueued here, or it is finished and its queue does
    /// not keep finished jobs, or not for that long.
    ///
    /// # Errors
    /// When the database can't be asked.
    pub async fn job(
        &self,
        connection: &mut PgConnection,
        id: Uuid,
    ) -> Result<Option<Found>, Error> {
        let job = self.statements.job(connection, id).await;
        job.map_err(Error::reading("the job"))
    }

    /// Every statement, for a test that prepares them all.
    #[doc(hidden)]
    pub fn statements(&self) -> impl Iterator<Item = &str> {
        self.statements.all()
    }
}
