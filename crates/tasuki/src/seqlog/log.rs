//! A log: to append to, to read, to follow.

use std::fmt;
use std::sync::Arc;

use sqlx::postgres::PgRow;
use sqlx::{FromRow, PgConnection, PgPool, Row};
use time::OffsetDateTime;

use super::store::{HeadRow, Store};
use super::table::ENTRIES;
use super::{Entry, Error, Gauges, Sequencer, Table};
use crate::Schema;
use crate::transaction::{self, Transaction};
use crate::upkeep::Partitioned;
use crate::worker::{Bell, Listener, Ringer};

/// One log. Cheap to clone; clones wake each other.
#[derive(Clone, Debug)]
pub struct Log {
    pub(super) table: Table,
    pub(super) schema: Schema,
    pub(super) store: Arc<Store>,
    /// Rung by writers, heard by sequencers.
    pub(super) appended: Bell,
    /// Rung by sequencers, heard by consumers.
    pub(super) numbered: Bell,
}

/// A row of a log, with its number.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Numbered<R> {
    /// One more than that of the row before it.
    pub seq: i64,
    /// The row.
    pub row: R,
}

impl<R: for<'r> FromRow<'r, PgRow>> Numbered<R> {
    pub(super) fn read(row: &PgRow) -> sqlx::Result<Self> {
        Ok(Self {
            seq: row.try_get("seq")?,
            row: R::from_row(row)?,
        })
    }
}

/// How far a log goes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Head {
    /// The highest number given; 0 when there is none yet.
    pub last_seq: i64,
    /// Rows up to this number may be gone; everything from the next one to the last is there.
    pub floor_seq: i64,
    /// When rows were last numbered.
    pub numbered_at: Option<OffsetDateTime>,
    /// The sequencer that is at work.
    pub sequencer: Option<String>,
}

impl From<HeadRow> for Head {
    fn from(row: HeadRow) -> Self {
        Self {
            last_seq: row.last_seq,
            floor_seq: row.floor_seq,
            numbered_at: row.numbered_at,
            sequencer: row.owner.filter(|_| row.is_led),
        }
    }
}

/// The database as it was at one moment, and where the log was then.
///
/// Everything up to [`seq`](Self::seq) has its effects in what the snapshot shows, and everything that
/// is not in it comes after. What was committed and had no number yet is in both: it is handled once
/// more, so handling must bear that.
pub struct Snapshot {
    tx: Transaction,
    seq: i64,
    attempt: i64,
}

impl Snapshot {
    /// The log was here.
    #[must_use]
    pub const fn seq(&self) -> i64 {
        self.seq
    }

    /// Which attempt at a rebuild this is: of all attempts of a consumer, each has a higher number than
    /// those before it. 0 for a snapshot that was not taken for one.
    #[must_use]
    pub const fn attempt(&self) -> i64 {
        self.attempt
    }

    pub(super) const fn of_attempt(mut self, attempt: i64) -> Self {
        self.attempt = attempt;
        self
    }

    /// Reads the database as it was. Nothing can be written here.
    pub fn connection(&mut self) -> &mut PgConnection {
        &mut self.tx
    }
}

impl fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Snapshot")
            .field("seq", &self.seq)
            .field("attempt", &self.attempt)
            .finish_non_exhaustive()
    }
}

impl Log {
    /// The library's own log in `schema`, of [`Entry`]s.
    #[must_use]
    pub fn new(schema: &Schema) -> Self {
        Self::with(schema, ENTRIES, true)
    }

    /// A log of your own, whose tables are in `schema` beside those that
    /// [`migrate`](crate::migrate()) has installed.
    #[must_use]
    pub fn of(schema: &Schema, table: Table) -> Self {
        Self::with(schema, table, false)
    }

    fn with(schema: &Schema, table: Table, is_own: bool) -> Self {
        Self {
            store: Arc::new(Store::new(schema, &table, is_own)),
            schema: schema.clone(),
            table,
            appended: Bell::new(),
            numbered: Bell::new(),
        }
    }

