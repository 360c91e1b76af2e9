//! The rows of instances.

use sqlx::types::Json;
use sqlx::{AssertSqlSafe, PgPool, Row};
use tasuki::Schema;
use tasuki_contract::status;

use super::Instance;

/// Writes or renews the row of `instance`, and removes rows of processes that died long ago.
pub(super) async fn report(
    pool: &PgPool,
    schema: &Schema,
    instance: &Instance,
    workers: &[status::Worker],
) -> sqlx::Result<()> {
    let sql = schema.render(
        "WITH aged AS (
             DELETE FROM {schema}.instances WHERE seen_at < now() - interval '1 hour'
         )
         INSERT INTO {schema}.instances
             (instance_id, process, version, started_at, seen_at, workers)
         VALUES ($1, $2, $3, $4, now(), $5)
         ON CONFLICT (instance_id) DO UPDATE
             SET seen_at = excluded.seen_at, workers = excluded.workers",
    );
    sqlx::query(AssertSqlSafe(sql))
        .bind(instance.id)
        .bind(&instance.process)
        .bind(env!("CARGO_PKG_VERSION"))
        .bind(instance.started_at)
        .bind(Json(workers))
        .execute(pool)
        .await?;
    Ok(())
}

pub(super) async fn remove(
    pool: &PgPool,
    schema: &Schema,
    instance: &Instance,
) -> sqlx::Result<()> {
    let sql = schema.render("DELETE FROM {schema}.instances WHERE instance_id = $1");
    sqlx::query(AssertSqlSafe(sql))
        .bind(instance.id)
        .execute(pool)
        .await?;
    Ok(())
}

pub(super) async fn list(
    pool: &PgPool,
    service: &str,
    schema: &Schema,
) -> sqlx::Result<Vec<status::Instance>> {
    let sql = schema.render(
        "SELECT instance_id, process, version, started_at, seen_at, workers
         FROM {schema}.instances
         WHERE seen_at > now() - interval '30 seconds'
         ORDER BY started_at, instance_id",
    );
    let rows = sqlx::query(AssertSqlSafe(sql)).fetch_all(pool).await?;
    rows.into_iter()
        .map(|row| {
            Ok(status::Instance {
                id: row.try_get("instance_id")?,
                service: service.to_owned(),
                process: row.try_get("process")?,
                version: row.try_get("version")?,
                started_at: row.try_get("started_at")?,
                seen_at: row.try_get("seen_at")?,
                workers: row.try_get::<Json<_>, _>("workers")?.0,
            })
        })
        .collect()
}
