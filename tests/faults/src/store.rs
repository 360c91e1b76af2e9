//! The units.

use sqlx::PgConnection;

/// Adds units where this connection is.
pub(super) async fn add(connection: &mut PgConnection, units: i64) -> sqlx::Result<()> {
    sqlx::query("UPDATE stock SET units = units + $1")
        .bind(units)
        .execute(connection)
        .await?;
    Ok(())
}
