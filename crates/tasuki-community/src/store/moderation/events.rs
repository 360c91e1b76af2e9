//! Events, and when they were accepted: those that anybody sees, or all that are stored.

use sqlx::PgConnection;
use time::OffsetDateTime;

use crate::moderation::Seen;
use crate::nostr::{Id, Parsed};

/// Those of `ids` that anybody sees.
pub(crate) async fn seen(connection: &mut PgConnection, ids: &[Id]) -> sqlx::Result<Vec<Seen>> {
    let ids: Vec<_> = ids.iter().map(|id| id.0.to_vec()).collect();
    let rows = sqlx::query!(
        r#"
        SELECT body AS "body!", topics AS "topics!", ingested_at AS "ingested_at!"
        FROM (
            SELECT body, topics, ingested_at, expires_at, hidden_at FROM cn_relay.events
            WHERE event_id = ANY($1)
            UNION ALL
            SELECT body, topics, ingested_at, expires_at, hidden_at FROM cn_relay.kept_events
            WHERE event_id = ANY($1)
        ) AS event
        WHERE hidden_at IS NULL
            AND (expires_at IS NULL OR expires_at > extract(EPOCH FROM clock_timestamp()))
        "#,
        &ids,
    )
    .fetch_all(connection)
    .await?;
    let events = rows
        .into_iter()
        .filter_map(|row| event(&row.body, row.topics, row.ingested_at));
    Ok(events.collect())
}

/// Those of `ids` that are stored, seen or not.
pub(crate) async fn there(connection: &mut PgConnection, ids: &[Id]) -> sqlx::Result<Vec<Seen>> {
    let ids: Vec<_> = ids.iter().map(|id| id.0.to_vec()).collect();
    let rows = sqlx::query!(
        r#"
        SELECT body AS "body!", topics AS "topics!", ingested_at AS "ingested_at!"
        FROM cn_relay.events
        WHERE event_id = ANY($1)
        UNION ALL
        SELECT body, topics, ingested_at FROM cn_relay.kept_events WHERE event_id = ANY($1)
        "#,
        &ids,
    )
    .fetch_all(connection)
    .await?;
    let events = rows
        .into_iter()
        .filter_map(|row| event(&row.body, row.topics, row.ingested_at));
    Ok(events.collect())
}

/// Some events, and how to go on behind them.
pub(crate) struct Page {
    pub(crate) events: Vec<Seen>,
    pub(crate) last: Option<Vec<u8>>,
}

/// Events in the order of their ids, after `after`, seen or not: of a snapshot, for a rebuild.
pub(crate) async fn page(
    connection: &mut PgConnection,
    after: &[u8],
    limit: i64,
) -> sqlx::Result<Page> {
    let rows = sqlx::query!(
        r#"
        SELECT
            event_id AS "event_id!", body AS "body!", topics AS "topics!",
            ingested_at AS "ingested_at!"
        FROM (
            (
                SELECT event_id, body, topics, ingested_at FROM cn_relay.events
                WHERE event_id > $1
                ORDER BY event_id
                LIMIT $2
            )
            UNION ALL
            (
                SELECT event_id, body, topics, ingested_at FROM cn_relay.kept_events
                WHERE event_id > $1
                ORDER BY event_id
                LIMIT $2
            )
        ) AS event
        ORDER BY event_id
        LIMIT $2
        "#,
        after,
        limit,
    )
    .fetch_all(connection)
    .await?;
    let last = rows.last().map(|row| row.event_id.clone());
    let events = rows
        .into_iter()
        .filter_map(|row| event(&row.body, row.topics, row.ingested_at));
    Ok(Page {
        events: events.collect(),
        last,
    })
}

fn event(body: &str, topics: Vec<String>, ingested_at: OffsetDateTime) -> Option<Seen> {
    Some(Seen {
        event: Parsed::read(body).ok()?.trusted(),
        topics,
        ingested_at,
    })
}
