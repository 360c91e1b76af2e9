//! What is old, by the database's clock.

use sqlx::PgConnection;

/// Removes up to `limit` notifications that are dead and older than so many hours, and closes
/// their letters; answers how many.
pub(crate) async fn retire(
    connection: &mut PgConnection,
    hours: i32,
    limit: i64,
) -> sqlx::Result<i64> {
    sqlx::query_file_scalar!("src/store/retired.sql", hours, limit)
        .fetch_one(connection)
        .await
}

/// Forgets up to `limit` versions that were last shown more than so many days ago; answers how
/// many.
pub(crate) async fn forget(
    connection: &mut PgConnection,
    days: i32,
    limit: i64,
) -> sqlx::Result<u64> {
    let done = sqlx::query!(
        r#"
        DELETE FROM notification.shown
        WHERE ctid = ANY (ARRAY (
            SELECT ctid
            FROM notification.shown
            WHERE shown_on < (now() AT TIME ZONE 'UTC')::date - $1::integer
            ORDER BY shown_on
            LIMIT $2
            FOR UPDATE SKIP LOCKED
        ))
        "#,
        days,
        limit,
    )
    .execute(connection)
    .await?;
    Ok(done.rows_affected())
}

/// Notifications that wait, and are older than so many hours. It reads all that wait: ask rarely.
pub(crate) async fn stuck(connection: &mut PgConnection, hours: i32) -> sqlx::Result<i64> {
    sqlx::query_scalar!(
        r#"
        SELECT count(*) AS "count!"
        FROM notification.notifications_live
        WHERE created_at < now() - make_interval(hours => $1) AND status <> 'FAILED'
        "#,
        hours,
    )
    .fetch_one(connection)
    .await
}
