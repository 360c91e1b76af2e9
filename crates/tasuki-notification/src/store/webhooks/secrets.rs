//! Secrets that are replaced: each signs until its time is over, however many come after it.

use sqlx::PgConnection;
use uuid::Uuid;

/// Gives an endpoint a new secret; the one before signs for `overlap` seconds more. Answers `false`
/// when `most` secrets beside the present one sign already: then the transaction is for nothing.
pub(crate) async fn rotate(
    tx: &mut PgConnection,
    id: Uuid,
    secret: &str,
    overlap: f64,
    most: i64,
) -> sqlx::Result<bool> {
    // Two at the same moment: the second must see the first one's secret, or it would be lost.
    sqlx::query!(
        "SELECT endpoint_id FROM notification.webhook_endpoints WHERE endpoint_id = $1 FOR UPDATE",
        id,
    )
    .fetch_optional(&mut *tx)
    .await?;
    sqlx::query!(
        "DELETE FROM notification.webhook_secrets WHERE endpoint_id = $1 AND signs_until <= now()",
        id,
    )
    .execute(&mut *tx)
    .await?;
    sqlx::query!(
        r#"
        INSERT INTO notification.webhook_secrets (endpoint_id, secret, signs_until)
        SELECT endpoint_id, previous_secret, previous_until
        FROM notification.webhook_endpoints
        WHERE endpoint_id = $1 AND previous_secret IS NOT NULL AND previous_until > now()
        "#,
        id,
    )
    .execute(&mut *tx)
    .await?;
    let done = sqlx::query!(
        r#"
        UPDATE notification.webhook_endpoints
        SET previous_secret = secret, previous_until = now() + make_interval(secs => $3),
            secret = $2, updated_at = now()
        WHERE endpoint_id = $1
            AND (SELECT count(*) FROM notification.webhook_secrets WHERE endpoint_id = $1) < $4
        "#,
        id,
        secret,
        overlap,
        most,
    )
    .execute(tx)
    .await?;
    Ok(done.rows_affected() == 1)
}
