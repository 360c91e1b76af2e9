//! What became of events, for who checks that nothing is missing.

use sqlx::PgConnection;
use uuid::Uuid;

/// What is known of an event.
#[derive(Clone, Debug)]
pub(crate) struct Known {
    pub(crate) event_id: Uuid,
    pub(crate) processed: i64,
    /// The notifications that were made of it, where that was written down.
    pub(crate) made: Option<i64>,
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

/// How many notifications of these events were given up: somebody discarded them, or they were
/// withdrawn. Their letters are read one by one: ask for few, and rarely.
pub(crate) async fn given_up(
    connection: &mut PgConnection,
    events: &[Uuid],
) -> sqlx::Result<Vec<(Uuid, i64)>> {
    let rows = sqlx::query!(
        r#"
        -- By itself first: what is in the letters of other tables can't be read like this.
        WITH closed AS MATERIALIZED (
            SELECT convert_from(payload, 'UTF8')::jsonb ->> 'event_id' AS event_id
            FROM notification.dead_letters
            WHERE source = 'notifications_live' AND discarded_at IS NOT NULL
        )

        SELECT wanted.event_id AS "event_id!", count(*) AS "given_up!"
        FROM UNNEST($1::uuid[]) AS wanted (event_id)
        INNER JOIN closed ON closed.event_id = wanted.event_id::text
        GROUP BY wanted.event_id
        "#,
        events,
    )
    .fetch_all(connection)
    .await?;
    Ok(rows
        .into_iter()
        .map(|row| (row.event_id, row.given_up))
        .collect())
}
