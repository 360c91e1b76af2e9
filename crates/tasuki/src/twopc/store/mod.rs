//! The log: who was to take part, what was decided, who has confirmed.

pub(super) mod session;
mod sql;

use std::collections::HashMap;
use std::time::Duration;

use sqlx::types::Json;
use sqlx::{AssertSqlSafe, FromRow, PgConnection};
use uuid::Uuid;

use super::ledger::{Audit, Listed, Resolution};
use super::{Branches, Decision, TransactionId};
use crate::Schema;
use crate::lease::{Fence, Leases, Letter, Owner, Table};

/// The live rows, for the lease engine. No row of it ever dies.
const TABLE: Table = Table {
    name: "twopc_transactions",
    key: "transaction_id",
    claimed: "PROCESSING",
    columns: "t.name, t.decision, t.branches",
    with: "",
    pick: "SELECT t.ctid FROM {table} AS t WHERE {claimable}
    ORDER BY t.next_retry_at LIMIT $1 FOR UPDATE SKIP LOCKED",
    letter: Letter {
        queue: "name",
        kind: "'twopc'",
        payload: "convert_to(branches::text, 'UTF8')",
    },
    lost: None,
};

/// A claimed row.
#[derive(Debug, FromRow)]
pub struct Row {
    pub(super) name: String,
    pub(super) decision: Option<String>,
    pub(super) branches: Json<Branches>,
}

/// A transaction to be written down, by its coordinator.
pub(super) struct Opening<'a> {
    pub(super) fence: Fence,
    pub(super) name: &'a str,
    pub(super) branches: &'a Branches,
    pub(super) owner: &'a Owner,
    pub(super) lease: Duration,
}

/// Who acts, and why.
#[derive(Clone, Copy, Debug)]
pub(super) struct Said<'a> {
    pub(super) actor: &'a str,
    pub(super) reason: &'a str,
}

/// What the log knows of a branch that was found prepared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Known {
    /// Its transaction waits for it: the coordinator or the recovery ends it.
    Open,
    /// Nobody waits for it. It ends like this.
    Over(Decision),
}

/// The statements of one schema.
#[derive(Debug)]
pub(super) struct Store {
    pub(super) leases: Leases,
    log: String,
    open: String,
    commit: String,
    abort: String,
    standing: String,
    record: String,
    finish: String,
    known: String,
    list_open: String,
    list_finished: String,
    show: String,
    trail: String,
    lock: String,
    resolve: String,
    audit: String,
}

