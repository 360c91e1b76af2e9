//! The SQL of definitions that are written down.

use sqlx::{AssertSqlSafe, FromRow, PgConnection};

use super::super::define::Declared;
use super::super::outline::Outline;
use super::{column, seconds};
use crate::Schema;

/// The definitions that an engine runs. `$1` names, `$2` versions, `$3` steps, `$4` fingerprints, `$5`
/// time limits in seconds; sorted, so that two engines that start at once take the rows in one order.
const DEFINE: &str = "
INSERT INTO {schema}.saga_definitions (definition, version, steps, fingerprint, timeout_seconds)
SELECT definition, version, steps::json, fingerprint, timeout_seconds
FROM unnest($1::text [], $2::int [], $3::text [], $4::text [], $5::float8 [])
    AS known (definition, version, steps, fingerprint, timeout_seconds)
ORDER BY definition, version
ON CONFLICT (definition, version) DO UPDATE
SET
    steps = excluded.steps,
    fingerprint = excluded.fingerprint,
    timeout_seconds = excluded.timeout_seconds,
    started_at = excluded.started_at";

const OUTLINES: &str = "
SELECT definition, version, steps::text AS steps, fingerprint, timeout_seconds, started_at
FROM {schema}.saga_definitions
ORDER BY definition, version";

/// Those that wait for a process, by definition; from the head of the index, where those stay that nobody
/// runs.
const DUE: &str = "
SELECT head.definition, head.version, count(*) AS sagas
FROM (
    SELECT definition, version, status, lease_until
    FROM {schema}.sagas
    WHERE next_retry_at <= now()
    ORDER BY next_retry_at
    LIMIT 10000
) AS head
WHERE head.status = 'PENDING' OR head.lease_until IS NULL OR head.lease_until <= now()
GROUP BY head.definition, head.version";

/// How many sagas of a definition wait for a process.
#[derive(Debug, FromRow)]
pub(in crate::saga) struct Due {
    pub(in crate::saga) definition: String,
    pub(in crate::saga) version: i32,
    pub(in crate::saga) sagas: i64,
}

/// The statements for one schema.
#[derive(Debug)]
pub(in crate::saga) struct Outlines {
    define: String,
    all: String,
    due: String,
}

impl Outlines {
    pub(in crate::saga) fn new(schema: &Schema) -> Self {
        Self {
            define: schema.render(DEFINE),
            all: schema.render(OUTLINES),
            due: schema.render(DUE),
        }
    }

    pub(in crate::saga) fn statements(&self) -> impl Iterator<Item = &str> {
        let all = [&self.define, &self.all, &self.due];
        all.into_iter().map(String::as_str)
    }

    /// Writes down what these definitions are.
    pub(in crate::saga) async fn define(
        &self,
        connection: &mut PgConnection,
        definitions: &[&Declared],
    ) -> sqlx::Result<()> {
        let steps = definitions
            .iter()
            .map(|it| serde_json::to_string(&it.shape()));
        let steps: Result<Vec<String>, _> = steps.collect();
        let steps = steps.map_err(|error| sqlx::Error::Encode(error.into()))?;
        sqlx::query(AssertSqlSafe(self.define.as_str()))
            .bind(column(definitions, |it| it.name.as_str()))
            .bind(column(definitions, Declared::stored_version))
            .bind(steps)
            .bind(column(definitions, |it| it.fingerprint.as_str()))
            .bind(column(definitions, |it| it.timeout.map(seconds)))
            .execute(connection)
            .await?;
        Ok(())
    }

    /// The definitions that were written down, by name and version.
    pub(in crate::saga) async fn all(
        &self,
        connection: &mut PgConnection,
    ) -> sqlx::Result<Vec<Outline>> {
        sqlx::query_as(AssertSqlSafe(self.all.as_str()))
            .fetch_all(connection)
            .await
    }
    /// The sagas that wait for a process, by definition.
    pub(in crate::saga) async fn due(
        &self,
        connection: &mut PgConnection,
    ) -> sqlx::Result<Vec<Due>> {
        sqlx::query_as(AssertSqlSafe(self.due.as_str()))
            .fetch_all(connection)
            .await
    }
}