    /// What it is called: the name of its table.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        self.table.name
    }

    /// Appends entries to the library's own log, in one statement, in the caller's transaction: they
    /// get their numbers after it has committed, in the order of the slice. No writer waits for
    /// another. [`ring`](Self::ring) afterwards saves the wait for the sequencer's poll.
    ///
    /// (To append to a log of your own, insert into its `pending` table.)
    ///
    /// # Errors
    /// When a text has a NUL in it, the log is not the library's own, or the database refuses.
    pub async fn append(
        &self,
        transaction: &mut PgConnection,
        entries: &[Entry],
    ) -> Result<(), Error> {
        if !self.store.is_own() {
            return Err(Error::NotOwn(self.table.name));
        }
        if !entries.iter().all(Entry::is_sound) {
            return Err(Error::Invalid);
        }
        if !entries.is_empty() {
            self.store.append(transaction, entries).await?;
        }
        Ok(())
    }

    /// Wakes the sequencer here and, where a [`ringer`](Self::ringer) runs, elsewhere. Call it after
    /// the commit; forgetting it costs at most one poll.
    pub fn ring(&self) {
        self.appended.ring();
    }

    /// Up to `limit` rows after the number `after`, in order, without gaps. Fewer may only mean that
    /// there are no more yet; if the first is not the next number, the rows between are gone.
    ///
    /// # Errors
    /// When the database can't be asked, or a row is not what `R` expects.
    pub async fn read<R>(
        &self,
        connection: &mut PgConnection,
        after: i64,
        limit: u32,
    ) -> Result<Vec<Numbered<R>>, Error>
    where
        R: for<'r> FromRow<'r, PgRow>,
    {
        let rows = self.store.read(connection, after, limit).await?;
        let rows = rows.iter().map(Numbered::read);
        Ok(rows.collect::<sqlx::Result<_>>()?)
    }

    /// How far it goes.
    ///
    /// # Errors
    /// When the database can't be asked.
    pub async fn head(&self, connection: &mut PgConnection) -> Result<Head, Error> {
        let head = self.store.head(connection).await?;
        Ok(head.map(Head::from).unwrap_or_default())
    }

    /// Holds the database still for reading, to fill a store from its source tables: what comes after
    /// the snapshot is then to be followed from its number.
    ///
    /// # Errors
    /// When the pool has no connection, or the database can't be asked.
    pub async fn snapshot(&self, pool: &PgPool) -> Result<Snapshot, Error> {
        let mut tx = transaction::begin_snapshot(pool).await?;
        // The first statement is what fixes the snapshot: number and tables are of one moment.
        let seq = self.head(&mut tx).await?.last_seq;
        let attempt = 0;
        Ok(Snapshot { tx, seq, attempt })
    }

    /// The worker that numbers what is appended. Run one in every process: one of them works, and
    /// another takes over when it is gone. `name` (`<service>.<noun>`) names it.
    #[must_use]
    pub fn sequencer(&self, name: &str, pool: &PgPool) -> Sequencer {
        Sequencer::new(self.clone(), name, pool.clone())
    }

    /// A worker that passes rings on to other processes, where a [`listener`](Self::listener) runs.
    #[must_use]
    pub fn ringer(&self, pool: &PgPool) -> Ringer {
        let channel = &self.store.appended;
        let name = format!("{channel}-ringer");
        Ringer::new(&name, pool.clone(), channel, &self.appended)
    }

    /// A worker that wakes what runs in this process: the sequencer when a [`ringer`](Self::ringer)
    /// rings elsewhere, consumers when rows have been numbered elsewhere. It keeps one connection of
    /// `pool`, which must reach PostgreSQL directly.
    #[must_use]
    pub fn listener(&self, pool: &PgPool) -> Listener {
        let name = format!("{}-listener", self.store.channel);
        Listener::new(&name, pool.clone())
            .rings(&self.store.appended, &self.appended)
            .rings(&self.store.channel, &self.numbered)
    }

    /// What is rung when rows have been numbered, here or, where a [`listener`](Self::listener) runs,
    /// elsewhere: for readers that keep no offset.
    #[must_use]
    pub const fn numbered(&self) -> &Bell {
        &self.numbered
    }

    /// A worker that sets the gauges of this log and of its consumers, every few seconds.
    #[must_use]
    pub fn gauges(&self, name: &str, pool: &PgPool) -> Gauges {
        Gauges::new(self.clone(), name, pool.clone())
    }

    /// The rule by which [`Upkeep`](crate::upkeep::Upkeep) makes partitions of a log of your own and
    /// drops old ones, by default a day wide and after 30 days. (The library's own log is kept up
    /// without it.)
    #[must_use]
    pub fn retention(&self) -> Partitioned {
        Partitioned::by_time(self.table.name, self.table.at).sequenced(self.table.name)
    }

    /// Where the highest number is told.
    #[must_use]
    pub fn channel(&self) -> &str {
        &self.store.channel
    }

    /// Every statement, for a test that prepares them all.
    #[doc(hidden)]
    pub fn statements(&self) -> impl Iterator<Item = &str> {
        self.store.all()
    }
}
