//! A plan's record, and the lock under which it changes.

use std::time::Duration;

use sqlx::{AssertSqlSafe, PgConnection, PgPool};
use tokio::time::sleep;

/// The first eight bytes of "tasuki migrate": all plans of a database take turns.
const LOCK: i64 = i64::from_be_bytes(*b"tasuki m");

/// How often a turn is asked for.
const ASK: Duration = Duration::from_millis(100);

/// Waits for our turn, however long the others take: whoever is ahead does work that we would have
/// to do otherwise.
///
/// Asked for again and again, not waited for in one statement: that would hold a snapshot, and an
/// index that whoever is ahead builds concurrently would wait for it, and we for them.
pub(super) async fn lock(connection: &mut PgConnection) -> sqlx::Result<()> {
    loop {
        let is_ours: bool = sqlx::query_scalar("SELECT pg_try_advisory_lock($1)")
            .bind(LOCK)
            .fetch_one(&mut *connection)
            .await?;
        if is_ours {
            return Ok(());
        }
        sleep(ASK).await;
    }
}

pub(super) async fn unlock(connection: &mut PgConnection) -> sqlx::Result<()> {
    sqlx::query("SELECT pg_advisory_unlock($1)")
        .bind(LOCK)
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
