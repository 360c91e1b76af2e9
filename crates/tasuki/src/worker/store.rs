//! What the listener asks its connection.

use sqlx::Executor;
use sqlx::PgPool;
use sqlx::postgres::PgListener;

use crate::transaction;

/// Whether anybody is at the other end.
pub(super) async fn ping(listener: &mut PgListener) -> sqlx::Result<()> {
    listener.execute("SELECT 1").await?;
    Ok(())
}

/// Tells everyone who listens on `channel`, in a transaction of its own.
pub(super) async fn notify(pool: &PgPool, channel: &str) -> Result<(), sqlx::Error> {
    let mut tx = transaction::begin(pool).await?;
    sqlx::query("SELECT pg_notify($1, '')")
        .bind(channel)
        .execute(&mut *tx)
        .await?;
    transaction::commit(tx).await
}
