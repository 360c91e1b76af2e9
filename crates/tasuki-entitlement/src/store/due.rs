//! What has run out.

use sqlx::PgConnection;
use time::OffsetDateTime;

/// An entitlement that has run out, and what it was granted for.
#[derive(Clone, Debug)]
pub(crate) struct Due {
    pub(crate) expires_at: OffsetDateTime,
    pub(crate) user_id: String,
    pub(crate) stock_keeping_unit: String,
    pub(crate) source_id: String,
}

/// Entitlements that have run out, the longest ago first, at most `limit`: those beyond `after`, in
/// an order in which each has a place of its own. The index has them in it.
pub(crate) async fn run_out(
    connection: &mut PgConnection,
    after: Option<&Due>,
    limit: i64,
) -> sqlx::Result<Vec<Due>> {
    sqlx::query_as!(
        Due,
        r#"
        SELECT expires_at AS "expires_at!", user_id, stock_keeping_unit, source_id
        FROM entitlement.entitlements
        WHERE expires_at <= now()
            AND (expires_at, user_id, stock_keeping_unit) > (
                COALESCE($1::timestamptz, '-infinity'),
                COALESCE($2::text, ''),
                COALESCE($3::text, '')
            )
        ORDER BY expires_at, user_id, stock_keeping_unit
        LIMIT $4
        "#,
        after.map(|due| due.expires_at),
        after.map(|due| due.user_id.as_str()),
        after.map(|due| due.stock_keeping_unit.as_str()),
        limit,
    )
    .fetch_all(connection)
    .await
}
