//! What PostgreSQL says of itself.

use sqlx::PgConnection;

/// The version of the server, such as `15.18`.
pub(crate) async fn server_version(connection: &mut PgConnection) -> sqlx::Result<String> {
    let version = sqlx::query_scalar!(r#"SELECT current_setting('server_version') AS "version!""#)
        .fetch_one(connection)
        .await?;
    // Distributions append their own: `15.18 (Debian 15.18-0+deb12u1)`.
    Ok(version.split(' ').next().unwrap_or(&version).to_owned())
}
