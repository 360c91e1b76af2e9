//! Transactions on connections of a pool that may be dropped at any await.
//!
//! A request's future is dropped when its client hangs up, a tick's when its time is over. The
//! driver knows of a transaction only when the server has confirmed it: a `Pool::begin` that is
//! dropped between the two returns its connection to the pool *inside* a transaction, and
//! whoever gets it next works in one that nobody will commit. Here a begin that was sent is
//! waited for, whatever becomes of its caller; from then on dropping means rolling back.
//!
//! Also what only reads, or writes with one statement, begins a transaction here unless it has to
//! be fast: behind a pooler in transaction mode a statement outside one may be prepared in one
//! session and run in another.
//!
//! Invariant: a connection returns to the pool only outside a transaction.

mod away;
mod store;

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::future::BoxFuture;
use sqlx::{AssertSqlSafe, PgPool, Postgres, SqlSafeStr, SqlStr};
use tokio::runtime::Handle;

pub use away::{is_away, is_passing};

use crate::idempotency::LockNumber;

/// An open transaction. Dropping it rolls back.
pub(crate) type Transaction = sqlx::Transaction<'static, Postgres>;

/// Each statement sees what was committed before it began. Stated, because a database may have
/// another default, and what waits for a lock must see what its last holder wrote.
const BEGIN: &str = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE";

/// One look at everything.
const SNAPSHOT: &str = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY";

/// Begins a transaction, as `pool.begin()` does, but may be dropped at any await.
///
/// Whatever can be cut should begin with this: a job's handler at its timeout, a request when its
/// client hangs up. A `pool.begin()` that is dropped while it waits for the server returns its
/// connection to the pool inside a transaction, and the next statement on it is one that nobody
/// will commit. This one goes on in the background until there is a transaction to roll back.
///
/// # Errors
/// When the pool has no connection, or the database can't begin; [`sqlx::Error::BeginFailed`] on a
/// standby.
pub async fn begin(pool: &PgPool) -> sqlx::Result<sqlx::Transaction<'static, Postgres>> {
    begin_by(pool, BEGIN.into_sql_str()).await
}

/// Begins a transaction that only reads, and sees the database as it is at its first statement, for as
/// long as it lasts.
pub(crate) async fn begin_snapshot(pool: &PgPool) -> sqlx::Result<Transaction> {
    begin_by(pool, SNAPSHOT.into_sql_str()).await
}

/// Begins, and runs `first` in the transaction, in one round trip.
///
/// All that is sent at once is one transaction, which the begin at its end makes one that stays
/// open. So it is open only if all of `first` went well: behind the begin it could fail in a
/// transaction that the driver does not know of, and takes back into the pool.
pub(crate) async fn begin_with(pool: &PgPool, first: &str) -> sqlx::Result<Transaction> {
    let all = format!(
        "SET TRANSACTION ISOLATION LEVEL READ COMMITTED READ WRITE;
         {first};
         BEGIN"
    );
    // Safe: callers write nothing into it but numbers.
    begin_by(pool, AssertSqlSafe(all).into_sql_str()).await
}

/// Begins a transaction that holds these locks, in one round trip: as [`begin`], and then
/// `pg_advisory_xact_lock` of each. What others have is waited for, up to the connection's
/// `lock_timeout`; the transaction sees what they have committed. Locks are taken in the order of their
/// numbers, so that two who take several never wait for each other.
///
/// # Errors
/// As [`begin`], and when a lock can't be had in time: then nothing is held.
pub async fn begin_locked(
    pool: &PgPool,
    numbers: impl IntoIterator<Item = LockNumber>,
) -> sqlx::Result<sqlx::Transaction<'static, Postgres>> {
    let mut numbers: Vec<_> = numbers.into_iter().map(LockNumber::get).collect();
    numbers.sort_unstable();
    numbers.dedup();
    begin_with(pool, &store::locking(&numbers)).await
}

/// How long the server bears with a transaction, or with a statement outside one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Without a word: so long may the locks of a process that has stopped stand in the way.
    pub(crate) idle: Duration,
    /// For one statement.
    pub(crate) statement: Duration,
    /// For one lock, if not for as long as for the statement.
    pub(crate) lock: Option<Duration>,
}

/// Begins a transaction that the server ends by itself when it lasts longer than `limits` say.
pub(crate) async fn begin_within(pool: &PgPool, limits: &Limits) -> sqlx::Result<Transaction> {
    let millis = |limit: Duration| limit.as_millis().clamp(1, 86_400_000);
    let (idle, statement) = (millis(limits.idle), millis(limits.statement));
    let mut settings = format!(
        "SET LOCAL idle_in_transaction_session_timeout = {idle};
         SET LOCAL statement_timeout = {statement}"
    );
    if let Some(lock) = limits.lock.map(millis) {
        let lock = format!("; SET LOCAL lock_timeout = {lock}");
        settings.push_str(&lock);
    }
    begin_with(pool, &settings).await
}

async fn begin_by(pool: &PgPool, opening: SqlStr) -> sqlx::Result<Transaction> {
    // To wait for a connection may be given up; what happens on it may not.
    let connection = pool.acquire().await?;
    let begun = Finished(Some(Transaction::begin(connection, Some(opening)))).await;
    begun.map_err(|error| {
        if !is_on_standby(&error) {
            return error;
        }
        tracing::warn!(
            error = &error as &(dyn std::error::Error + 'static),
            "the database takes no writes",
        );
        sqlx::Error::BeginFailed
    })
}

/// A standby refuses to begin what is to write with the code of a feature that is not supported,
/// which anywhere else would be a mistake of ours. Here it means: not yet, or not there.
fn is_on_standby(error: &sqlx::Error) -> bool {
    let code = error.as_database_error().and_then(|error| error.code());
    code.as_deref() == Some("0A000")
}

/// Commits. An error may mean that it did: the answer can get lost on the way.
///
/// Fails when a statement failed before, even if its error was swallowed: `COMMIT` alone would
/// roll back and report success.
pub(crate) async fn commit(mut tx: Transaction) -> sqlx::Result<()> {
    store::assert_sound(&mut tx).await?;
    tx.commit().await
}

/// Rolls back and waits until it is done, so that its locks are free afterwards.
pub(crate) async fn roll_back(tx: Transaction) {
    if let Err(error) = tx.rollback().await {
        // A lost connection rolls back by itself; nothing was promised to anybody.
        tracing::debug!(
            error = &error as &(dyn std::error::Error + 'static),
            "roll back not confirmed",
        );
    }
}

/// A begin that goes on when it is dropped, until there is a transaction to roll back.
struct Finished(Option<BoxFuture<'static, sqlx::Result<Transaction>>>);

impl Future for Finished {
    type Output = sqlx::Result<Transaction>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(begin) = &mut self.0 else {
            return Poll::Pending;
        };
        let polled = begin.as_mut().poll(cx);
        if polled.is_ready() {
            self.0 = None;
        }
        polled
    }
}

impl Drop for Finished {
    fn drop(&mut self) {
        // Without a runtime the pool is gone as well.
        if let (Some(begin), Ok(runtime)) = (self.0.take(), Handle::try_current()) {
            // One round trip, and nobody waits for it: there is nothing for a shutdown to save.
            runtime.spawn(async move { drop(begin.await) });
        }
    }
}
