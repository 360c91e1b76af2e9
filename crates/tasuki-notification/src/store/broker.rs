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

/// Removes the entry of another message that had the number of this one, and says which it was:
/// the broker was rolled back, and neither that message nor a way to redrive it is left.
pub(crate) async fn make_room(
    tx: &mut PgConnection,
    lost: &Lost<'_>,
) -> sqlx::Result<Option<Option<Uuid>>> {
    sqlx::query_scalar!(
        r#"
        DELETE FROM notification.notification_nats_dlq
        WHERE stream = $1 AND stream_created_at = $2 AND stream_seq = $3
            AND $4::uuid IS NOT NULL AND message_id IS DISTINCT FROM $4
        RETURNING message_id
        "#,
        lost.stream,
        lost.stream_created_at,
        lost.stream_seq,
        lost.message_id,
    )
    .fetch_optional(tx)
    .await
}

/// Records a message once, and says whether that is news. What the broker says of it is more than
/// what a sweep guesses.
pub(crate) async fn record(tx: &mut PgConnection, lost: &Lost<'_>) -> sqlx::Result<bool> {
    let done = sqlx::query!(
        r#"
        INSERT INTO notification.notification_nats_dlq AS kept (
            stream, stream_created_at, stream_seq, consumer, message_id, kind, reason, deliveries
        )
        VALUES ($1, $2, $3, $4, $5, $6, $7, $8)
        ON CONFLICT (stream, stream_created_at, stream_seq) DO UPDATE SET
            kind = excluded.kind, reason = excluded.reason, deliveries = excluded.deliveries
        WHERE kept.kind = 'MISSED' AND excluded.kind <> 'MISSED'
            AND kept.message_id IS NOT DISTINCT FROM excluded.message_id
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
    Ok(done.rows_affected() == 1)
}

/// Which of these numbers of a stream are recorded, and the ids of their messages.
pub(crate) async fn recorded(
    connection: &mut PgConnection,
    stream: &str,
    created_at: OffsetDateTime,
    sequences: &[i64],
) -> sqlx::Result<Vec<(i64, Option<Uuid>)>> {
    let rows = sqlx::query!(
        r#"
        SELECT stream_seq, message_id
        FROM notification.notification_nats_dlq
        WHERE stream = $1 AND stream_created_at = $2 AND stream_seq = ANY($3)
        "#,
        stream,
        created_at,
        sequences,
    )
    .fetch_all(connection)
    .await?;
    let rows = rows.into_iter();
    Ok(rows.map(|row| (row.stream_seq, row.message_id)).collect())
}

/// A stream as a consumer reads it: what a sweep is of.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reading<'a> {
    pub(crate) stream: &'a str,
    pub(crate) stream_created_at: OffsetDateTime,
    pub(crate) consumer: &'a str,
}

/// What the sweeps before have left.
#[derive(Clone, Debug)]
pub(crate) struct Swept {
    /// Everything up to this number was compared.
    pub(crate) swept_seq: i64,
    /// Up to where the consumer had settled.
    pub(crate) settled_seq: Option<i64>,
    /// The last message that was compared.
    pub(crate) known_seq: Option<i64>,
    pub(crate) known_id: Option<Uuid>,
}

/// How far a stream was swept; nothing if it never was.
pub(crate) async fn swept(
    connection: &mut PgConnection,
    of: &Reading<'_>,
) -> sqlx::Result<Option<Swept>> {
    sqlx::query_as!(
        Swept,
        r#"
        SELECT swept_seq, settled_seq, known_seq, known_id
        FROM notification.sweeps
        WHERE stream = $1 AND consumer = $2 AND stream_created_at = $3
        "#,
        of.stream,
        of.consumer,
        of.stream_created_at,
    )
    .fetch_optional(connection)
    .await
}

/// Begins to sweep a stream, or begins again.
pub(crate) async fn begin_sweep(
    tx: &mut PgConnection,
    of: &Reading<'_>,
    settled_seq: i64,
) -> sqlx::Result<()> {
    sqlx::query!(
        r#"
        INSERT INTO notification.sweeps AS kept (
            stream, consumer, stream_created_at, swept_seq, settled_seq
        )
        VALUES ($1, $2, $3, 0, $4)
        ON CONFLICT (stream, consumer) DO UPDATE SET
            stream_created_at = excluded.stream_created_at, swept_seq = 0,
            settled_seq = excluded.settled_seq, known_seq = NULL, known_id = NULL, swept_at = now()
        "#,
        of.stream,
        of.consumer,
        of.stream_created_at,
        settled_seq,
    )
    .execute(tx)
    .await?;
    Ok(())
}