impl Store {
    pub(super) fn new(schema: &Schema) -> Self {
        let render = |sql: &str| {
            let sql = sql
                .replace("{open}", sql::OPEN_COLUMNS)
                .replace("{finished}", sql::FINISHED_COLUMNS);
            schema.render(&sql)
        };
        Self {
            leases: Leases::new(schema, &TABLE),
            log: render(sql::LOG),
            open: render(sql::OPEN),
            commit: render(sql::COMMIT),
            abort: render(sql::ABORT),
            standing: render(sql::STANDING),
            record: render(sql::RECORD),
            finish: render(sql::FINISH),
            known: render(sql::KNOWN),
            list_open: render(sql::LIST_OPEN),
            list_finished: render(sql::LIST_FINISHED),
            show: render(sql::SHOW),
            trail: render(sql::TRAIL),
            lock: render(sql::LOCK),
            resolve: render(sql::RESOLVE),
            audit: render(sql::AUDIT),
        }
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &str> {
        let own = [
            &self.log,
            &self.open,
            &self.commit,
            &self.abort,
            &self.standing,
            &self.record,
            &self.finish,
            &self.known,
            &self.list_open,
            &self.list_finished,
            &self.show,
            &self.trail,
            &self.lock,
            &self.resolve,
            &self.audit,
        ];
        own.into_iter()
            .map(String::as_str)
            .chain(self.leases.statements())
    }

    /// Which log this is.
    pub(super) async fn log(&self, connection: &mut PgConnection) -> sqlx::Result<Uuid> {
        sqlx::query_scalar(AssertSqlSafe(&*self.log))
            .fetch_one(connection)
            .await
    }

    pub(super) async fn open(
        &self,
        connection: &mut PgConnection,
        opening: &Opening<'_>,
    ) -> sqlx::Result<()> {
        sqlx::query(AssertSqlSafe(&*self.open))
            .bind(opening.fence.id)
            .bind(opening.name)
            .bind(Json(opening.branches))
            .bind(opening.owner.as_str())
            .bind(opening.lease.as_secs_f64())
            .bind(opening.fence.token)
            .execute(connection)
            .await?;
        Ok(())
    }

    /// Decides to commit, unless it is decided already. Says whether it did.
    pub(super) async fn commit(
        &self,
        connection: &mut PgConnection,
        fence: Fence,
        branches: &Branches,
        lease: Duration,
    ) -> sqlx::Result<bool> {
        let done = sqlx::query(AssertSqlSafe(&*self.commit))
            .bind(fence.id)
            .bind(Json(branches))
            .bind(fence.token)
            .bind(lease.as_secs_f64())
            .execute(connection)
            .await?;
        Ok(done.rows_affected() == 1)
    }

    /// Decides to abort, unless it is decided already. The branches, if it did.
    pub(super) async fn abort(
        &self,
        connection: &mut PgConnection,
        id: Uuid,
    ) -> sqlx::Result<Option<Branches>> {
        let branches: Option<Json<Branches>> = sqlx::query_scalar(AssertSqlSafe(&*self.abort))
            .bind(id)
            .fetch_optional(connection)
            .await?;
        Ok(branches.map(|branches| branches.0))
    }

    /// What was decided, if it was. A statement of its own after [`abort`](Self::abort): what that
    /// one waited for, only a later look sees.
    pub(super) async fn standing(
        &self,
        connection: &mut PgConnection,
        id: Uuid,
    ) -> sqlx::Result<Option<(Decision, Branches)>> {
        let row: Option<(Option<String>, Json<Branches>)> =
            sqlx::query_as(AssertSqlSafe(&*self.standing))
                .bind(id)
                .fetch_optional(connection)
                .await?;
        let Some((Some(decision), branches)) = row else {
            return Ok(None);
        };
        Ok(Some((Decision::read(&decision)?, branches.0)))
    }

    pub(super) async fn record(
        &self,
        connection: &mut PgConnection,
        fence: Fence,
        told: &Branches,
    ) -> sqlx::Result<()> {
        sqlx::query(AssertSqlSafe(&*self.record))
            .bind(fence.id)
            .bind(fence.token)
            .bind(Json(told))
            .execute(connection)
            .await?;
        Ok(())
    }

    /// Moves transactions that every participant has confirmed to the finished ones. Answers those
    /// whose claim still held.
    pub(super) async fn finish(
        &self,
        connection: &mut PgConnection,
        done: &[(Fence, Branches)],
    ) -> sqlx::Result<Vec<Uuid>> {
        let fences: Vec<Fence> = done.iter().map(|(fence, _)| *fence).collect();
        let (ids, tokens) = crate::lease::split(&fences);
        let told: Vec<Json<&Branches>> = done.iter().map(|(_, told)| Json(told)).collect();
        sqlx::query_scalar(AssertSqlSafe(&*self.finish))
            .bind(ids)
            .bind(tokens)
            .bind(told)
            .fetch_all(connection)
            .await
    }

    /// What is known of branches, by their names.
    pub(super) async fn known(
        &self,
        connection: &mut PgConnection,
        (ids, gids): (&[Uuid], &[&str]),
    ) -> sqlx::Result<HashMap<String, Known>> {
        let rows: Vec<(String, Option<String>)> = sqlx::query_as(AssertSqlSafe(&*self.known))
            .bind(ids)
            .bind(gids)
            .fetch_all(connection)
            .await?;
        let mut known = HashMap::with_capacity(rows.len());
        for (gid, decision) in rows {
            let word = match decision {
                Some(decision) => Known::Over(Decision::read(&decision)?),
                None => Known::Open,
            };
            known.insert(gid, word);
        }
        Ok(known)
    }

    pub(super) async fn list(
        &self,
        connection: &mut PgConnection,
        which: Listed,
        after: Option<TransactionId>,
        limit: u32,
    ) -> sqlx::Result<Vec<super::Record>> {
        let statement = match which {
            Listed::Open => &self.list_open,
            Listed::Finished => &self.list_finished,
        };
        sqlx::query_as(AssertSqlSafe(&**statement))
            .bind(after)
            .bind(i64::from(limit))
            .fetch_all(connection)
            .await
    }

    pub(super) async fn show(
        &self,
        connection: &mut PgConnection,
        id: TransactionId,
    ) -> sqlx::Result<Option<super::Record>> {
        sqlx::query_as(AssertSqlSafe(&*self.show))
            .bind(id)
            .fetch_optional(connection)
            .await
    }

    pub(super) async fn trail(
        &self,
        connection: &mut PgConnection,
        id: TransactionId,
    ) -> sqlx::Result<Vec<Audit>> {
        sqlx::query_as(AssertSqlSafe(&*self.trail))
            .bind(id)
            .fetch_all(connection)
            .await
    }

    /// Locks an open transaction and says how it stands.
    pub(super) async fn lock(
        &self,
        connection: &mut PgConnection,
        id: TransactionId,
    ) -> sqlx::Result<Option<(Option<Decision>, Branches)>> {
        let row: Option<(Option<String>, Json<Branches>)> =
            sqlx::query_as(AssertSqlSafe(&*self.lock))
                .bind(id)
                .fetch_optional(connection)
                .await?;
        let Some((decision, branches)) = row else {
            return Ok(None);
        };
        let decision = decision.as_deref().map(Decision::read).transpose()?;
        Ok(Some((decision, branches.0)))
    }

    /// Does what a person said to a transaction that is locked, and writes down who it was.
    pub(super) async fn resolve(
        &self,
        connection: &mut PgConnection,
        id: TransactionId,
        (decision, branches): (Decision, &Branches),
        resolution: &Resolution,
        said: Said<'_>,
    ) -> sqlx::Result<()> {
        sqlx::query(AssertSqlSafe(&*self.resolve))
            .bind(id)
            .bind(decision.as_str())
            .bind(Json(branches))
            .execute(&mut *connection)
            .await?;
        sqlx::query(AssertSqlSafe(&*self.audit))
            .bind(id)
            .bind(resolution.as_str())
            .bind(resolution.participant())
            .bind(said.actor)
            .bind(said.reason)
            .execute(connection)
            .await?;
        Ok(())
    }
}
