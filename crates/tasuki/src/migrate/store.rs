//! Reads a plan's record.

use sqlx::{AssertSqlSafe, PgPool};

/// The versions that were applied successfully; none when there is no record.
pub(super) async fn applied(pool: &PgPool, record: &str) -> sqlx::Result<Vec<i64>> {
    let exists: bool = sqlx::query_scalar("SELECT to_regclass($1) IS NOT NULL")
        .bind(record)
        .fetch_one(pool)
        .await?;
    if !exists {
        return Ok(Vec::new());
    }
    // Safe: the record's name was made from a `Schema`, or written in a crate's `sqlx.toml`.
    let select = AssertSqlSafe(format!("SELECT version FROM {record} WHERE success"));
    sqlx::query_scalar(select).fetch_all(pool).await
}
