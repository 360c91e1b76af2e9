//! Claimed notifications, and how they end.

use sqlx::{Arguments, PgConnection};
use tasuki::lease::{Claim, Claimed, Fence, Leases, Letter, Table};
use time::OffsetDateTime;
use uuid::Uuid;

/// What every claim of a notification hands to its worker.
const COLUMNS: &str = "t.notification_id, t.event_id, t.user_id, t.type AS kind, t.channel, \
    t.endpoint_id, t.aggregate_key, t.version, t.occurred_at, t.payload_json, t.traceparent, \
    t.created_at, t.next_retry_at";

const LETTER: Letter = Letter {
    queue: "channel",
    kind: "type",
    payload: "convert_to(payload_json::text, 'UTF8')",
};

/// The time of the claim, which tells a worker how far it has come when there was nothing to
/// claim.
const NOW: &str = "
place AS (
    SELECT (extract(EPOCH FROM now()) * 1000)::bigint::text AS place
)";

/// Notifications that are delivered inside: to the log and to inboxes. `$5` is where to begin.
pub(crate) const INSIDE: Table = Table {
    name: "notifications_live",
    key: "notification_id",
    claimed: "PROCESSING",
    columns: COLUMNS,
    with: NOW,
    pick: "SELECT t.ctid FROM {table} AS t WHERE t.channel <> 'webhook'
            AND t.next_retry_at >= coalesce($5::timestamptz, now() - interval '1 minute')
            AND {claimable}
        ORDER BY t.next_retry_at LIMIT $1 FOR UPDATE SKIP LOCKED",
    letter: LETTER,
    lost: None,
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
    pub(crate) created_at: OffsetDateTime,
    pub(crate) next_retry_at: OffsetDateTime,
}

/// Claims what is to be delivered inside, and is due at `from` or later; tells the database's
/// time, too.
pub(crate) async fn claim_inside(
    leases: &Leases,
    connection: &mut PgConnection,
    claim: &Claim<'_>,
    from: Option<OffsetDateTime>,
) -> sqlx::Result<(Vec<Claimed<Row>>, Option<OffsetDateTime>)> {
    let (rows, now) = leases
        .claim_from(connection, claim, |arguments| arguments.add(from))
        .await?;
    let milliseconds = now.and_then(|now| now.parse::<i128>().ok());
    let now =
        milliseconds.and_then(|ms| OffsetDateTime::from_unix_timestamp_nanos(ms * 1_000_000).ok());
    Ok((rows, now))
}

/// When the first of those that may be claimed was due, among what was due before `until`.
pub(crate) async fn first_inside(
    connection: &mut PgConnection,
    until: Option<OffsetDateTime>,
) -> sqlx::Result<Option<OffsetDateTime>> {
    sqlx::query_scalar!(
        r#"
        SELECT next_retry_at
        FROM notification.notifications_live
        WHERE channel <> 'webhook'
            AND next_retry_at < COALESCE($1::timestamptz, 'infinity') AND next_retry_at <= now()
            AND (
                status = 'PENDING'
                OR (status = 'PROCESSING' AND (lease_until IS NULL OR lease_until <= now()))
            )
        ORDER BY next_retry_at
        LIMIT 1
        "#,
        until,
    )
    .fetch_optional(connection)
    .await
}

/// What is due and not done yet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Backlog {
    pub(crate) rows: i64,
    /// For how long the first of them has been due.
    pub(crate) oldest_seconds: f64,
}

/// What is due inside, counted up to `most`.
pub(crate) async fn due_inside(connection: &mut PgConnection, most: i64) -> sqlx::Result<Backlog> {
    sqlx::query_as!(
        Backlog,
        r#"
        SELECT
            count(*) AS "rows!",
            COALESCE(extract(EPOCH FROM now() - min(next_retry_at)), 0)::double precision
                AS "oldest_seconds!"
        FROM (
            SELECT next_retry_at
            FROM notification.notifications_live
            WHERE channel <> 'webhook' AND next_retry_at <= now()
            ORDER BY next_retry_at
            LIMIT $1
        ) AS due
        "#,
        most,
    )
    .fetch_one(connection)
    .await
}

/// The same of webhooks.
pub(crate) async fn due_webhooks(
    connection: &mut PgConnection,
    most: i64,
) -> sqlx::Result<Backlog> {
    sqlx::query_as!(
        Backlog,
        r#"
        SELECT
            count(*) AS "rows!",
            COALESCE(extract(EPOCH FROM now() - min(next_retry_at)), 0)::double precision
                AS "oldest_seconds!"
        FROM (
            SELECT next_retry_at
            FROM notification.notifications_live
            WHERE channel = 'webhook' AND next_retry_at <= now()
            ORDER BY next_retry_at
            LIMIT $1
        ) AS due
        "#,
        most,
    )
    .fetch_one(connection)
    .await
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
            -- By the ids, too: whatever the plan, the rows are found by their key.
            WHERE live.notification_id = ANY($1) AND live.notification_id = claim.id
                AND live.claim_token = claim.token
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
