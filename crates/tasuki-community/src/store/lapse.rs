//! Events whose time is over: they are hidden, and whoever follows the log is told.

use std::time::Duration;

use sqlx::PgConnection;
use sqlx::postgres::types::PgInterval;

/// How many go at a time.
pub(crate) const BATCH: i64 = 500;

/// Hides events that have ended (NIP-40); answers how many.
pub(crate) async fn expired(tx: &mut PgConnection) -> sqlx::Result<usize> {
    let gone = sqlx::query_scalar!(
        r#"
        WITH due AS MATERIALIZED (
            SELECT event_id, ingested_at FROM cn_relay.events
            WHERE expires_at <= floor(extract(EPOCH FROM clock_timestamp()))::bigint AND hidden_at IS NULL
            ORDER BY expires_at
            LIMIT $1
            FOR NO KEY UPDATE SKIP LOCKED
        ),

        due_kept AS MATERIALIZED (
            SELECT event_id FROM cn_relay.kept_events
            WHERE expires_at <= floor(extract(EPOCH FROM clock_timestamp()))::bigint AND hidden_at IS NULL
            ORDER BY expires_at
            LIMIT $1
            FOR NO KEY UPDATE SKIP LOCKED
        ),

        regular AS (
            UPDATE cn_relay.events AS event
            SET hidden_at = now()
            FROM due
            WHERE event.event_id = due.event_id AND event.ingested_at = due.ingested_at
            RETURNING
                event.event_id, event.kind, event.created_at, event.ingested_at, NULL AS effective_key,
                event.topics
        ),

        kept AS (
            UPDATE cn_relay.kept_events AS event
            SET hidden_at = now()
            FROM due_kept
            WHERE event.event_id = due_kept.event_id
            RETURNING
                event.event_id, event.kind, event.created_at, event.ingested_at, event.effective_key,
                event.topics
        ),

        gone AS MATERIALIZED (SELECT * FROM regular UNION ALL SELECT * FROM kept),

        told AS (
            INSERT INTO cn_relay.events_outbox_pending (
                op, event_id, topic_id, kind, created_at, ingested_at, effective_key, reason
            )
            SELECT
                'delete', encode(event_id, 'hex'), topic, kind, created_at, ingested_at, effective_key,
                'expiration'
            FROM gone
            CROSS JOIN LATERAL unnest(topics) AS topic
        )

        SELECT count(*) AS "count!" FROM gone
        "#,
        BATCH,
    )
    .fetch_one(tx)
    .await?;
    Ok(usize::try_from(gone).unwrap_or_default())
}

/// Hides regular events that are older than `keep`, before their partition is dropped; answers how many.
pub(crate) async fn aged(tx: &mut PgConnection, keep: Duration) -> sqlx::Result<usize> {
    let gone = sqlx::query_scalar!(
        r#"
        WITH due AS MATERIALIZED (
            SELECT event_id, ingested_at FROM cn_relay.events
            WHERE ingested_at < now() - $2::interval AND hidden_at IS NULL
            ORDER BY ingested_at
            LIMIT $1
            FOR NO KEY UPDATE SKIP LOCKED
        ),

        gone AS (
            UPDATE cn_relay.events AS event
            SET hidden_at = now()
            FROM due
            WHERE event.event_id = due.event_id AND event.ingested_at = due.ingested_at
            RETURNING event.event_id, event.kind, event.created_at, event.ingested_at, event.topics
        ),

        told AS (
            INSERT INTO cn_relay.events_outbox_pending (
                op, event_id, topic_id, kind, created_at, ingested_at, reason
            )
            SELECT
                'delete', encode(event_id, 'hex'), topic, kind, created_at, ingested_at, 'retention'
            FROM gone
            CROSS JOIN LATERAL unnest(topics) AS topic
        )

        SELECT count(*) AS "count!" FROM gone
        "#,
        BATCH,
        interval(keep),
    )
    .fetch_one(tx)
    .await?;
    Ok(usize::try_from(gone).unwrap_or_default())
}

/// Removes deletions that are older than `keep`, and versions that nobody has seen for as long; answers
/// how many.
pub(crate) async fn deletions(tx: &mut PgConnection, keep: Duration) -> sqlx::Result<usize> {
    let gone = sqlx::query_scalar!(
        r#"
        WITH gone AS (
            DELETE FROM cn_relay.kept_events
            WHERE event_id IN (
                SELECT event_id FROM cn_relay.kept_events
                WHERE version_key IS NULL AND ingested_at < now() - $2::interval
                ORDER BY ingested_at
                LIMIT $1
                FOR UPDATE SKIP LOCKED
            ) OR event_id IN (
                SELECT event_id FROM cn_relay.kept_events
                WHERE hidden_at < now() - $2::interval
                ORDER BY hidden_at
                LIMIT $1
                FOR UPDATE SKIP LOCKED
            )
            RETURNING event_id, kind, created_at, ingested_at, topics, hidden_at
        ),

        told AS (
            INSERT INTO cn_relay.events_outbox_pending (
                op, event_id, topic_id, kind, created_at, ingested_at, reason
            )
            SELECT
                'delete', encode(event_id, 'hex'), topic, kind, created_at, ingested_at, 'retention'
            FROM gone
            CROSS JOIN LATERAL unnest(topics) AS topic
            WHERE hidden_at IS NULL
        )

        SELECT count(*) AS "count!" FROM gone
        "#,
        BATCH,
        interval(keep),
    )
    .fetch_one(tx)
    .await?;
    Ok(usize::try_from(gone).unwrap_or_default())
}

fn interval(time: Duration) -> PgInterval {
    PgInterval {
        months: 0,
        days: 0,
        microseconds: i64::try_from(time.as_micros()).unwrap_or(i64::MAX),
    }
}
