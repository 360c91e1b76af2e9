//! What operators are told.

use sqlx::PgConnection;
use time::OffsetDateTime;
use uuid::Uuid;

/// Something that an operator must know of.
#[derive(Clone, Debug)]
pub(crate) struct NoticeRow {
    pub(crate) kind: String,
    pub(crate) payment_id: Uuid,
    pub(crate) order_id: Uuid,
    pub(crate) message: String,
    pub(crate) told_at: OffsetDateTime,
}

/// Tells it, once. Says whether that is new.
pub(crate) async fn tell(
    tx: &mut PgConnection,
    kind: &str,
    payment: Uuid,
    order: Uuid,
    message: &str,
) -> sqlx::Result<bool> {
    let done = sqlx::query!(
        r#"
        INSERT INTO shop.operator_notices (kind, payment_id, order_id, message)
        VALUES ($1, $2, $3, $4)
        ON CONFLICT DO NOTHING
        "#,
        kind,
        payment,
        order,
        message,
    )
    .execute(tx)
    .await?;
    Ok(done.rows_affected() == 1)
}

/// The last `limit` of them, the last first.
pub(crate) async fn last(
    connection: &mut PgConnection,
    limit: i64,
) -> sqlx::Result<Vec<NoticeRow>> {
    sqlx::query_as!(
        NoticeRow,
        r#"
        SELECT kind, payment_id, order_id, message, told_at
        FROM shop.operator_notices
        ORDER BY notice_id DESC
        LIMIT $1
        "#,
        limit,
    )
    .fetch_all(connection)
    .await
}
