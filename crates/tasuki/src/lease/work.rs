//! What a [`Runner`](super::Runner) runs, and how much of it at a time.

use std::future::Future;
use std::time::Duration;

use sqlx::{PgConnection, PgPool};
use time::OffsetDateTime;
use uuid::Uuid;

use super::{Claim, Claimed, Fence, Leases, Look, Outcome, Owner, Watermark};

/// Rows of one table, and what is to be done with them.
pub trait Work: Send + Sync + 'static {
    /// A claimed row.
    type Row: Send + 'static;
    /// What settling a success needs to know.
    type Done: Send + Sync + 'static;

    /// `<service>.<noun>`: names the worker in logs, metrics and on the status page.
    fn name(&self) -> &str;

    /// The statements of the table.
    fn leases(&self) -> &Leases;

    /// Claims what is due, in one statement.
    fn claim(
        &self,
        connection: &mut PgConnection,
        claim: &Claim<'_>,
    ) -> impl Future<Output = sqlx::Result<Vec<Claimed<Self::Row>>>> + Send;

    /// Where its claims begin, if they do so at a place of their own. Then there is a
    /// [`look`](Self::look), too.
    fn watermark(&self) -> Option<&Watermark> {
        None
    }

    /// Finds the first row of each lane that may be claimed before `look` ends. Claims nothing.
    fn look(
        &self,
        _connection: &mut PgConnection,
        _look: &Look,
    ) -> impl Future<Output = sqlx::Result<Vec<(usize, OffsetDateTime)>>> + Send {
        async { Ok(Vec::new()) }
    }

    /// Does the work on a unit, outside any transaction, and says how each row ended. A row
    /// that is not mentioned goes back as if it had not been claimed.
    fn run(
        &self,
        unit: Vec<Claimed<Self::Row>>,
    ) -> impl Future<Output = Vec<(Fence, Outcome<Self::Done>)>> + Send;

    /// Finishes rows that are done, in one statement. Answers those whose claim still held;
    /// nothing at all happens to the others.
    fn settle(
        &self,
        connection: &mut PgConnection,
        done: &[(Fence, Self::Done)],
    ) -> impl Future<Output = sqlx::Result<Vec<Uuid>>> + Send;

    /// Whether there may be more to claim right after `rows`, of at most `limit`, were.
    fn expects_more(&self, rows: &[Claimed<Self::Row>], limit: usize) -> bool {
        rows.len() >= limit
    }

    /// Whether the end of these rows may have made others claimable: then the next claim
    /// comes at once.
    fn frees_others(&self, _done: &[(Fence, Self::Done)]) -> bool {
        false
    }

    /// Called in the transaction in which rows die, for those that did. An error is logged and
    /// undoes only what this call has done.
    fn bury(
        &self,
        _connection: &mut PgConnection,
        _dead: &[(Uuid, String)],
    ) -> impl Future<Output = sqlx::Result<()>> + Send {
        async { Ok(()) }
    }

    /// Called once, when the runner stops: nothing new begins, what runs may still finish within
    /// the grace time.
    fn stopping(&self) {}

    /// How a row ends whose work panicked.
    fn panicked(&self, failed_attempts: u32, message: &str) -> Outcome<Self::Done>;
}

/// What runs as one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Unit {
    /// Every row by itself: slow rows hold up nobody.
    Row,
    /// All the rows of a claim together: one publish, one request.
    Batch,
}

/// How the pool reaches PostgreSQL.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Route {
    /// Directly: a statement is a transaction of its own, in one round trip.
    #[default]
    Direct,
    /// Through a pooler in transaction mode, which may give every transaction another
    /// session: each statement is wrapped in an explicit one. Turn the driver's statement
    /// cache off, too (`statement_cache_capacity(0)`), and have the pooler reset a session
    /// after every transaction: the driver names its statements all the same.
    Pooler,
}

/// How a [`Runner`](super::Runner) works.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Where claims, renewals and settlements go: over connections of their own, with the options of
    /// this pool.
    pub pool: PgPool,
    /// How that pool reaches PostgreSQL.
    pub route: Route,
    /// The name that claims carry.
    pub owner: Owner,
    /// What runs as one.
    pub unit: Unit,
    /// Units that run side by side.
    pub slots: usize,
    /// Rows per claim at most. More rows cost fewer round trips, and more is repeated after a
    /// crash.
    pub batch: usize,
    /// How long a claim holds without a renewal; it is renewed between a third and a half of that.
    pub lease: Duration,
    /// How long an idle worker waits before it looks again by itself.
    pub poll: Duration,
}
