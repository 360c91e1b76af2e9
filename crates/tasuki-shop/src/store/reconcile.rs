//! Money and goods, compared.

use sqlx::PgConnection;
use uuid::Uuid;

/// Something that must not be.
#[derive(Clone, Debug)]
pub(crate) struct Wrong {
    pub(crate) kind: String,
    pub(crate) order_id: Option<Uuid>,
    pub(crate) subject: String,
    /// How many there are of its kind.
    pub(crate) many: i64,
}

/// What must not be, at most `limit` of each kind.
pub(crate) async fn wrong(connection: &mut PgConnection, limit: i64) -> sqlx::Result<Vec<Wrong>> {
    sqlx::query_file_as!(Wrong, "src/store/reconcile.sql", limit)
        .fetch_all(connection)
        .await
}

/// How many orders have not ended.
pub(crate) async fn unfinished(connection: &mut PgConnection) -> sqlx::Result<i64> {
    sqlx::query_scalar!(
        r#"
        SELECT count(*) AS "count!"
        FROM shop.orders
        WHERE state NOT IN ('COMPLETED', 'COMPENSATED')
        "#,
    )
    .fetch_one(connection)
    .await
}
