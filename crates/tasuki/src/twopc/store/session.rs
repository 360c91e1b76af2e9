//! What a participant's database is asked.
//!
//! `PREPARE TRANSACTION`, `COMMIT PREPARED` and `ROLLBACK PREPARED` take no parameters and stand
//! alone, outside a transaction block: they go as simple queries, with the name as a literal.

use std::time::Duration;

use sqlx::{AssertSqlSafe, PgConnection, PgPool, Row};

use super::super::gid::quoted;
use super::super::{Decision, Prefix};
use crate::lease::{HungUp, Line, Route};
use crate::transaction::{self, Transaction};

/// There is no such prepared transaction.
const GONE: &str = "42704";
/// Prepared transactions are turned off, among other things that this code can mean.
const NOT_READY: &str = "55000";

/// A branch that is prepared.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    pub(crate) gid: String,
    /// The role that prepared it.
    pub(crate) owner: String,
    /// Whether we may end it: we have that role, or are a superuser.
    pub(crate) is_ours: bool,
    /// How long ago it was, by the clock of its database.
    pub(crate) age: Duration,
}

/// What became of a prepared transaction, when its database was told how it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Told {
    /// It has ended so.
    Done,
    /// It had been rolled back before, though the decision was to commit.
    RolledBack,
    /// It is gone and has not ended yet: somebody else is at it.
    Busy,
}

/// Prepares, and says which number the transaction has. The session is free afterwards.
///
/// One message. Asking for the number fails in a transaction that a failed statement has doomed,
/// where `PREPARE TRANSACTION` alone would roll back and report success. The `BEGIN` at the end is
/// for the driver, which rolls back once more when it takes the connection back.
pub(crate) async fn prepare(mut tx: Transaction, gid: &str) -> sqlx::Result<String> {
    let sql = format!(
        "SELECT pg_current_xact_id()::text; PREPARE TRANSACTION {}; BEGIN",
        quoted(gid)
    );
    // All of the answer: a refusal comes after the first row.
    let rows = sqlx::raw_sql(AssertSqlSafe(sql))
        .fetch_all(&mut *tx)
        .await?;
    rows.first().ok_or(sqlx::Error::RowNotFound)?.try_get(0)
}

/// Ends a prepared transaction as decided. `xid`, if it is known, tells of one that is gone how it
/// ended.
pub(crate) async fn finish(
    pool: &PgPool,
    gid: &str,
    decision: Decision,
    xid: Option<&str>,
) -> sqlx::Result<Told> {
    let verb = match decision {
        Decision::Commit => "COMMIT",
        Decision::Abort => "ROLLBACK",
    };
    let sql = format!("{verb} PREPARED {}", quoted(gid));
    // Whoever gives up waiting must not leave the answer to the next who uses the connection.
    let mut line = HungUp::unless_closed(Line::open(pool, Route::Direct).await?);
    let told = sqlx::raw_sql(AssertSqlSafe(sql))
        .execute(line.connection())
        .await;
    let gone = match &told {
        Ok(_) => false,
        Err(error) if has_code(error, GONE) => true,
        Err(_) => return told.map(|_| Told::Done),
    };
    line.close().await?;
    match xid {
        Some(xid) if gone && decision == Decision::Commit => outcome(pool, xid).await,
        _ => Ok(Told::Done),
    }
}

/// How a transaction that is not prepared any more has ended. On a server that has lost it, in a
/// failover, the number may be another's: synchronous replication is required.
async fn outcome(pool: &PgPool, xid: &str) -> sqlx::Result<Told> {
    let mut tx = transaction::begin(pool).await?;
    let status: Option<String> = sqlx::query_scalar("SELECT pg_xact_status($1::text::xid8)")
        .bind(xid)
        .fetch_one(&mut *tx)
        .await?;
    Ok(match status.as_deref() {
        Some("aborted") => Told::RolledBack,
        Some("in progress") => Told::Busy,
        // None: so long ago that PostgreSQL has forgotten. It was prepared, and only the decision
        // ends what is prepared.
        _ => Told::Done,
    })
}

/// The branches of one log that are prepared in this database, the oldest first.
pub(crate) async fn prepared(pool: &PgPool, prefix: &Prefix) -> sqlx::Result<Vec<Found>> {
    let mut tx = transaction::begin(pool).await?;
    let rows: Vec<(String, String, bool, f64)> = sqlx::query_as(
        "SELECT gid, coalesce(owner::text, 'a role that is gone'),
             coalesce(owner = current_user, false)
                 OR (SELECT rolsuper FROM pg_catalog.pg_roles WHERE rolname = current_user),
             extract(EPOCH FROM clock_timestamp() - prepared)::float8
         FROM pg_catalog.pg_prepared_xacts
         WHERE database = current_database() AND starts_with(gid, $1)
         ORDER BY prepared",
    )
    .bind(prefix.as_str())
    .fetch_all(&mut *tx)
    .await?;
    let found = |(gid, owner, is_ours, age)| Found {
        gid,
        owner,
        is_ours,
        age: Duration::try_from_secs_f64(age).unwrap_or_default(),
    };
    Ok(rows.into_iter().map(found).collect())
}

/// How many transactions may be prepared at a time in this server.
pub(crate) async fn room(pool: &PgPool) -> sqlx::Result<i64> {
    let mut tx = transaction::begin(pool).await?;
    sqlx::query_scalar("SELECT current_setting('max_prepared_transactions')::bigint")
        .fetch_one(&mut *tx)
        .await
}

/// Whether a branch in the coordinator's own database sees what others commit meanwhile.
pub(crate) async fn is_read_committed(connection: &mut PgConnection) -> sqlx::Result<bool> {
    sqlx::query_scalar("SELECT current_setting('transaction_isolation') = 'read committed'")
        .fetch_one(connection)
        .await
}

/// Whether the server refused because prepared transactions are turned off.
pub(crate) fn is_disabled(error: &sqlx::Error) -> bool {
    has_code(error, NOT_READY)
}

/// Whether the server has answered, and refused: then nothing has happened.
pub(crate) fn is_refusal(error: &sqlx::Error) -> bool {
    // A session that is ended by an administrator or a shutdown says so, too, at any moment.
    let code = error.as_database_error().and_then(|error| error.code());
    code.is_some_and(|code| !code.starts_with("57P") && !code.starts_with("08"))
}

fn has_code(error: &sqlx::Error, wanted: &str) -> bool {
    let code = error.as_database_error().and_then(|error| error.code());
    code.as_deref() == Some(wanted)
}
