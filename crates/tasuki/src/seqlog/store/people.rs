//! What people see of consumers, and what they may change.

use sqlx::{AssertSqlSafe, PgConnection};

use super::{offset_sql, people_sql as sql};
use crate::Schema;
use crate::seqlog::consumers::{Audit, Consumer, LogState, SetAside};

/// The statements of one schema.
#[derive(Debug)]
pub(in crate::seqlog) struct People {
    list: String,
    show: String,
    set_aside: String,
    trail: String,
    logs: String,
    lock: String,
    replay: String,
    rebuild: String,
    forget: String,
    audit: String,
    begin_at: String,
    replace: String,
    handled: String,
    inherit: String,
    bounds: String,
}

/// What was done to a consumer, by whom and why.
#[derive(Clone, Copy, Debug)]
pub(in crate::seqlog) struct Act<'a> {
    pub(in crate::seqlog) consumer: &'a str,
    pub(in crate::seqlog) action: &'static str,
    pub(in crate::seqlog) from: i64,
    pub(in crate::seqlog) to: Option<i64>,
    pub(in crate::seqlog) actor: &'a str,
    pub(in crate::seqlog) reason: &'a str,
}

impl People {
    pub(in crate::seqlog) fn new(schema: &Schema) -> Self {
        let render = |text: &str| {
            let text = text.replace("{consumer}", sql::COLUMNS);
            schema.render(&text.replace("{closed}", offset_sql::CLOSED))
        };
        Self {
            list: render(sql::LIST),
            show: render(sql::SHOW),
            set_aside: render(sql::SET_ASIDE),
            trail: render(sql::TRAIL),
            logs: render(sql::LOGS),
            lock: render(sql::LOCK),
            replay: render(sql::REPLAY),
            rebuild: render(sql::REBUILD),
            forget: render(sql::FORGET),
            audit: render(sql::AUDIT),
            begin_at: render(sql::BEGIN_AT),
            replace: render(sql::REPLACE),
            handled: render(sql::HANDLED),
            inherit: render(sql::INHERIT),
            bounds: render(sql::BOUNDS),
        }
    }

    pub(in crate::seqlog) fn all(&self) -> impl Iterator<Item = &str> {
        let all = [
            &self.list,
            &self.show,
            &self.set_aside,
            &self.trail,
            &self.logs,
            &self.lock,
            &self.replay,
            &self.rebuild,
            &self.forget,
            &self.audit,
            &self.begin_at,
            &self.replace,
            &self.handled,
            &self.inherit,
            &self.bounds,
        ];
        all.into_iter().map(String::as_str)
    }

    pub(in crate::seqlog) async fn list(
        &self,
        connection: &mut PgConnection,
    ) -> sqlx::Result<Vec<Consumer>> {
        sqlx::query_as(AssertSqlSafe(&*self.list))
            .fetch_all(connection)
            .await
    }

    pub(in crate::seqlog) async fn show(
        &self,
        connection: &mut PgConnection,
        consumer: &str,
    ) -> sqlx::Result<Option<Consumer>> {
        sqlx::query_as(AssertSqlSafe(&*self.show))
            .bind(consumer)
            .fetch_optional(connection)
            .await
    }

    pub(in crate::seqlog) async fn lock(
        &self,
        connection: &mut PgConnection,
        consumer: &str,
    ) -> sqlx::Result<Option<Consumer>> {
        sqlx::query_as(AssertSqlSafe(&*self.lock))
            .bind(consumer)
            .fetch_optional(connection)
            .await
    }

    pub(in crate::seqlog) async fn set_aside(
        &self,
        connection: &mut PgConnection,
        consumer: &str,
    ) -> sqlx::Result<Vec<SetAside>> {
        sqlx::query_as(AssertSqlSafe(&*self.set_aside))
            .bind(consumer)
            .fetch_all(connection)
            .await
    }

