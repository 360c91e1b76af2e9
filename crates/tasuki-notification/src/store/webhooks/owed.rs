//! What endpoints are owed: claimed in turn, made due, withdrawn, sent once more.

use sqlx::{Arguments, Connection, PgConnection};
use tasuki::lease::{Claim, Claimed, Fence, Leases, Table};
use uuid::Uuid;

use crate::store::delivery::{self, Row};

/// Endpoints that one claim looks at.
const ENDPOINTS_PER_CLAIM: i64 = 500;

/// Notifications to webhooks, a few of each endpoint.
pub(crate) const OWED: Table = Table {
    with: PICK_WITH,
    pick: "SELECT ctid FROM mine",
    ..delivery::INSIDE
};

/// `$1` limit, `$5` endpoint to go on after, `$6` endpoints, `$7` places of an endpoint, `$8`
/// seconds for which what a paused or disabled endpoint is owed is kept.
///
/// `owed` walks from endpoint to endpoint, one probe of the index each: one that is owed a hundred
/// thousand messages costs what any other does. `open` leaves out those that are paused, disabled
/// or held. `mine` takes of the first that are due as many as an endpoint has places. A claim
/// leaves the due time as it is, so whoever is being delivered keeps its place among the first,
/// and no more than that many are under way, whichever processes claim. After a hold there is one
/// place, until a message arrives. What can't be sent any more has no need of places.
///
/// The next claim goes on after the last endpoint that this one took from, or looked at. (Every
/// part says `< 'infinity'`: the index is a partial one, and `now()` proves nothing to the
/// planner.)
const PICK_WITH: &str = "
owed AS (
    (
        SELECT t.endpoint_id, 1::bigint AS nth
        FROM {table} AS t
        WHERE t.channel = 'webhook' AND t.endpoint_id > $5 AND t.next_retry_at < 'infinity'
        ORDER BY t.endpoint_id
        LIMIT 1
    )
    UNION ALL
    SELECT further.endpoint_id, owed.nth + 1
    FROM owed
    CROSS JOIN LATERAL (
        SELECT t.endpoint_id
        FROM {table} AS t
        WHERE t.channel = 'webhook' AND t.endpoint_id > owed.endpoint_id
            AND t.next_retry_at < 'infinity'
        ORDER BY t.endpoint_id
        LIMIT 1
    ) AS further
    WHERE owed.nth < $6
),

open AS (
    SELECT
        owed.endpoint_id,
        CASE
            WHEN endpoint.endpoint_id IS NULL OR endpoint.status <> 'ENABLED' THEN $1
            WHEN endpoint.held_until IS NULL THEN $7::bigint
            ELSE 1
        END AS places
    FROM owed
    LEFT JOIN LATERAL (
        SELECT
            known.endpoint_id, known.status, known.held_until,
            CASE known.status
                WHEN 'PAUSED' THEN coalesce(known.paused_at, known.updated_at)
                WHEN 'DISABLED' THEN known.disabled_at
            END AS closed_at
        FROM {schema}.webhook_endpoints AS known
        WHERE known.endpoint_id = owed.endpoint_id
        LIMIT 1
    ) AS endpoint ON true
    WHERE endpoint.endpoint_id IS NULL
        OR (endpoint.status = 'ENABLED' AND coalesce(endpoint.held_until <= now(), true))
        OR endpoint.closed_at <= now() - make_interval(secs => $8)
),

mine AS MATERIALIZED (
    SELECT head.ctid, open.endpoint_id
    FROM open
    CROSS JOIN LATERAL (
        SELECT t.ctid
        FROM {table} AS t
        WHERE t.ctid = ANY (ARRAY(
                SELECT first.ctid
                FROM {table} AS first
                WHERE first.channel = 'webhook' AND first.endpoint_id = open.endpoint_id
                    AND first.next_retry_at <= now() AND first.next_retry_at < 'infinity'
                ORDER BY first.next_retry_at
                LIMIT open.places
            ))
            AND {claimable}
        FOR UPDATE SKIP LOCKED
    ) AS head
    LIMIT $1
),

place AS (
    SELECT
        CASE
            WHEN (SELECT count(*) FROM mine) >= $1
                THEN (SELECT endpoint_id FROM mine ORDER BY endpoint_id DESC LIMIT 1)
            ELSE (SELECT endpoint_id FROM owed WHERE nth = $6)
        END::text AS place
)";

/// Whose turn it is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Turn {
    /// The endpoint after which the claim goes on.
    pub(crate) after: Uuid,
    /// How many of one endpoint may be under way.
    pub(crate) places: usize,
    /// Seconds for which what a paused or disabled endpoint is owed is kept.
    pub(crate) keep: f64,
}

