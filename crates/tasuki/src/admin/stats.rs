//! The answers of [`Admin`](super::Admin).

use std::time::Duration;

use time::OffsetDateTime;
use uuid::Uuid;

use crate::dlq::LetterId;

/// A number of rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Count {
    /// How many.
    pub rows: u64,
    /// There were too many to count: the number is PostgreSQL's estimate.
    pub estimated: bool,
}

/// The outbox at one moment, by the database's clock.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct OutboxStats {
    /// How long ago the oldest event that is neither published nor dead was enqueued; `None`
    /// when there is none. Exact up to ten thousand undelivered events. Beyond, it is the
    /// oldest of the thousand lowest ids and of the ten thousand that are due first; an older
    /// one could hide only behind a thousand dead ones.
    pub oldest_undelivered: Option<Duration>,
    /// Waiting, due or not.
    pub pending: Count,
    /// Waiting, and due; at least this many.
    pub due: u64,
    /// Claimed, and not settled yet; at least this many.
    pub in_flight: u64,
    /// Claimed by somebody who has not settled in time: the next claim takes them.
    pub expired: u64,
    /// Dead; at least this many.
    pub failed: u64,
    /// The sequence number of the newest event: grows with every event that anybody tried to
    /// enqueue, and is not read from the rows.
    pub enqueued: u64,
    /// When the newest event was enqueued: of those that wait, and of the last hundred that each
    /// stream took.
    pub enqueued_last_at: Option<OffsetDateTime>,
    /// When something was last published: the latest of the last hundred that each stream took,
    /// in the newest partitions.
    pub published_last_at: Option<OffsetDateTime>,
}

/// One queue at one moment, by the database's clock.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct QueueStats {
    /// Its name.
    pub queue: String,
    /// Jobs that wait, due or not.
    pub waiting: Count,
    /// Those of them that are due; at least this many.
    pub due: u64,
    /// Jobs that a worker has; at least this many.
    pub running: u64,
    /// Those of them whose worker has not renewed in time: the next claim takes them.
    pub expired: u64,
    /// Dead jobs; at least this many.
    pub dead: u64,
    /// For how long the job that is due longest has been waiting for a worker.
    pub oldest_due: Option<Duration>,
}

/// Two-phase commits at one moment, by the database's clock.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TwopcStats {
    /// Transactions that some participant has not confirmed; counted up to ten thousand.
    pub open: u64,
    /// How long ago the oldest of them began to prepare.
    pub oldest: Option<Duration>,
}

/// The sagas at one moment, by the database's clock.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SagaStats {
    /// Those that go forward, running or waiting; counted up to ten thousand.
    pub started: u64,
    /// Those that are being unwound; counted up to ten thousand.
    pub compensating: u64,
    /// Those that need a person; counted up to ten thousand.
    pub needs_attention: u64,
    /// For how long the one that is due longest has been waiting for a process. One of a definition
    /// that no process knows waits for ever.
    pub oldest_due: Option<Duration>,
}

/// Somebody who holds rows.
#[derive(Clone, Debug, PartialEq, Eq, sqlx::FromRow)]
#[non_exhaustive]
pub struct Holder {
    /// The table.
    pub source: String,
    /// Who: host, process and claimer, as [`lease::Owner`](crate::lease::Owner) says.
    pub owner: String,
    /// How many rows.
    #[sqlx(try_from = "i64")]
    pub rows: u64,
    /// How many of them beyond their lease.
    #[sqlx(try_from = "i64")]
    pub expired: u64,
    /// When the oldest of the claims was made.
    pub oldest_at: Option<OffsetDateTime>,
}

/// One partition.
#[derive(Clone, Debug, PartialEq, Eq, sqlx::FromRow)]
#[non_exhaustive]
pub struct Partition {
    /// The partitioned table.
    pub table: String,
    /// The partition.
    pub name: String,
    /// Its range, as PostgreSQL writes it; `DEFAULT` for the one that takes the rest.
    pub bounds: String,
    /// What it takes on disk, with its indexes.
    #[sqlx(try_from = "i64")]
    pub bytes: u64,
    /// How many rows it has, as of its last vacuum; `None` before the first.
    pub rows: Option<i64>,
}

/// Where a row is.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Place {
    /// It waits.
    Waiting {
        /// Until when, at least.
        due_at: OffsetDateTime,
    },
    /// Somebody has it.
    Claimed {
        /// Who.
        by: Option<String>,
        /// Since when.
        since: Option<OffsetDateTime>,
        /// Until when, unless renewed. In the past: the next claim takes it.
        until: Option<OffsetDateTime>,
    },
    /// The broker has acknowledged it.
    Published {
        /// When.
        at: OffsetDateTime,
        /// In which stream.
        stream: String,
        /// Which one: a stream that was made anew has the same name, and another time.
        stream_created_at: OffsetDateTime,
        /// Where in it.
        stream_seq: u64,
    },
    /// It is done.
    Finished {
        /// When.
        at: OffsetDateTime,
    },
    /// It is dead, and waits for a person.
    Dead {
        /// The letter to redrive or discard.
        letter: Option<LetterId>,
    },
    /// A person gave it up.
    Discarded {
        /// When.
        at: OffsetDateTime,
        /// Who.
        by: String,
        /// Why.
        reason: Option<String>,
    },
}

/// One event or job, wherever it is.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Found {
    /// The event or job.
    pub id: Uuid,
    /// The type of event, or the kind of job. Like the next three, it is not known any more of
    /// one that was discarded so long ago that its letter is gone, too.
    pub kind: Option<String>,
    /// What the event is about, or the job's queue.
    pub queue: Option<String>,
    /// When it was enqueued.
    pub created_at: Option<OffsetDateTime>,
    /// Attempts that failed.
    pub attempts: Option<u32>,
    /// What the event is kept in order with.
    pub ordering_key: Option<String>,
    /// What went wrong last, until the next attempt.
    pub last_error: Option<String>,
    /// Where it is.
    pub place: Place,
}
