//! How long a statement of a transaction may take.

use sqlx::PgConnection;

/// How long one may take now, as the server writes it.
pub(crate) async fn statement_timeout(tx: &mut PgConnection) -> sqlx::Result<String> {
    sqlx::query_scalar!(r#"SELECT current_setting('statement_timeout') AS "limit!""#)
        .fetch_one(tx)
        .await
}

/// From now on each may take `limit`, until the end of the transaction.
pub(crate) async fn set_statement_timeout(tx: &mut PgConnection, limit: &str) -> sqlx::Result<()> {
    sqlx::query_scalar!(
        r#"SELECT set_config('statement_timeout', $1, TRUE) AS "limit!""#,
        limit,
    )
    .fetch_one(tx)
    .await?;
    Ok(())
}
