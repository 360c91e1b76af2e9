//! What operators are told.

use sqlx::PgConnection;
use time::OffsetDateTime;
use uuid::Uuid;

/// Something that an operator must know of.
#[derive(Clone, Debug)]
pub(crate) struct NoticeRow {
    pub(crate) notice_id: i64,
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

/// The last `limit` of these kinds that were told before the one of this number, the last first.
pub(crate) async fn before(
    connection: &mut PgConnection,
    kinds: &[String],
    notice: i64,
    limit: i64,
) -> sqlx::Result<Vec<NoticeRow>> {
    // Kind by kind: an index has each in order, however many there are of others.
    sqlx::query_as!(
        NoticeRow,
        r#"
        SELECT
            notices.notice_id, notices.kind, notices.payment_id, notices.order_id,
            notices.message, notices.told_at
        FROM unnest($1::text[]) AS wanted (kind)
        CROSS JOIN LATERAL (
            SELECT notice_id, kind, payment_id, order_id, message, told_at
            FROM shop.operator_notices
            WHERE kind = wanted.kind AND notice_id < $2
            ORDER BY notice_id DESC
            LIMIT $3
        ) AS notices
        ORDER BY notices.notice_id DESC
        LIMIT $3
        "#,
        kinds,
        notice,
        limit,
    )
    .fetch_all(connection)
    .await
}
