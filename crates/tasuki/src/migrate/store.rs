//! A plan's record, and the lock under which it changes.

use sqlx::{AssertSqlSafe, PgConnection, PgPool};

/// The first eight bytes of "tasuki migrate": all plans of a database take turns.
const LOCK: i64 = i64::from_be_bytes(*b"tasuki m");

/// Waits for our turn, however long the others take: whoever is ahead does work that we
/// would have to do otherwise. The connection's lock timeout is in force again afterwards.
pub(super) async fn lock(connection: &mut PgConnection) -> sqlx::Result<()> {
    let limit: String = sqlx::query_scalar("SELECT current_setting('lock_timeout')")
        .fetch_one(&mut *connection)
        .await?;
    set_lock_timeout(connection, "0").await?;
    sqlx::query("SELECT pg_advisory_lock($1)")
        .bind(LOCK)
        .execute(&mut *connection)
        .await?;
    set_lock_timeout(connection, &limit).await
}

pub(super) async fn unlock(connection: &mut PgConnection) -> sqlx::Result<()> {
    sqlx::query("SELECT pg_advisory_unlock($1)")
        .bind(LOCK)
        .execute(connection)
        .await?;
    Ok(())
}

async fn set_lock_timeout(connection: &mut PgConnection, limit: &str) -> sqlx::Result<()> {
    sqlx::query("SELECT set_config('lock_timeout', $1, false)")
        .bind(limit)
        .execute(connection)
        .await?;
    Ok(())
}

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