    pub(in crate::seqlog) async fn trail(
        &self,
        connection: &mut PgConnection,
        consumer: &str,
    ) -> sqlx::Result<Vec<Audit>> {
        sqlx::query_as(AssertSqlSafe(&*self.trail))
            .bind(consumer)
            .fetch_all(connection)
            .await
    }

    pub(in crate::seqlog) async fn logs(
        &self,
        connection: &mut PgConnection,
    ) -> sqlx::Result<Vec<LogState>> {
        sqlx::query_as(AssertSqlSafe(&*self.logs))
            .fetch_all(connection)
            .await
    }

    /// Moves the offset of a consumer that is locked.
    pub(in crate::seqlog) async fn replay(
        &self,
        connection: &mut PgConnection,
        consumer: &str,
        to: i64,
    ) -> sqlx::Result<()> {
        sqlx::query(AssertSqlSafe(&*self.replay))
            .bind(consumer)
            .bind(to)
            .execute(connection)
            .await?;
        Ok(())
    }

    pub(in crate::seqlog) async fn rebuild(
        &self,
        connection: &mut PgConnection,
        consumer: &str,
    ) -> sqlx::Result<()> {
        sqlx::query(AssertSqlSafe(&*self.rebuild))
            .bind(consumer)
            .execute(connection)
            .await?;
        Ok(())
    }

    pub(in crate::seqlog) async fn forget(
        &self,
        connection: &mut PgConnection,
        consumer: &str,
    ) -> sqlx::Result<()> {
        sqlx::query(AssertSqlSafe(&*self.forget))
            .bind(consumer)
            .execute(connection)
            .await?;
        Ok(())
    }

    pub(in crate::seqlog) async fn audit(
        &self,
        connection: &mut PgConnection,
        act: &Act<'_>,
    ) -> sqlx::Result<()> {
        sqlx::query(AssertSqlSafe(&*self.audit))
            .bind(act.consumer)
            .bind(act.action)
            .bind(act.from)
            .bind(act.to)
            .bind(act.actor)
            .bind(act.reason)
            .execute(connection)
            .await?;
        Ok(())
    }

    /// Makes a consumer. Says whether there was none.
    pub(in crate::seqlog) async fn begin_at(
        &self,
        connection: &mut PgConnection,
        (consumer, log): (&str, &str),
        seq: i64,
    ) -> sqlx::Result<bool> {
        let done = sqlx::query(AssertSqlSafe(&*self.begin_at))
            .bind(consumer)
            .bind(log)
            .bind(seq)
            .execute(connection)
            .await?;
        Ok(done.rows_affected() == 1)
    }

    /// From which number to which the log can be followed.
    pub(in crate::seqlog) async fn bounds(
        &self,
        connection: &mut PgConnection,
        log: &str,
    ) -> sqlx::Result<(i64, i64)> {
        sqlx::query_as(AssertSqlSafe(&*self.bounds))
            .bind(log)
            .fetch_one(connection)
            .await
    }

    /// Makes `consumer` what `fresh` is, which ends, with the rows that it has set aside. Where it is;
    /// `None` when there is no `fresh` that follows.
    pub(in crate::seqlog) async fn replace(
        &self,
        connection: &mut PgConnection,
        fresh: &str,
        consumer: &str,
    ) -> sqlx::Result<Option<i64>> {
        let seq: Option<i64> = sqlx::query_scalar(AssertSqlSafe(&*self.replace))
            .bind(fresh)
            .bind(consumer)
            .fetch_optional(&mut *connection)
            .await?;
        let Some(seq) = seq else { return Ok(None) };
        // Apart, because a number is set aside once: what the old one had goes first.
        sqlx::query(AssertSqlSafe(&*self.handled))
            .bind(consumer)
            .bind(seq)
            .execute(&mut *connection)
            .await?;
        sqlx::query(AssertSqlSafe(&*self.inherit))
            .bind(fresh)
            .bind(consumer)
            .execute(connection)
            .await?;
        Ok(Some(seq))
    }
}
