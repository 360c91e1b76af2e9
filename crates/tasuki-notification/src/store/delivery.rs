//! Claimed notifications, and how they end.

use sqlx::PgConnection;
use tasuki::lease::{Fence, Letter, Table};
use time::OffsetDateTime;
use uuid::Uuid;

/// What every claim of a notification hands to its worker.
const COLUMNS: &str = "t.notification_id, t.event_id, t.user_id, t.type AS kind, t.channel, \
    t.endpoint_id, t.aggregate_key, t.version, t.occurred_at, t.payload_json, t.traceparent";

const LETTER: Letter = Letter {
    queue: "channel",
    kind: "type",
    payload: "convert_to(payload_json::text, 'UTF8')",
};

/// Notifications that are delivered inside: to the log and to inboxes.
pub(crate) const INSIDE: Table = Table {
    name: "notifications_live",
    key: "notification_id",
    claimed: "PROCESSING",
    columns: COLUMNS,
    with: "",
    pick: "SELECT t.ctid FROM {table} AS t WHERE t.channel <> 'webhook' AND {claimable}
        ORDER BY t.next_retry_at LIMIT $1 FOR UPDATE SKIP LOCKED",
    letter: LETTER,
    lost: None,
};

/// Those that are delivered to webhooks.
pub(crate) const WEBHOOK: Table = Table {
    pick: "SELECT t.ctid FROM {table} AS t WHERE t.channel = 'webhook' AND {claimable}
        ORDER BY t.next_retry_at LIMIT $1 FOR UPDATE SKIP LOCKED",
    ..INSIDE
};

/// A claimed notification.
#[derive(Clone, Debug, sqlx::FromRow)]
pub(crate) struct Row {
    pub(crate) notification_id: Uuid,
    pub(crate) event_id: Uuid,
    pub(crate) user_id: String,
    pub(crate) kind: String,
    pub(crate) channel: String,
    pub(crate) endpoint_id: Option<Uuid>,
    pub(crate) aggregate_key: String,
    pub(crate) version: i64,
    pub(crate) occurred_at: OffsetDateTime,
    pub(crate) payload_json: serde_json::Value,
    pub(crate) traceparent: Option<String>,
}

/// Settles notifications that were sent, all at once; answers those whose claim still held.
pub(crate) async fn sent(
    connection: &mut PgConnection,
    fences: &[Fence],
) -> sqlx::Result<Vec<Uuid>> {
    let (ids, tokens) = split(fences);
    sqlx::query_scalar!(
        r#"
        WITH mine AS (
            DELETE FROM notification.notifications_live AS live
            USING UNNEST($1::uuid[], $2::uuid[]) AS claim (id, token)
            WHERE live.notification_id = claim.id AND live.claim_token = claim.token
            RETURNING live.*
        )
        INSERT INTO notification.notifications_sent (
            notification_id, event_id, user_id, type, channel, endpoint_id, aggregate_key,
            version, occurred_at, payload_json, traceparent, attempt_count, created_at
        )
        SELECT
            notification_id, event_id, user_id, type, channel, endpoint_id, aggregate_key,
            version, occurred_at, payload_json, traceparent, attempt_count + 1, created_at
        FROM mine
        RETURNING notification_id
        "#,
        &ids,
        &tokens,
    )
    .fetch_all(connection)
    .await
}

/// The same where some of them go to inboxes: there they get the next numbers, and whether a
/// newer version was shown before.
pub(crate) async fn shown(
    connection: &mut PgConnection,
    fences: &[Fence],
) -> sqlx::Result<Vec<Uuid>> {
    let (ids, tokens) = split(fences);
    sqlx::query_file_scalar!("src/store/shown.sql", &ids, &tokens)
        .fetch_all(connection)
        .await
}

fn split(fences: &[Fence]) -> (Vec<Uuid>, Vec<Uuid>) {
    fences.iter().map(|fence| (fence.id, fence.token)).unzip()
}
