//! Where one consumer of a log is, and what it could not handle.

use std::time::Duration;

use sqlx::postgres::{PgArguments, PgRow, Postgres};
use sqlx::query::Query;
use sqlx::{AssertSqlSafe, FromRow, PgConnection, Row};
use uuid::Uuid;

use super::offset_sql as sql;

/// The statements for the consumers of one log.
#[derive(Debug)]
pub(in crate::seqlog) struct Offsets {
    stand: String,
    of_another: String,
    renew: String,
    leave: String,
    advance: String,
    careful: String,
    attempt: String,
    undo_attempt: String,
    retry: String,
    set_aside: String,
    too_far: String,
    begin_rebuild: String,
    rebuilt: String,
    note: String,
    redriven: String,
    redrive_attempt: String,
    redrive_done: String,
    redrive_retry: String,
    redrive_dead: String,
}

/// What an instance of a consumer says of itself.
#[derive(Clone, Copy, Debug)]
pub(in crate::seqlog) struct Instance<'a> {
    pub(in crate::seqlog) consumer: &'a str,
    pub(in crate::seqlog) owner: &'a str,
    pub(in crate::seqlog) holder: Uuid,
    pub(in crate::seqlog) lease: Duration,
    /// Where the consumer begins, if there is none.
    pub(in crate::seqlog) at_the_end: bool,
    /// Rows of a batch.
    pub(in crate::seqlog) batch: u32,
    /// Whether the consumer is made if there is none.
    pub(in crate::seqlog) may_make: bool,
}

/// A consumer as its active instance finds it.
#[derive(Clone, Debug, PartialEq, FromRow)]
pub(in crate::seqlog) struct Found {
    pub(in crate::seqlog) state: String,
    pub(in crate::seqlog) epoch: i64,
    pub(in crate::seqlog) last_seq: i64,
    pub(in crate::seqlog) careful_until: i64,
    pub(in crate::seqlog) retry_seconds: f64,
    pub(in crate::seqlog) head: i64,
    pub(in crate::seqlog) is_redriven: bool,
}

/// What every word about a consumer must show: the instance, and the offset that it knows.
#[derive(Clone, Copy, Debug)]
pub(in crate::seqlog) struct Fence<'a> {
    pub(in crate::seqlog) consumer: &'a str,
    pub(in crate::seqlog) epoch: i64,
    pub(in crate::seqlog) last_seq: i64,
}

/// A row that was put back.
#[derive(Debug)]
pub(in crate::seqlog) struct Redriven {
    pub(in crate::seqlog) id: Uuid,
    pub(in crate::seqlog) row: PgRow,
}

type Statement<'q> = Query<'q, Postgres, PgArguments>;