/// Claims what is due, and says after which endpoint the next claim goes on, if there may be more.
pub(crate) async fn claim(
    connection: &mut PgConnection,
    leases: &Leases,
    claim: &Claim<'_>,
    turn: &Turn,
) -> sqlx::Result<(Vec<Claimed<Row>>, Option<Uuid>)> {
    let places = i64::try_from(turn.places.max(1)).unwrap_or(i64::MAX);
    let claimed = leases.claim_from(connection, claim, |arguments| {
        arguments.add(turn.after)?;
        arguments.add(ENDPOINTS_PER_CLAIM)?;
        arguments.add(places)?;
        arguments.add(turn.keep)
    });
    let (rows, place) = claimed.await?;
    Ok((rows, place.and_then(|it| it.parse().ok())))
}

/// Makes everything due that an endpoint is owed and that waits for another attempt. One after the
/// other, since a claim tells them apart by when they are due.
pub(crate) async fn make_due(tx: &mut PgConnection, endpoint: Uuid) -> sqlx::Result<()> {
    sqlx::query!(
        r#"
        UPDATE notification.notifications_live
        SET next_retry_at = clock_timestamp()
        WHERE channel = 'webhook' AND endpoint_id = $1 AND status = 'PENDING'
            AND next_retry_at > now() AND next_retry_at < 'infinity'
        "#,
        endpoint,
    )
    .execute(tx)
    .await?;
    Ok(())
}

/// Settles what was sent and what nobody can be sent any more, all or nothing: whoever asks again for
/// what was done already is told that its claim does not hold.
pub(crate) async fn settle(
    connection: &mut PgConnection,
    sent: &[Fence],
    withdrawn: &[(Fence, &str)],
) -> sqlx::Result<Vec<Uuid>> {
    if withdrawn.is_empty() {
        return delivery::sent(connection, sent).await;
    }
    let mut tx = connection.begin().await?;
    let mut settled = delivery::sent(&mut tx, sent).await?;
    settled.extend(self::withdrawn(&mut tx, withdrawn).await?);
    tx.commit().await?;
    Ok(settled)
}

/// Settles notifications that nobody can be sent any more: each leaves a dead letter that is
/// closed from the start, as if somebody had discarded it. Answers those whose claim still held.
async fn withdrawn(
    connection: &mut PgConnection,
    ended: &[(Fence, &str)],
) -> sqlx::Result<Vec<Uuid>> {
    let ids: Vec<Uuid> = ended.iter().map(|(fence, _)| fence.id).collect();
    let tokens: Vec<Uuid> = ended.iter().map(|(fence, _)| fence.token).collect();
    let reasons: Vec<String> = ended.iter().map(|(_, why)| (*why).to_owned()).collect();
    sqlx::query_scalar!(
        r#"
        WITH mine AS (
            DELETE FROM notification.notifications_live AS live
            USING UNNEST($1::uuid[], $2::uuid[], $3::text[]) AS claim (id, token, reason)
            -- By the ids, too: whatever the plan, the rows are found by their key.
            WHERE live.notification_id = ANY($1) AND live.notification_id = claim.id
                AND live.claim_token = claim.token
            RETURNING live.*, claim.reason
        ),

        letters AS (
            INSERT INTO notification.dead_letters (
                letter_id, source, source_id, queue, kind, payload, error, attempt_count,
                traceparent, discarded_at
            )
            SELECT
                gen_random_uuid(), 'notifications_live', notification_id, channel, type,
                convert_to(payload_json::text, 'UTF8'), reason, attempt_count, traceparent, now()
            FROM mine
            RETURNING letter_id, source, source_id, error
        ),

        audited AS (
            INSERT INTO notification.dead_letter_audit (
                audit_id, letter_id, source, source_id, action, actor, reason
            )
            SELECT
                gen_random_uuid(), letter_id, source, source_id, 'DISCARD', 'notification', error
            FROM letters
        )

        SELECT notification_id AS "notification_id!" FROM mine
        "#,
        &ids,
        &tokens,
        &reasons,
    )
    .fetch_all(connection)
    .await
}

/// Has a notification that an endpoint was sent delivered to it again, under the same id; says
/// whether there was one.
pub(crate) async fn replay(
    connection: &mut PgConnection,
    user: &str,
    endpoint: Uuid,
    notification: Uuid,
) -> sqlx::Result<bool> {
    let done = sqlx::query!(
        r#"
        WITH again AS (
            DELETE FROM notification.notifications_sent
            WHERE user_id = $1 AND endpoint_id = $2 AND notification_id = $3
            RETURNING *
        )
        INSERT INTO notification.notifications_live (
            notification_id, event_id, user_id, type, channel, endpoint_id, aggregate_key,
            version, occurred_at, payload_json, traceparent, created_at
        )
        SELECT
            notification_id, event_id, user_id, type, channel, endpoint_id, aggregate_key,
            version, occurred_at, payload_json, traceparent, created_at
        FROM again
        "#,
        user,
        endpoint,
        notification,
    )
    .execute(connection)
    .await?;
    Ok(done.rows_affected() == 1)
}
