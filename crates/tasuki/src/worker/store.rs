//! What the listener asks its connection.

use sqlx::postgres::PgListener;
use sqlx::{AssertSqlSafe, Executor, PgPool};

/// Whether anybody is at the other end.
pub(super) async fn ping(listener: &mut PgListener) -> sqlx::Result<()> {
    listener.execute("SELECT 1").await?;
    Ok(())
}

/// Tells everyone who listens on `channel`: one statement without parameters, which is a
/// transaction and a round trip also behind a pooler.
pub(super) async fn notify(pool: &PgPool, channel: &str) -> Result<(), sqlx::Error> {
    let channel = channel.replace('\'', "''");
    let notify = format!("SELECT pg_notify('{channel}', '')");
    sqlx::raw_sql(AssertSqlSafe(notify)).execute(pool).await?;
    Ok(())
}
