//! What became of events, for who checks that nothing is missing.

use sqlx::PgConnection;
use uuid::Uuid;

/// What is known of an event.
#[derive(Clone, Debug)]
pub(crate) struct Known {
    pub(crate) event_id: Uuid,
    pub(crate) processed: i64,
    pub(crate) waiting: i64,
    pub(crate) sent: i64,
    pub(crate) failed: i64,
    /// Open dead letters of its notifications.
    pub(crate) letters: i64,
    /// The most notifications that one recipient has over one channel.
    pub(crate) most_each: i64,
}

/// What is known of these events.
pub(crate) async fn known(
    connection: &mut PgConnection,
    events: &[Uuid],
) -> sqlx::Result<Vec<Known>> {
    sqlx::query_file_as!(Known, "src/store/known.sql", events)
        .fetch_all(connection)
        .await
}

/// Which of these users have wishes of their own.
pub(crate) async fn wishers(
    connection: &mut PgConnection,
    users: &[String],
) -> sqlx::Result<Vec<String>> {
    sqlx::query_scalar!(
        "SELECT DISTINCT user_id FROM notification.preferences WHERE user_id = ANY($1)",
        users,
    )
    .fetch_all(connection)
    .await
}
