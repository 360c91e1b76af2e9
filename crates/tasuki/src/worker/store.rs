//! What the listener asks its connection.

use sqlx::postgres::PgListener;
use sqlx::{AssertSqlSafe, Executor, PgPool};

/// Whether anybody is at the other end.
pub(super) async fn ping(listener: &mut PgListener) -> sqlx::Result<()> {
    listener.execute("SELECT 1").await?;
    Ok(())
}

/// Tells `word` to everyone who listens on `channel`: one statement without parameters, which is a
/// transaction and a round trip also behind a pooler.
pub(crate) async fn notify(pool: &PgPool, channel: &str, word: &str) -> Result<(), sqlx::Error> {
    let quoted = |text: &str| text.replace('\'', "''");
    let (channel, word) = (quoted(channel), quoted(word));
    let notify = format!("SELECT pg_notify('{channel}', '{word}')");
    sqlx::raw_sql(AssertSqlSafe(notify)).execute(pool).await?;
    Ok(())
}
