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

/// Removes what an interrupted `CREATE INDEX CONCURRENTLY` left: an index of that name that is not
/// valid, in the schema of the plan's `record`. The next try would stumble over it for ever.
pub(super) async fn drop_unfinished(
    connection: &mut PgConnection,
    record: &str,
    index: &str,
) -> sqlx::Result<()> {
    let unfinished: Option<String> = sqlx::query_scalar(
        "SELECT format('%I.%I', schema.nspname, index.relname)
         FROM pg_index AS known
         JOIN pg_class AS index ON index.oid = known.indexrelid AND index.relkind = 'i'
         JOIN pg_namespace AS schema ON schema.oid = index.relnamespace
         WHERE NOT known.indisvalid AND index.relname = $2
             AND schema.nspname = split_part($1, '.', 1)",
    )
    .bind(record)
    .bind(index)
    .fetch_optional(&mut *connection)
    .await?;
    let Some(unfinished) = unfinished else {
        return Ok(());
    };
    tracing::warn!(
        index = unfinished,
        "index was left unfinished, building it again"
    );
    // Safe: the server has quoted it.
    let drop = AssertSqlSafe(format!("DROP INDEX CONCURRENTLY {unfinished}"));
    sqlx::query(drop).execute(connection).await?;
    Ok(())
}