/// Remembers how far the consumer has settled, unless somebody else has since `before` was read.
pub(crate) async fn remember_settled(
    tx: &mut PgConnection,
    of: &Reading<'_>,
    before: Option<i64>,
    settled_seq: i64,
) -> sqlx::Result<bool> {
    let done = sqlx::query!(
        r#"
        UPDATE notification.sweeps
        SET settled_seq = $5
        WHERE stream = $1 AND consumer = $2 AND stream_created_at = $3
            AND settled_seq IS NOT DISTINCT FROM $4
        "#,
        of.stream,
        of.consumer,
        of.stream_created_at,
        before,
        settled_seq,
    )
    .execute(tx)
    .await?;
    Ok(done.rows_affected() == 1)
}

/// Remembers how far a stream was swept, and the last message in it that had an id; unless somebody
/// else has swept it, or begun again, since `before` was read.
pub(crate) async fn remember_sweep(
    tx: &mut PgConnection,
    of: &Reading<'_>,
    before: i64,
    swept_seq: i64,
    known: Option<(i64, Uuid)>,
) -> sqlx::Result<bool> {
    let done = sqlx::query!(
        r#"
        UPDATE notification.sweeps
        SET swept_seq = $4,
            known_seq = COALESCE($5, known_seq),
            known_id = COALESCE($6, known_id),
            swept_at = now()
        WHERE stream = $1 AND consumer = $2 AND stream_created_at = $3 AND swept_seq = $7
        "#,
        of.stream,
        of.consumer,
        of.stream_created_at,
        swept_seq,
        known.map(|(sequence, _)| sequence),
        known.map(|(_, id)| id),
        before,
    )
    .execute(tx)
    .await?;
    Ok(done.rows_affected() == 1)
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
    pub(crate) closed_by: Option<String>,
    pub(crate) discard_reason: Option<String>,
    pub(crate) last_error: Option<String>,
}

/// Where a page of entries begins: after the one with these.
#[derive(Clone, Copy, Debug)]
pub(crate) struct After<'a> {
    pub(crate) created_at: OffsetDateTime,
    pub(crate) stream: &'a str,
    pub(crate) stream_created_at: OffsetDateTime,
    pub(crate) stream_seq: i64,
}

/// The latest entries, the open ones only or all, at most `limit`.
pub(crate) async fn list(
    connection: &mut PgConnection,
    open_only: bool,
    after: Option<After<'_>>,
    limit: i64,
) -> sqlx::Result<Vec<Entry>> {
    sqlx::query_as!(
        Entry,
        r#"
        SELECT
            stream, stream_created_at, stream_seq, consumer, message_id, kind, reason, deliveries,
            created_at, redriven_at, discarded_at, closed_by, discard_reason, last_error
        FROM notification.notification_nats_dlq
        WHERE (NOT $1 OR (redriven_at IS NULL AND discarded_at IS NULL))
            AND (
                $3::timestamptz IS NULL
                OR (created_at, stream, stream_created_at, stream_seq) < ($3, $4, $5, $6)
            )
        ORDER BY created_at DESC, stream DESC, stream_created_at DESC, stream_seq DESC
        LIMIT $2
        "#,
        open_only,
        limit,
        after.map(|it| it.created_at),
        after.map(|it| it.stream),
        after.map(|it| it.stream_created_at),
        after.map(|it| it.stream_seq),
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
        End::Redriven => (true, None, None),
        End::Discarded(reason) => (false, Some(*reason), None),
        End::StillFailing(error) => (false, None, Some(*error)),
    };
    sqlx::query!(
        r#"
        UPDATE notification.notification_nats_dlq
        SET redriven_at = CASE WHEN $4 THEN now() END,
            discarded_at = CASE WHEN $5::text IS NOT NULL THEN now() END,
            discard_reason = $5,
            last_error = COALESCE($6, last_error),
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
