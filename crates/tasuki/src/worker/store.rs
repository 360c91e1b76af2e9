//! What the listener asks its connection.

use sqlx::Executor;
use sqlx::postgres::PgListener;

/// Whether anybody is at the other end.
pub(super) async fn ping(listener: &mut PgListener) -> sqlx::Result<()> {
    listener.execute("SELECT 1").await?;
    Ok(())
}
