//! What waits in the log.

use std::collections::HashMap;

use sqlx::PgConnection;
use uuid::Uuid;

/// Rows that are looked at when those of a topic are counted.
const LOOKED_AT: i64 = 100_000;

/// Rows that have no number yet, counted up to `most`.
pub(crate) async fn unnumbered(connection: &mut PgConnection, most: u64) -> sqlx::Result<u64> {
    let rows = sqlx::query_scalar!(
        r#"
        SELECT count(*) AS "count!"
        FROM (SELECT FROM cn_relay.events_outbox_pending LIMIT $1) AS pending
        "#,
        i64::try_from(most).unwrap_or(i64::MAX),
    )
    .fetch_one(connection)
    .await?;
    Ok(u64::try_from(rows).unwrap_or_default())
}

/// How many of the rows behind `seq`, and of those without a number, each of `topics` has.
pub(crate) async fn waiting(
    connection: &mut PgConnection,
    seq: i64,
    topics: &[String],
) -> sqlx::Result<HashMap<String, i64>> {
    let rows = sqlx::query!(
        r#"
        SELECT topic_id AS "topic!", count(*) AS "count!"
        FROM (
            (SELECT topic_id FROM cn_relay.events_outbox WHERE seq > $1 ORDER BY seq LIMIT $3)
            UNION ALL
            (SELECT topic_id FROM cn_relay.events_outbox_pending LIMIT $3)
        ) AS waiting
        WHERE topic_id = ANY($2)
        GROUP BY topic_id
        "#,
        seq,
        topics,
        LOOKED_AT,
    )
    .fetch_all(connection)
    .await?;
    Ok(rows.into_iter().map(|row| (row.topic, row.count)).collect())
}

/// Which of these tags any stored event has.
pub(crate) async fn known_tags(
    connection: &mut PgConnection,
    keys: &[Uuid],
) -> sqlx::Result<Vec<Uuid>> {
    sqlx::query_scalar!(
        r#"
        SELECT wanted AS "key!" FROM unnest($1::uuid[]) AS wanted
        WHERE EXISTS (SELECT FROM cn_relay.event_tags AS tag WHERE tag.tag_key = wanted)
            OR EXISTS (SELECT FROM cn_relay.kept_tags AS tag WHERE tag.tag_key = wanted)
        "#,
        keys,
    )
    .fetch_all(connection)
    .await
}
