//! Messages that the broker gave up or lost, and how far that was looked into.

use sqlx::PgConnection;
use time::OffsetDateTime;
use uuid::Uuid;

/// A message that will not come by itself.
#[derive(Clone, Debug)]
pub(crate) struct Lost<'a> {
    pub(crate) stream: &'a str,
    pub(crate) stream_created_at: OffsetDateTime,
    pub(crate) stream_seq: i64,
    pub(crate) consumer: &'a str,
    pub(crate) message_id: Option<Uuid>,
    pub(crate) kind: &'a str,
    pub(crate) reason: Option<String>,
    pub(crate) deliveries: Option<i64>,
}

/// Records a message once. What the broker says of it is more than what a sweep guesses.
pub(crate) async fn record(tx: &mut PgConnection, lost: &Lost<'_>) -> sqlx::Result<()> {
    sqlx::query!(
        r#"
        INSERT INTO notification.notification_nats_dlq AS kept (
            stream, stream_created_at, stream_seq, consumer, message_id, kind, reason, deliveries
        )
        VALUES ($1, $2, $3, $4, $5, $6, $7, $8)
        ON CONFLICT (stream, stream_created_at, stream_seq) DO UPDATE SET
            kind = excluded.kind, reason = excluded.reason, deliveries = excluded.deliveries
        WHERE kept.kind = 'MISSED' AND excluded.kind <> 'MISSED'
        "#,
        lost.stream,
        lost.stream_created_at,
        lost.stream_seq,
        lost.consumer,
        lost.message_id,
        lost.kind,
        lost.reason,
        lost.deliveries,
    )
    .execute(tx)
    .await?;
    Ok(())
}

/// Which of these numbers of a stream are recorded.
pub(crate) async fn recorded(
    connection: &mut PgConnection,
    stream: &str,
    created_at: OffsetDateTime,
    sequences: &[i64],
) -> sqlx::Result<Vec<i64>> {
    sqlx::query_scalar!(
        r#"
        SELECT stream_seq
        FROM notification.notification_nats_dlq
        WHERE stream = $1 AND stream_created_at = $2 AND stream_seq = ANY($3)
        "#,
        stream,
        created_at,
        sequences,
    )
    .fetch_all(connection)
    .await
}

/// How far a stream was swept: when it was created, and up to which number.
pub(crate) async fn swept(
    connection: &mut PgConnection,
    stream: &str,
    consumer: &str,
) -> sqlx::Result<Option<(OffsetDateTime, i64)>> {
    let row = sqlx::query!(
        r#"
        SELECT stream_created_at, swept_seq
        FROM notification.sweeps
        WHERE stream = $1 AND consumer = $2
        "#,
        stream,
        consumer,
    )
    .fetch_optional(connection)
    .await?;
    Ok(row.map(|row| (row.stream_created_at, row.swept_seq)))
}

/// Remembers how far a stream was swept.
pub(crate) async fn remember_sweep(
    tx: &mut PgConnection,
    stream: &str,
    consumer: &str,
    created_at: OffsetDateTime,
    swept_seq: i64,
) -> sqlx::Result<()> {
    sqlx::query!(
        r#"
        INSERT INTO notification.sweeps AS kept (stream, consumer, stream_created_at, swept_seq)
        VALUES ($1, $2, $3, $4)
        ON CONFLICT (stream, consumer) DO UPDATE SET
            stream_created_at = excluded.stream_created_at, swept_seq = excluded.swept_seq,
            swept_at = now()
        "#,
        stream,
        consumer,
        created_at,
        swept_seq,
    )
    .execute(tx)
    .await?;
    Ok(())
}

/// An entry of the list of lost messages.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) stream: String,
    pub(crate) stream_created_at: OffsetDateTime,
    pub(crate) stream_seq: i64,
    pub(crate) consumer: String,
    pub(crate) message_id: Option<Uuid>,
    pub(crate) kind: String,
    pub(crate) reason: Option<String>,
    pub(crate) deliveries: Option<i64>,
    pub(crate) created_at: OffsetDateTime,
    pub(crate) redriven_at: Option<OffsetDateTime>,
    pub(crate) discarded_at: Option<OffsetDateTime>,
    pub(crate) last_error: Option<String>,
}

/// The latest entries, the open ones only or all, at most `limit`.
pub(crate) async fn list(
    connection: &mut PgConnection,
    open_only: bool,
    limit: i64,
) -> sqlx::Result<Vec<Entry>> {
    sqlx::query_as!(
        Entry,
        r#"
        SELECT
            stream, stream_created_at, stream_seq, consumer, message_id, kind, reason, deliveries,
            created_at, redriven_at, discarded_at, last_error
        FROM notification.notification_nats_dlq
        WHERE NOT $1 OR (redriven_at IS NULL AND discarded_at IS NULL)
        ORDER BY created_at DESC, stream_seq DESC
        LIMIT $2
        "#,
        open_only,
        limit,
    )
    .fetch_all(connection)
    .await
}

/// Takes hold of an open entry until the transaction ends; nothing if it is not open.
pub(crate) async fn hold(
    tx: &mut PgConnection,
    stream: &str,
    created_at: OffsetDateTime,
    sequence: i64,
) -> sqlx::Result<Option<String>> {
    sqlx::query_scalar!(
        r#"
        SELECT consumer
        FROM notification.notification_nats_dlq
        WHERE stream = $1 AND stream_created_at = $2 AND stream_seq = $3
            AND redriven_at IS NULL AND discarded_at IS NULL
        FOR UPDATE
        "#,
        stream,
        created_at,
        sequence,
    )
    .fetch_optional(tx)
    .await
}

/// How somebody ended an entry, or tried to.
#[derive(Clone, Debug)]
pub(crate) enum End<'a> {
    Redriven,
    Discarded(&'a str),
    StillFailing(&'a str),
}

/// Writes down what somebody did about an entry.
pub(crate) async fn end(
    tx: &mut PgConnection,
    key: (&str, OffsetDateTime, i64),
    actor: &str,
    end: &End<'_>,
) -> sqlx::Result<()> {
    let (redriven, discarded, error) = match end {
        End::Redriven => (true, false, None),
        End::Discarded(reason) => (false, true, Some(*reason)),
        End::StillFailing(error) => (false, false, Some(*error)),
    };
    sqlx::query!(
        r#"
        UPDATE notification.notification_nats_dlq
        SET redriven_at = CASE WHEN $4 THEN now() END,
            discarded_at = CASE WHEN $5 THEN now() END,
            last_error = $6,
            closed_by = $7
        WHERE stream = $1 AND stream_created_at = $2 AND stream_seq = $3
        "#,
        key.0,
        key.1,
        key.2,
        redriven,
        discarded,
        error,
        actor,
    )
    .execute(tx)
    .await?;
    Ok(())
}

/// How many entries are open.
pub(crate) async fn open(connection: &mut PgConnection) -> sqlx::Result<i64> {
    sqlx::query_scalar!(
        r#"
        SELECT count(*) AS "count!"
        FROM notification.notification_nats_dlq
        WHERE redriven_at IS NULL AND discarded_at IS NULL
        "#,
    )
    .fetch_one(connection)
    .await
}
