//! What the tables of events say to whoever counts.

use std::collections::HashMap;

use sqlx::PgConnection;

use crate::nostr::{Id, Key};

/// How many events a rebuild reads at a time.
const BATCH: i64 = 2_000;

/// An event, as far as it matters.
#[derive(Debug)]
pub(crate) struct Kept {
    pub(crate) id: Id,
    pub(crate) author: Key,
    /// Whether it can be seen. What can't be seen any more was said nevertheless.
    pub(crate) is_visible: bool,
    /// Of events of the kinds that were asked for.
    pub(crate) body: Option<String>,
}

/// Events that are there, seen or not, with the bodies of those of some kinds.
pub(crate) async fn there(
    connection: &mut PgConnection,
    ids: &[Id],
    kinds: &[i32],
) -> sqlx::Result<Vec<Kept>> {
    let ids: Vec<_> = ids.iter().map(|id| id.0.to_vec()).collect();
    let rows = sqlx::query!(
        r#"
        SELECT
            event_id AS "event_id!", pubkey AS "pubkey!",
            (
                hidden_at IS NULL
                AND (expires_at IS NULL OR expires_at > extract(EPOCH FROM clock_timestamp()))
            ) AS "is_visible!",
            CASE WHEN kind = ANY($2) THEN body END AS body
        FROM (
            SELECT event_id, pubkey, kind, body, expires_at, hidden_at FROM cn_relay.events
            WHERE event_id = ANY($1)
            UNION ALL
            SELECT event_id, pubkey, kind, body, expires_at, hidden_at FROM cn_relay.kept_events
            WHERE event_id = ANY($1)
        ) AS event
        "#,
        &ids,
        kinds,
    )
    .fetch_all(connection)
    .await?;
    let rows = rows.into_iter();
    Ok(rows
        .filter_map(|row| kept(&row.event_id, &row.pubkey, row.is_visible, row.body))
        .collect())
}

/// Who made these events, seen or not, as far as they are there.
pub(crate) async fn authors(
    connection: &mut PgConnection,
    ids: &[Id],
) -> sqlx::Result<HashMap<Id, Key>> {
    let ids: Vec<_> = ids.iter().map(|id| id.0.to_vec()).collect();
    let rows = sqlx::query!(
        r#"
        SELECT event_id AS "event_id!", pubkey AS "pubkey!"
        FROM (
            SELECT event_id, pubkey FROM cn_relay.events WHERE event_id = ANY($1)
            UNION ALL
            SELECT event_id, pubkey FROM cn_relay.kept_events WHERE event_id = ANY($1)
        ) AS event
        "#,
        &ids,
    )
    .fetch_all(connection)
    .await?;
    let rows = rows.iter();
    Ok(rows
        .filter_map(|row| Some((Id::from_slice(&row.event_id)?, key(&row.pubkey)?)))
        .collect())
}

/// Some events of these kinds in the order of their ids, after `after`: of a snapshot, for a rebuild.
pub(crate) async fn page(
    connection: &mut PgConnection,
    kinds: &[i32],
    after: &[u8],
) -> sqlx::Result<Vec<Kept>> {
    let rows = sqlx::query!(
        r#"
        SELECT
            event_id AS "event_id!", pubkey AS "pubkey!", body,
            (
                hidden_at IS NULL
                AND (expires_at IS NULL OR expires_at > extract(EPOCH FROM clock_timestamp()))
            ) AS "is_visible!"
        FROM (
            (
                SELECT event_id, pubkey, body, expires_at, hidden_at FROM cn_relay.events
                WHERE event_id > $1 AND kind = ANY($2)
                ORDER BY event_id
                LIMIT $3
            )
            UNION ALL
            (
                SELECT event_id, pubkey, body, expires_at, hidden_at FROM cn_relay.kept_events
                WHERE event_id > $1 AND kind = ANY($2)
                ORDER BY event_id
                LIMIT $3
            )
        ) AS event
        ORDER BY event_id
        LIMIT $3
        "#,
        after,
        kinds,
        BATCH,
    )
    .fetch_all(connection)
    .await?;
    let rows = rows.into_iter();
    Ok(rows
        .filter_map(|row| kept(&row.event_id, &row.pubkey, row.is_visible, row.body))
        .collect())
}

fn kept(id: &[u8], author: &[u8], is_visible: bool, body: Option<String>) -> Option<Kept> {
    Some(Kept {
        id: Id::from_slice(id)?,
        author: key(author)?,
        is_visible,
        body,
    })
}

/// A key of 32 bytes.
pub(super) fn key(bytes: &[u8]) -> Option<Key> {
    bytes.try_into().ok().map(Key)
}
