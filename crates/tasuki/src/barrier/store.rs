//! The statements of barriers and semantic locks.
//!
//! Whoever meets a row that another transaction has just written waits for that to end: that is
//! what a unique key does, and all the locking that there is.

use std::time::Duration;

use sqlx::{AssertSqlSafe, PgConnection};
use time::OffsetDateTime;
use uuid::Uuid;

use super::{Hold, Key, State};
use crate::Schema;

/// More than a database's calendar could subtract is "for ever".
const LONGEST: Duration = Duration::from_secs(1000 * 365 * 24 * 60 * 60);

/// Rendered for one schema.
#[derive(Debug)]
pub(super) struct Statements {
    action: String,
    compensation: String,
    state: String,
}

impl Statements {
    pub(super) fn new(schema: &Schema) -> Self {
        Self {
            action: schema.render(
                "INSERT INTO {schema}.barriers (saga_id, step, state)
                 VALUES ($1, $2, 'ACTED')
                 ON CONFLICT (saga_id, step) DO NOTHING",
            ),
            // One statement, whoever is first: with the action's row it is an undoing, without
            // one it takes the action's place. A row that is not the action's stays as it is, and
            // nothing is returned.
            compensation: schema.render(
                "INSERT INTO {schema}.barriers AS b (saga_id, step, state)
                 VALUES ($1, $2, 'EMPTY')
                 ON CONFLICT (saga_id, step) DO UPDATE
                 SET state = 'COMPENSATED', changed_at = now()
                 WHERE b.state = 'ACTED'
                 RETURNING state",
            ),
            state: schema
                .render("SELECT state FROM {schema}.barriers WHERE saga_id = $1 AND step = $2"),
        }
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &str> {
        let all = [&self.action, &self.compensation, &self.state];
        all.into_iter().map(String::as_str)
    }
}

/// Whether this is the first that there is of the step.
pub(super) async fn action(
    tx: &mut PgConnection,
    statements: &Statements,
    key: &Key,
) -> sqlx::Result<bool> {
    let done = sqlx::query(AssertSqlSafe(statements.action.as_str()))
        .bind(key.saga)
        .bind(&key.step)
        .execute(tx)
        .await?;
    Ok(done.rows_affected() == 1)
}

/// What the step has become by this; `None` if it was compensated before.
pub(super) async fn compensation(
    tx: &mut PgConnection,
    statements: &Statements,
    key: &Key,
) -> sqlx::Result<Option<State>> {
    one_state(tx, &statements.compensation, key).await
}

/// What the step is.
pub(super) async fn state(
    tx: &mut PgConnection,
    statements: &Statements,
    key: &Key,
) -> sqlx::Result<Option<State>> {
    one_state(tx, &statements.state, key).await
}

async fn one_state(tx: &mut PgConnection, sql: &str, key: &Key) -> sqlx::Result<Option<State>> {
    let state: Option<String> = sqlx::query_scalar(AssertSqlSafe(sql))
        .bind(key.saga)
        .bind(&key.step)
        .fetch_optional(tx)
        .await?;
    state.as_deref().map(State::read).transpose()
}

impl State {
    fn read(text: &str) -> sqlx::Result<Self> {
        match text {
            "ACTED" => Ok(Self::Acted),
            "COMPENSATED" => Ok(Self::Compensated),
            "EMPTY" => Ok(Self::Empty),
            other => Err(sqlx::Error::Decode(
                format!("a barrier has the state {other}, which this release does not know").into(),
            )),
        }
    }
}

/// Those of the semantic locks, rendered for one schema.
#[derive(Debug)]
pub(super) struct LockStatements {
    take: String,
    release: String,
    release_all: String,
    holder: String,
    held: String,
}

impl LockStatements {
    pub(super) fn new(schema: &Schema) -> Self {
        Self {
            take: schema.render(
                "INSERT INTO {schema}.semantic_locks (resource, owner_id)
                 VALUES ($1, $2)
                 ON CONFLICT (resource) DO NOTHING",
            ),
            release: schema.render(
                "DELETE FROM {schema}.semantic_locks WHERE resource = $1 AND owner_id = $2",
            ),
            release_all: schema.render("DELETE FROM {schema}.semantic_locks WHERE owner_id = $1"),
            holder: schema.render(
                "SELECT resource, owner_id, taken_at
                 FROM {schema}.semantic_locks
                 WHERE resource = $1",
            ),
            held: schema.render(
                "SELECT resource, owner_id, taken_at
                 FROM {schema}.semantic_locks
                 WHERE taken_at <= now() - make_interval(secs => $1)
                 ORDER BY taken_at, resource
                 LIMIT $2",
            ),
        }
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &str> {
        let all = [
            &self.take,
            &self.release,
            &self.release_all,
            &self.holder,
            &self.held,
        ];
        all.into_iter().map(String::as_str)
    }
}

/// Whether nobody had it.
pub(super) async fn take(
    tx: &mut PgConnection,
    statements: &LockStatements,
    resource: &str,
    owner: Uuid,
) -> sqlx::Result<bool> {
    let done = sqlx::query(AssertSqlSafe(statements.take.as_str()))
        .bind(resource)
        .bind(owner)
        .execute(tx)
        .await?;
    Ok(done.rows_affected() == 1)
}

/// Whether it was this owner's.
pub(super) async fn release(
    tx: &mut PgConnection,
    statements: &LockStatements,
    resource: &str,
    owner: Uuid,
) -> sqlx::Result<bool> {
    let done = sqlx::query(AssertSqlSafe(statements.release.as_str()))
        .bind(resource)
        .bind(owner)
        .execute(tx)
        .await?;
    Ok(done.rows_affected() == 1)
}

/// How many there were.
pub(super) async fn release_all(
    tx: &mut PgConnection,
    statements: &LockStatements,
    owner: Uuid,
) -> sqlx::Result<u64> {
    let done = sqlx::query(AssertSqlSafe(statements.release_all.as_str()))
        .bind(owner)
        .execute(tx)
        .await?;
    Ok(done.rows_affected())
}

pub(super) async fn holder(
    connection: &mut PgConnection,
    statements: &LockStatements,
    resource: &str,
) -> sqlx::Result<Option<Hold>> {
    let row: Option<(String, Uuid, OffsetDateTime)> =
        sqlx::query_as(AssertSqlSafe(statements.holder.as_str()))
            .bind(resource)
            .fetch_optional(connection)
            .await?;
    Ok(row.map(hold))
}

/// The oldest first.
pub(super) async fn held(
    connection: &mut PgConnection,
    statements: &LockStatements,
    for_longer_than: Duration,
    limit: u32,
) -> sqlx::Result<Vec<Hold>> {
    let rows: Vec<(String, Uuid, OffsetDateTime)> =
        sqlx::query_as(AssertSqlSafe(statements.held.as_str()))
            .bind(for_longer_than.min(LONGEST).as_secs_f64())
            .bind(i64::from(limit))
            .fetch_all(connection)
            .await?;
    Ok(rows.into_iter().map(hold).collect())
}

fn hold((resource, owner, since): (String, Uuid, OffsetDateTime)) -> Hold {
    Hold {
        resource,
        owner,
        since,
    }
}
