//! Upkeep of tables that grow with time: partitions made ahead, history dropped whole.
//!
//! One worker, [`Upkeep`], keeps every table of a schema that somebody has described to it:
//! [`Partitioned`] ones, whose old partitions it drops, and [`Expiring`] ones, whose old rows it
//! deletes in small batches. It knows the library's own tables; a service adds its own.
//!
//! What holds:
//! - A partition is dropped only when none of its rows may still be needed. What a partition
//!   can't tell (an old id that was recorded today) is looked up in its rows first.
//! - Nothing waits in front of traffic. Every lock is asked for with a short limit; what is
//!   not had in time is left for the next tick.
//! - A missing partition loses nothing: its rows are in the DEFAULT partition, where the same
//!   retention deletes them row by row. Rows in there mean that upkeep did not run in time
//!   ([`metrics`](self#metrics)).
//! - The database's clock decides, and of several processes one works at a time.
//!
//! How a partition is made. `CREATE TABLE … PARTITION OF` would lock out every reader and
//! writer of the table; so the partition is made alone and attached, which lets both go on.
//! Attaching scans the DEFAULT partition, and locks it meanwhile: that is why it should stay
//! small. A range that rows are being written to right now (only at the first start, or after an
//! outage of this worker) is attached while everybody is held for a moment: a writer that had
//! already chosen the DEFAULT partition would be refused otherwise. Rows in DEFAULT that belong to
//! the new partition move into it in the same transaction, and a reader that had already chosen
//! its partitions would miss them. If they are more than 10,000, or DEFAULT is
//! larger than 64 MB, the range is left to DEFAULT. The one that comes next is attached all the
//! same, so that DEFAULT fills no further; writers wait for that scan, once. Above 1 GB a person
//! has to choose the moment (`upkeep-behind`).
//!
//! How one is dropped. That takes an exclusive lock of the table (`DETACH … CONCURRENTLY` is
//! not allowed beside a DEFAULT partition) for about a millisecond, once a width. A reader that
//! holds the table open postpones it. Of a partition by ids, rows that are still young are looked for
//! first, by a BRIN index on their time, which the library's tables have from their parent: give yours
//! one. Without it all of a partition is read, which may take longer than a statement may take; such
//! a one comes after all others, and is told of (`upkeep-behind`).
//!
//! The role of the pool must own the tables.
//!
//! # Metrics
//! `tasuki_upkeep_default_rows`, `tasuki_upkeep_partitions`, `tasuki_upkeep_ahead_seconds`,
//! `tasuki_upkeep_overdue_seconds` (gauges), `tasuki_upkeep_created_total`,
//! `tasuki_upkeep_dropped_total`, `tasuki_upkeep_deleted_rows_total`, `tasuki_upkeep_postponed_total`,
//! `tasuki_upkeep_too_slow_total`; all by `table`.

mod cleanup;
mod meter;
mod rules;
mod span;
mod step;
mod store;
mod worker;

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Duration;

use sqlx::PgPool;
use time::OffsetDateTime;
use tokio::time::Instant;

use crate::Schema;
use store::{Statements, Sweep};

pub use cleanup::Cleaned;
pub use rules::{By, Expiring, Partitioned};

/// What stops upkeep.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A name that could leave its place in a statement, or leaves no room for partitions.
    #[error(
        "`{0}` is not a plain name of a table or column: use lower-case letters, digits and _, at most 48"
    )]
    Name(String),
    /// Partitions of no width, or of a part of a minute: their names say the minute.
    #[error("partitions of {table} are {width:?} wide: use whole minutes, at least one")]
    Width {
        /// The table.
        table: String,
        /// What was asked for.
        width: Duration,
    },
    /// There is no such table, or it is not partitioned.
    #[error("there is no partitioned table {0}")]
    NotPartitioned(String),
    /// Nobody has described this table.
    #[error("upkeep knows no table {0}")]
    Unknown(String),
    /// Another process was at work all the time.
    #[error("another process has been keeping these tables up for {0:?}")]
    Busy(Duration),
    /// The database refused.
    #[error("upkeep of {table} failed")]
    Store {
        /// The table that was worked on.
        table: String,
        /// What the database said.
        #[source]
        source: sqlx::Error,
    },
}

