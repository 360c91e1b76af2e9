//! What people see, and what they want to see.

use sqlx::PgConnection;
use time::OffsetDateTime;
use uuid::Uuid;

/// A notification in an inbox.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) notification_id: Uuid,
    pub(crate) event_id: Uuid,
    pub(crate) kind: String,
    pub(crate) occurred_at: OffsetDateTime,
    pub(crate) payload_json: serde_json::Value,
    pub(crate) sent_at: OffsetDateTime,
    pub(crate) inbox_seq: i64,
    pub(crate) superseded: bool,
    pub(crate) read_at: Option<OffsetDateTime>,
}

/// A page of an inbox below a number, the latest first.
pub(crate) async fn page(
    connection: &mut PgConnection,
    user: &str,
    below: i64,
    limit: i64,
) -> sqlx::Result<Vec<Entry>> {
    sqlx::query_as!(
        Entry,
        r#"
        SELECT
            notification_id, event_id, type AS kind, occurred_at, payload_json, sent_at,
            inbox_seq AS "inbox_seq!", superseded, read_at
        FROM notification.notifications_sent
        WHERE user_id = $1 AND inbox_seq < $2
        ORDER BY inbox_seq DESC
        LIMIT $3
        "#,
        user,
        below,
        limit,
    )
    .fetch_all(connection)
    .await
}

/// The same of what is unread, and not superseded. A statement of its own, for an index of its
/// own: one that asks for either reads through all that was read.
pub(crate) async fn unread(
    connection: &mut PgConnection,
    user: &str,
    below: i64,
    limit: i64,
) -> sqlx::Result<Vec<Entry>> {
    sqlx::query_as!(
        Entry,
        r#"
        SELECT
            notification_id, event_id, type AS kind, occurred_at, payload_json, sent_at,
            inbox_seq AS "inbox_seq!", superseded, read_at
        FROM notification.notifications_sent
        WHERE user_id = $1 AND inbox_seq < $2 AND read_at IS NULL AND NOT superseded
        ORDER BY inbox_seq DESC
        LIMIT $3
        "#,
        user,
        below,
        limit,
    )
    .fetch_all(connection)
    .await
}

/// What came into an inbox after a number, in order.
pub(crate) async fn after(
    connection: &mut PgConnection,
    user: &str,
    after: i64,
    limit: i64,
) -> sqlx::Result<Vec<Entry>> {
    sqlx::query_as!(
        Entry,
        r#"
        SELECT
            notification_id, event_id, type AS kind, occurred_at, payload_json, sent_at,
            inbox_seq AS "inbox_seq!", superseded, read_at
        FROM notification.notifications_sent
        WHERE user_id = $1 AND inbox_seq > $2
        ORDER BY inbox_seq
        LIMIT $3
        "#,
        user,
        after,
        limit,
    )
    .fetch_all(connection)
    .await
}

/// How far an inbox is numbered, and how many of it are unread, counted up to `most`.
pub(crate) async fn summary(
    connection: &mut PgConnection,
    user: &str,
    most: i64,
) -> sqlx::Result<(i64, i64)> {
    let row = sqlx::query!(
        r#"
        SELECT
            COALESCE(
                (SELECT last_seq FROM notification.inboxes WHERE user_id = $1), 0
            ) AS "last_seq!",
            (
                SELECT count(*)
                FROM (
                    SELECT FROM notification.notifications_sent
                    WHERE user_id = $1 AND inbox_seq IS NOT NULL AND read_at IS NULL
                        AND NOT superseded
                    LIMIT $2
                ) AS unread
            ) AS "unread!"
        "#,
        user,
        most,
    )
    .fetch_one(connection)
    .await?;
    Ok((row.last_seq, row.unread))
}

/// How far the inboxes of these users are numbered.
pub(crate) async fn heads(
    connection: &mut PgConnection,
    users: &[String],
) -> sqlx::Result<Vec<(String, i64)>> {
    let rows = sqlx::query!(
        r#"SELECT user_id, last_seq FROM notification.inboxes WHERE user_id = ANY($1)"#,
        users,
    )
    .fetch_all(connection)
    .await?;
    Ok(rows
        .into_iter()
        .map(|row| (row.user_id, row.last_seq))
        .collect())
}