impl Offsets {
    pub(super) fn new(render: impl Fn(&str) -> String) -> Self {
        Self {
            stand: render(sql::STAND),
            of_another: render(sql::OF_ANOTHER),
            renew: render(sql::RENEW),
            leave: render(sql::LEAVE),
            advance: render(sql::ADVANCE),
            careful: render(sql::CAREFUL),
            attempt: render(sql::ATTEMPT),
            undo_attempt: render(sql::UNDO_ATTEMPT),
            retry: render(sql::RETRY),
            set_aside: render(sql::SET_ASIDE),
            too_far: render(sql::TOO_FAR),
            begin_rebuild: render(sql::BEGIN_REBUILD),
            rebuilt: render(sql::REBUILT),
            note: render(sql::NOTE),
            redriven: render(sql::REDRIVEN),
            redrive_attempt: render(sql::REDRIVE_ATTEMPT),
            redrive_done: render(sql::REDRIVE_DONE),
            redrive_retry: render(sql::REDRIVE_RETRY),
            redrive_dead: render(sql::REDRIVE_DEAD),
        }
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &str> {
        let all = [
            &self.stand,
            &self.of_another,
            &self.renew,
            &self.leave,
            &self.advance,
            &self.careful,
            &self.attempt,
            &self.undo_attempt,
            &self.retry,
            &self.set_aside,
            &self.too_far,
            &self.begin_rebuild,
            &self.rebuilt,
            &self.note,
            &self.redriven,
            &self.redrive_attempt,
            &self.redrive_done,
            &self.redrive_retry,
            &self.redrive_dead,
        ];
        all.into_iter().map(String::as_str)
    }

    /// The consumer, if this instance is the active one now.
    pub(in crate::seqlog) async fn stand(
        &self,
        connection: &mut PgConnection,
        instance: &Instance<'_>,
    ) -> sqlx::Result<Option<Found>> {
        sqlx::query_as(AssertSqlSafe(&*self.stand))
            .bind(instance.consumer)
            .bind(instance.at_the_end)
            .bind(instance.owner)
            .bind(instance.holder)
            .bind(instance.lease.as_secs_f64())
            .bind(i64::from(instance.batch))
            .bind(instance.may_make)
            .fetch_optional(connection)
            .await
    }

    /// The log that a consumer of this name follows, if it is another one.
    pub(in crate::seqlog) async fn of_another(
        &self,
        connection: &mut PgConnection,
        consumer: &str,
    ) -> sqlx::Result<Option<String>> {
        sqlx::query_scalar(AssertSqlSafe(&*self.of_another))
            .bind(consumer)
            .fetch_optional(connection)
            .await
    }

    /// Renews the lease. Where the consumer is, and in which state; `None` when another instance is
    /// the active one.
    pub(in crate::seqlog) async fn renew(
        &self,
        connection: &mut PgConnection,
        fence: Fence<'_>,
        lease: Duration,
    ) -> sqlx::Result<Option<(i64, String)>> {
        sqlx::query_as(AssertSqlSafe(&*self.renew))
            .bind(fence.consumer)
            .bind(fence.epoch)
            .bind(lease.as_secs_f64())
            .fetch_optional(connection)
            .await
    }

    pub(in crate::seqlog) async fn leave(
        &self,
        connection: &mut PgConnection,
        consumer: &str,
        epoch: i64,
    ) -> sqlx::Result<()> {
        sqlx::query(AssertSqlSafe(&*self.leave))
            .bind(consumer)
            .bind(epoch)
            .execute(connection)
            .await?;
        Ok(())
    }

    /// Moves the offset to `to`. Says whether it did: not if the consumer was taken over or moved.
    pub(in crate::seqlog) async fn advance(
        &self,
        connection: &mut PgConnection,
        fence: Fence<'_>,
        to: i64,
        lease: Duration,
    ) -> sqlx::Result<bool> {
        let advance = fenced(&self.advance, fence).bind(to);
        moves(connection, advance.bind(lease.as_secs_f64())).await
    }

    /// From now on one by one, up to `until`.
    pub(in crate::seqlog) async fn careful(
        &self,
        connection: &mut PgConnection,
        fence: Fence<'_>,
        until: i64,
        error: &str,
    ) -> sqlx::Result<bool> {
        let careful = fenced(&self.careful, fence).bind(until);
        changes(connection, careful.bind(error)).await
    }

    /// Which attempt at the next row this is; `None` when it is not ours to make.
    pub(in crate::seqlog) async fn attempt(
        &self,
        connection: &mut PgConnection,
        fence: Fence<'_>,
    ) -> sqlx::Result<Option<u32>> {
        let attempt = fenced(&self.attempt, fence);
        let row = attempt.fetch_optional(connection).await?;
        row.map(|row| attempts(&row, "attempts")).transpose()
    }

    pub(in crate::seqlog) async fn undo_attempt(
        &self,
        connection: &mut PgConnection,
        fence: Fence<'_>,
        error: &str,
    ) -> sqlx::Result<bool> {
        changes(connection, fenced(&self.undo_attempt, fence).bind(error)).await
    }

    pub(in crate::seqlog) async fn retry(
        &self,
        connection: &mut PgConnection,
        fence: Fence<'_>,
        after: Duration,
        error: &str,
    ) -> sqlx::Result<bool> {
        let retry = fenced(&self.retry, fence).bind(after.as_secs_f64());
        changes(connection, retry.bind(error)).await
    }

    /// Moves past the next row, and keeps it. Says whether it did: not if it is gone either.
    pub(in crate::seqlog) async fn set_aside(
        &self,
        connection: &mut PgConnection,
        fence: Fence<'_>,
        lease: Duration,
        (attempts, error): (u32, &str),
    ) -> sqlx::Result<bool> {
        let set_aside = fenced(&self.set_aside, fence)
            .bind(lease.as_secs_f64())
            .bind(i32::try_from(attempts).unwrap_or(i32::MAX))
            .bind(error);
        moves(connection, set_aside).await
    }

    pub(in crate::seqlog) async fn too_far(
        &self,
        connection: &mut PgConnection,
        fence: Fence<'_>,
        error: &str,
    ) -> sqlx::Result<bool> {
        changes(connection, fenced(&self.too_far, fence).bind(error)).await
    }

    /// The number of a new attempt at a rebuild; `None` when it is not ours to make.
    pub(in crate::seqlog) async fn begin_rebuild(
        &self,
        connection: &mut PgConnection,
        fence: Fence<'_>,
        lease: Duration,
    ) -> sqlx::Result<Option<i64>> {
        sqlx::query_scalar(AssertSqlSafe(&*self.begin_rebuild))
            .bind(fence.consumer)
            .bind(fence.epoch)
            .bind(lease.as_secs_f64())
            .fetch_optional(connection)
            .await
    }

    /// The store of `attempt`, which is complete up to `seq`, is the one that holds. Says whether it is.
    pub(in crate::seqlog) async fn rebuilt(
        &self,
        connection: &mut PgConnection,
        fence: Fence<'_>,
        (attempt, seq): (i64, i64),
        lease: Duration,
    ) -> sqlx::Result<bool> {
        let rebuilt = sqlx::query(AssertSqlSafe(&*self.rebuilt))
            .bind(fence.consumer)
            .bind(fence.epoch)
            .bind(seq)
            .bind(lease.as_secs_f64())
            .bind(attempt);
        moves(connection, rebuilt).await
    }

    pub(in crate::seqlog) async fn note(
        &self,
        connection: &mut PgConnection,
        fence: Fence<'_>,
        error: &str,
    ) -> sqlx::Result<bool> {
        let note = sqlx::query(AssertSqlSafe(&*self.note))
            .bind(fence.consumer)
            .bind(fence.epoch)
            .bind(error);
        changes(connection, note).await
    }

    /// The first row that was put back and is due.
    pub(in crate::seqlog) async fn redriven(
        &self,
        connection: &mut PgConnection,
        consumer: &str,
    ) -> sqlx::Result<Option<Redriven>> {
        let row = sqlx::query(AssertSqlSafe(&*self.redriven))
            .bind(consumer)
            .fetch_optional(connection)
            .await?;
        row.map(|row| {
            let id = row.try_get("set_aside_id")?;
            Ok(Redriven { id, row })
        })
        .transpose()
    }

    pub(in crate::seqlog) async fn redrive_attempt(
        &self,
        connection: &mut PgConnection,
        fence: Fence<'_>,
        id: Uuid,
    ) -> sqlx::Result<Option<u32>> {
        let row = about(&self.redrive_attempt, fence, id)
            .fetch_optional(connection)
            .await?;
        row.map(|row| attempts(&row, "attempt_count")).transpose()
    }

    pub(in crate::seqlog) async fn redrive_done(
        &self,
        connection: &mut PgConnection,
        fence: Fence<'_>,
        id: Uuid,
        lease: Duration,
    ) -> sqlx::Result<bool> {
        let done = about(&self.redrive_done, fence, id).bind(lease.as_secs_f64());
        changes(connection, done).await
    }

    pub(in crate::seqlog) async fn redrive_retry(
        &self,
        connection: &mut PgConnection,
        fence: Fence<'_>,
        id: Uuid,
        (attempts, error): (u32, &str),
        after: Duration,
    ) -> sqlx::Result<bool> {
        let retry = about(&self.redrive_retry, fence, id)
            .bind(i32::try_from(attempts).unwrap_or(i32::MAX))
            .bind(error)
            .bind(after.as_secs_f64());
        changes(connection, retry).await
    }

    pub(in crate::seqlog) async fn redrive_dead(
        &self,
        connection: &mut PgConnection,
        fence: Fence<'_>,
        id: Uuid,
        (attempts, error): (u32, &str),
    ) -> sqlx::Result<bool> {
        let dead = about(&self.redrive_dead, fence, id)
            .bind(i32::try_from(attempts).unwrap_or(i32::MAX))
            .bind(error);
        changes(connection, dead).await
    }
}

fn fenced<'q>(sql: &'q str, fence: Fence<'q>) -> Statement<'q> {
    sqlx::query(AssertSqlSafe(sql))
        .bind(fence.consumer)
        .bind(fence.epoch)
        .bind(fence.last_seq)
}

fn about<'q>(sql: &'q str, fence: Fence<'q>, id: Uuid) -> Statement<'q> {
    sqlx::query(AssertSqlSafe(sql))
        .bind(fence.consumer)
        .bind(fence.epoch)
        .bind(id)
}

async fn changes(connection: &mut PgConnection, statement: Statement<'_>) -> sqlx::Result<bool> {
    let done = statement.execute(connection).await?;
    Ok(done.rows_affected() == 1)
}

async fn moves(connection: &mut PgConnection, statement: Statement<'_>) -> sqlx::Result<bool> {
    let moved: i64 = statement.fetch_one(connection).await?.try_get("moved")?;
    Ok(moved == 1)
}

fn attempts(row: &PgRow, column: &str) -> sqlx::Result<u32> {
    let attempts: i32 = row.try_get(column)?;
    Ok(u32::try_from(attempts).unwrap_or(0))
}
