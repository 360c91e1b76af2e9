//! What a transaction asks the server about itself.

use sqlx::PgConnection;

/// Fails in a transaction that a failed statement has doomed.
pub(super) async fn assert_sound(connection: &mut PgConnection) -> sqlx::Result<()> {
    sqlx::query("SELECT 1").execute(connection).await?;
    Ok(())
}
