//! The SQL of schedules.

use std::collections::HashSet;

use sqlx::{AssertSqlSafe, PgConnection};
use time::OffsetDateTime;

use crate::Schema;

/// The statements for one schema.
#[derive(Debug)]
pub(in crate::jobs) struct ScheduleStore {
    register: String,
    due: String,
    lock_due: String,
    adopt: String,
    advance: String,
}

impl ScheduleStore {
    pub(in crate::jobs) fn new(schema: &Schema) -> Self {
        Self {
            register: schema.render(REGISTER),
            due: schema.render(DUE),
            lock_due: schema.render(LOCK_DUE),
            adopt: schema.render(ADOPT),
            advance: schema.render(ADVANCE),
        }
    }

    pub(in crate::jobs) fn statements(&self) -> impl Iterator<Item = &str> {
        let all = [
            &self.register,
            &self.due,
            &self.lock_due,
            &self.adopt,
            &self.advance,
        ];
        all.into_iter().map(String::as_str)
    }

    /// The database's time.
    pub(in crate::jobs) async fn now(
        &self,
        connection: &mut PgConnection,
    ) -> sqlx::Result<OffsetDateTime> {
        sqlx::query_scalar("SELECT clock_timestamp()")
            .fetch_one(connection)
            .await
    }

    pub(in crate::jobs) async fn register(
        &self,
        connection: &mut PgConnection,
        name: &str,
        expression: &str,
        next: OffsetDateTime,
    ) -> sqlx::Result<()> {
        sqlx::query(AssertSqlSafe(self.register.as_str()))
            .bind(name)
            .bind(expression)
            .bind(next)
            .execute(connection)
            .await?;
        Ok(())
    }

    /// Which of `names` are due.
    pub(in crate::jobs) async fn due(
        &self,
        connection: &mut PgConnection,
        names: &[&str],
    ) -> sqlx::Result<HashSet<String>> {
        let due: Vec<String> = sqlx::query_scalar(AssertSqlSafe(self.due.as_str()))
            .bind(names)
            .fetch_all(connection)
            .await?;
        Ok(due.into_iter().collect())
    }

    /// When the schedule was due, and the time now; `None` if it is not, or somebody is at it.
    pub(in crate::jobs) async fn lock_due(
        &self,
        connection: &mut PgConnection,
        name: &str,
        expression: &str,
    ) -> sqlx::Result<Option<(OffsetDateTime, OffsetDateTime)>> {
        sqlx::query_as(AssertSqlSafe(self.lock_due.as_str()))
            .bind(name)
            .bind(expression)
            .fetch_optional(connection)
            .await
    }

    /// Takes over a schedule that has another expression, and that nobody has looked after for a
    /// minute although it is due. Says whether it did.
    pub(in crate::jobs) async fn adopt(
        &self,
        connection: &mut PgConnection,
        name: &str,
        expression: &str,
    ) -> sqlx::Result<bool> {
        let adopted = sqlx::query(AssertSqlSafe(self.adopt.as_str()))
            .bind(name)
            .bind(expression)
            .execute(connection)
            .await?;
        Ok(adopted.rows_affected() > 0)
    }

    pub(in crate::jobs) async fn advance(
        &self,
        connection: &mut PgConnection,
        name: &str,
        last: OffsetDateTime,
        next: OffsetDateTime,
    ) -> sqlx::Result<()> {
        sqlx::query(AssertSqlSafe(self.advance.as_str()))
            .bind(name)
            .bind(last)
            .bind(next)
            .execute(connection)
            .await?;
        Ok(())
    }
}

const REGISTER: &str = "
INSERT INTO {schema}.job_schedules AS s (name, expression, next_at)
VALUES ($1, $2, $3)
ON CONFLICT (name) DO UPDATE
SET expression = excluded.expression, next_at = excluded.next_at, updated_at = now()
WHERE s.expression <> excluded.expression";

const DUE: &str = "
SELECT name FROM {schema}.job_schedules WHERE name = ANY ($1) AND next_at <= now()";

const LOCK_DUE: &str = "
SELECT next_at, clock_timestamp()
FROM {schema}.job_schedules
WHERE name = $1 AND expression = $2 AND next_at <= now()
FOR UPDATE SKIP LOCKED";

/// It stays due: the next look enqueues its job.
const ADOPT: &str = "
UPDATE {schema}.job_schedules
SET expression = $2, updated_at = now()
WHERE name = $1 AND expression <> $2 AND next_at < now() - interval '1 minute'";

const ADVANCE: &str = "
UPDATE {schema}.job_schedules
SET last_at = $2, next_at = $3, updated_at = now()
WHERE name = $1";