/// Keeps the tables of one schema up: a [`Worker`](crate::worker::Worker).
#[derive(Debug)]
pub struct Upkeep {
    pool: PgPool,
    schema: Schema,
    name: String,
    poll: Duration,
    clean_every: Option<Duration>,
    cleaned_at: Mutex<Option<Instant>>,
    partitioned: Vec<(Partitioned, Statements)>,
    expiring: Vec<(Expiring, Sweep)>,
    /// Partitions with a row that is younger than their range, and when to look at them again.
    resting: Mutex<HashMap<String, OffsetDateTime>>,
    /// Partitions that took too long when they were last to be dropped, and when that was.
    slow: Mutex<HashMap<String, Instant>>,
    statement_limit: Duration,
}

impl Upkeep {
    /// Keeps the library's tables in `schema` up: published events for 24 hours, finished jobs
    /// for 7 days, processed events, stories, the sequenced log, finished sagas and two-phase commits
    /// and closed dead letters for 30 days, barriers for 400 days, idempotency keys and unique jobs
    /// until they expire.
    #[must_use]
    pub fn new(pool: PgPool, schema: &Schema) -> Self {
        let mut upkeep = Self::bare(pool, schema);
        for rule in rules::library_partitioned() {
            upkeep.put_partitioned(rule);
        }
        for rule in rules::library_expiring() {
            upkeep.put_expiring(rule);
        }
        upkeep
    }

    /// An upkeep without any table yet, also none of the library: add them.
    #[must_use]
    pub fn bare(pool: PgPool, schema: &Schema) -> Self {
        Self {
            pool,
            schema: schema.clone(),
            name: format!("{schema}.upkeep"),
            poll: Duration::from_secs(60),
            clean_every: Some(Duration::ZERO),
            cleaned_at: Mutex::default(),
            partitioned: Vec::new(),
            expiring: Vec::new(),
            resting: Mutex::default(),
            slow: Mutex::default(),
            statement_limit: Duration::from_secs(60),
        }
    }

    /// Keeps this table up too; replaces what was said of it before.
    ///
    /// # Errors
    /// When a name is not a plain identifier, or the width is not whole minutes.
    pub fn partitioned(mut self, rule: Partitioned) -> Result<Self, Error> {
        rule.check()?;
        self.put_partitioned(rule);
        Ok(self)
    }

    /// Deletes old rows of this table too; replaces what was said of it before.
    ///
    /// # Errors
    /// When a name is not a plain identifier.
    pub fn expiring(mut self, rule: Expiring) -> Result<Self, Error> {
        rule.check()?;
        self.put_expiring(rule);
        Ok(self)
    }

    /// How long an idle upkeep waits before it looks again (60 s).
    #[must_use]
    pub const fn poll_every(mut self, poll: Duration) -> Self {
        self.poll = poll;
        self
    }

    /// How often what is old is removed; `None` for never, then partitions are only made. Without
    /// this, at every look.
    #[must_use]
    pub const fn clean_every(mut self, every: Option<Duration>) -> Self {
        self.clean_every = every;
        self
    }

    /// How long one statement may run (60 s). The longest looks for young rows in an old partition of
    /// ids: of one with an index by time that is a moment. What takes longer is postponed, and told.
    #[must_use]
    pub const fn statement_limit(mut self, limit: Duration) -> Self {
        self.statement_limit = limit;
        self
    }

    fn put_partitioned(&mut self, rule: Partitioned) {
        self.partitioned.retain(|(old, _)| old.table != rule.table);
        let statements = Statements::of(&self.schema, &rule);
        self.partitioned.push((rule, statements));
    }

    fn put_expiring(&mut self, rule: Expiring) {
        self.expiring.retain(|(old, _)| old.table != rule.table);
        let table = format!("{}.{}", self.schema, rule.table);
        let sweep = if rule.keep.is_zero() {
            Sweep::ended(&table, &rule.column, rule.only)
        } else {
            Sweep::of(&table, &rule.column, rule.only)
        };
        self.expiring.push((rule, sweep));
    }
}
