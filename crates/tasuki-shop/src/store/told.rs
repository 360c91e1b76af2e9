//! What was told of orders that have ended, and how far it has come.

use sqlx::PgConnection;
use time::OffsetDateTime;
use uuid::Uuid;

/// An event of an order.
#[derive(Clone, Debug)]
pub(crate) struct Told {
    pub(crate) event_id: Uuid,
    pub(crate) recorded_at: OffsetDateTime,
    pub(crate) event_type: String,
    pub(crate) order_id: String,
    /// Rows of it in the outbox: those that wait, those that are dead, those that were published.
    pub(crate) waiting: i64,
    pub(crate) dead: i64,
    pub(crate) published: i64,
}

/// The events, told at `kept_from` or later, of the orders that ended from `from` on, before `until`.
pub(crate) async fn told(
    connection: &mut PgConnection,
    from: OffsetDateTime,
    until: OffsetDateTime,
    kept_from: OffsetDateTime,
) -> sqlx::Result<Vec<Told>> {
    sqlx::query_file_as!(Told, "src/store/told.sql", from, until, kept_from)
        .fetch_all(connection)
        .await
}

/// The orders that ended from `from` on, before `until`, and of whose end nothing was told.
pub(crate) async fn silent(
    connection: &mut PgConnection,
    from: OffsetDateTime,
    until: OffsetDateTime,
) -> sqlx::Result<Vec<(Uuid, OffsetDateTime)>> {
    let rows = sqlx::query!(
        r#"
        SELECT ended.order_id, ended.ended_at AS "ended_at!"
        FROM shop.orders AS ended
        WHERE ended.ended_at >= $1 AND ended.ended_at < $2
            AND NOT EXISTS (
                SELECT
                FROM shop.stories AS story
                WHERE story.correlation_id = ended.order_id::text AND story.consumer IS NULL
                    AND story.event_type = CASE ended.state
                        WHEN 'COMPLETED' THEN 'OrderCompleted' ELSE 'OrderCancelled'
                    END
            )
        "#,
        from,
        until,
    )
    .fetch_all(connection)
    .await?;
    let rows = rows.into_iter();
    Ok(rows.map(|row| (row.order_id, row.ended_at)).collect())
}