/// Marks a notification as read, once; answers when it was, if there is such a notification.
pub(crate) async fn mark_read(
    connection: &mut PgConnection,
    user: &str,
    id: Uuid,
) -> sqlx::Result<Option<OffsetDateTime>> {
    sqlx::query_scalar!(
        r#"
        UPDATE notification.notifications_sent
        SET read_at = COALESCE(read_at, clock_timestamp())
        WHERE user_id = $1 AND notification_id = $2 AND inbox_seq IS NOT NULL
        RETURNING read_at AS "read_at!"
        "#,
        user,
        id,
    )
    .fetch_optional(connection)
    .await
}

/// A user's wishes, by type.
pub(crate) async fn preferences(
    connection: &mut PgConnection,
    user: &str,
) -> sqlx::Result<Vec<(String, Vec<String>)>> {
    let rows = sqlx::query!(
        r#"
        SELECT type AS kind, channels FROM notification.preferences WHERE user_id = $1
        ORDER BY type
        "#,
        user,
    )
    .fetch_all(connection)
    .await?;
    Ok(rows
        .into_iter()
        .map(|row| (row.kind, row.channels))
        .collect())
}

/// Sets all of a user's wishes; types that are not named have none any more. Whoever does the same
/// at the same time waits: otherwise neither would remove what the other has just written, and the
/// user had wishes that nobody asked for.
pub(crate) async fn set_preferences(
    tx: &mut PgConnection,
    user: &str,
    wishes: &[(String, Vec<String>)],
) -> sqlx::Result<()> {
    sqlx::query!(
        "SELECT pg_advisory_xact_lock(hashtextextended('notification.preferences:' || $1, 0))",
        user,
    )
    .execute(&mut *tx)
    .await?;
    sqlx::query!(
        "DELETE FROM notification.preferences WHERE user_id = $1",
        user
    )
    .execute(&mut *tx)
    .await?;
    for (kind, channels) in wishes {
        sqlx::query!(
            r#"
            INSERT INTO notification.preferences AS kept (user_id, type, channels)
            VALUES ($1, $2, $3)
            ON CONFLICT (user_id, type) DO UPDATE SET
                channels = excluded.channels, updated_at = now()
            "#,
            user,
            kind,
            channels,
        )
        .execute(&mut *tx)
        .await?;
    }
    Ok(())
}

/// A notification with everything that an operator wants to know of it.
#[derive(Clone, Debug)]
pub(crate) struct Debugged {
    pub(crate) notification_id: Uuid,
    pub(crate) event_id: Uuid,
    pub(crate) kind: String,
    pub(crate) channel: String,
    pub(crate) status: String,
    pub(crate) attempt_count: i32,
    pub(crate) next_retry_at: Option<OffsetDateTime>,
    pub(crate) created_at: OffsetDateTime,
    pub(crate) sent_at: Option<OffsetDateTime>,
    pub(crate) locked_by: Option<String>,
    pub(crate) last_error: Option<String>,
    pub(crate) traceparent: Option<String>,
    pub(crate) payload_json: serde_json::Value,
}

/// Everything of a user, the latest first, at most `limit`.
pub(crate) async fn debugged(
    connection: &mut PgConnection,
    user: &str,
    limit: i64,
) -> sqlx::Result<Vec<Debugged>> {
    sqlx::query_as!(
        Debugged,
        r#"
        SELECT
            notification_id AS "notification_id!", event_id AS "event_id!", type AS "kind!",
            channel AS "channel!", status AS "status!", attempt_count AS "attempt_count!",
            next_retry_at, created_at AS "created_at!", sent_at, locked_by, last_error,
            traceparent, payload_json AS "payload_json!"
        FROM notification.notifications
        WHERE user_id = $1
        ORDER BY created_at DESC, notification_id DESC
        LIMIT $2
        "#,
        user,
        limit,
    )
    .fetch_all(connection)
    .await
}
