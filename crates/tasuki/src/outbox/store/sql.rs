//! The outbox's statements, as text: `{schema}` is rendered once.

use crate::lease::{Letter, Table};

pub(super) const TABLE: Table = Table {
    name: "outbox_events",
    key: "event_id",
    claimed: "IN_FLIGHT",
    columns: "t.seq, t.event_type, t.aggregate_key, t.ordering_key, t.payload, t.traceparent, \
              t.correlation_id, t.causation_id, t.occurred_at, t.next_retry_at, \
              extract(EPOCH FROM now() - t.created_at)::float8 AS age",
    with: PICK_WITH,
    pick: "SELECT ctid FROM ordered UNION ALL SELECT ctid FROM unordered",
    letter: Letter {
        queue: "'outbox'",
        kind: "event_type",
        payload: "payload",
    },
    lost: None,
};

/// `$1` limit, `$5` key to go on after, `$6` due time to begin at, `$7` keys, `$8` events per key.
///
/// Ordered events: `keys` walks from key to key, one probe of the index each, so a key with a
/// long backlog costs what any other does. The first live row of a key is its lock: `heads`
/// locks it if it may be claimed, and whoever has it may take the rows behind it (`ordered`),
/// up to the first that may not be claimed. Those are not locked before they are claimed: whoever
/// had some of them and renews just now keeps those, and a run has a gap. So the claim tells how
/// many it `picked`, for whoever gets fewer. The next claim goes on after the last key that this
/// one took from, or looked at, so keys are served in turn. (Every part says `< 'infinity'`: the
/// index is a partial one, and `now()` proves nothing to the planner.) A head that is waiting for its retry, or in
/// somebody's hands, thus holds up its own key and no other.
pub(super) const PICK_WITH: &str = "
keys AS (
    (
        SELECT t.ordering_key, t.seq, 1::bigint AS nth
        FROM {table} AS t
        WHERE t.ordering_key > $5 AND t.next_retry_at < 'infinity'
        ORDER BY t.ordering_key, t.seq
        LIMIT 1
    )
    UNION ALL
    SELECT further.ordering_key, further.seq, keys.nth + 1
    FROM keys
    CROSS JOIN LATERAL (
        SELECT t.ordering_key, t.seq
        FROM {table} AS t
        WHERE t.ordering_key > keys.ordering_key AND t.next_retry_at < 'infinity'
        ORDER BY t.ordering_key, t.seq
        LIMIT 1
    ) AS further
    WHERE keys.nth < $7
),

heads AS MATERIALIZED (
    SELECT head.ordering_key, head.seq
    FROM keys
    CROSS JOIN LATERAL (
        SELECT t.ordering_key, t.seq
        FROM {table} AS t
        WHERE t.ordering_key = keys.ordering_key
            AND t.seq = keys.seq
            AND t.next_retry_at < 'infinity'
            AND {claimable}
        FOR UPDATE SKIP LOCKED
    ) AS head
),

ordered AS MATERIALIZED (
    SELECT run.ctid, heads.ordering_key
    FROM heads
    CROSS JOIN LATERAL (
        SELECT t.ctid, bool_and({claimable}) OVER (ORDER BY t.seq) AS unbroken
        FROM {table} AS t
        WHERE t.ordering_key = heads.ordering_key
            AND t.seq >= heads.seq
            AND t.next_retry_at < 'infinity'
        ORDER BY t.seq
        LIMIT $8
    ) AS run
    WHERE run.unbroken
    LIMIT $1
),

unordered AS MATERIALIZED (
    SELECT t.ctid
    FROM {table} AS t
    WHERE t.ordering_key IS NULL
        AND t.next_retry_at >= coalesce($6::timestamptz, now() - interval '1 minute')
        AND {claimable}
    ORDER BY t.next_retry_at, t.seq
    LIMIT $1
    FOR UPDATE SKIP LOCKED
),

place AS (
    SELECT
        CASE
            WHEN (SELECT count(*) FROM ordered) >= $1
                THEN (SELECT max(ordering_key) FROM ordered)
            ELSE max(ordering_key) FILTER (WHERE nth = $7)
        END AS place,
        (SELECT count(*) FROM ordered) AS picked
    FROM keys
)";

/// The first event without a key that may be claimed before `$1`, where claims begin.
pub(super) const LOOK: &str = "
SELECT t.next_retry_at
FROM {schema}.outbox_events AS t
WHERE t.ordering_key IS NULL
    AND t.next_retry_at < coalesce($1::timestamptz, 'infinity')
    AND {claimable}
ORDER BY t.next_retry_at
LIMIT 1";

pub(super) const INSERT: &str = "
INSERT INTO {schema}.outbox_events
    (event_id, event_type, aggregate_key, ordering_key, payload, traceparent,
     correlation_id, causation_id, occurred_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, coalesce($9, now()))";

pub(super) const INSERT_ALL: &str = "
INSERT INTO {schema}.outbox_events
    (event_id, event_type, aggregate_key, ordering_key, payload, traceparent,
     correlation_id, causation_id, occurred_at)
SELECT id, event_type, aggregate_key, ordering_key, payload, traceparent,
    correlation_id, causation_id, coalesce(occurred_at, now())
FROM unnest($1::uuid [], $2::text [], $3::text [], $4::text [], $5::bytea [], $6::text [],
        $7::text [], $8::uuid [], $9::timestamptz [])
    WITH ORDINALITY AS event (
        id, event_type, aggregate_key, ordering_key, payload, traceparent,
        correlation_id, causation_id, occurred_at, nth
    )
ORDER BY nth";

/// (The ids once more: a plan that was made on an empty table reads all of it otherwise.)
pub(super) const SETTLE: &str = "
WITH gone AS (
    DELETE FROM {schema}.outbox_events AS t
    USING unnest($1::uuid [], $2::uuid [], $3::text [], $4::timestamptz [], $5::bigint [])
        AS mine (id, token, stream, stream_created_at, stream_seq)
    WHERE t.event_id = mine.id AND t.claim_token = mine.token AND t.event_id = ANY($1)
    RETURNING t.*, mine.stream, mine.stream_created_at, mine.stream_seq
)

INSERT INTO {schema}.outbox_published
    ({moved}, stream, stream_created_at, stream_seq)
SELECT {moved}, stream, stream_created_at, stream_seq FROM gone
RETURNING event_id";

/// What a row keeps on its way between the two tables.
pub(super) const MOVED: &str = "event_id, seq, event_type, aggregate_key, ordering_key, payload, traceparent, \
                     correlation_id, causation_id, occurred_at, attempt_count, created_at";

pub(super) const ELSEWHERE: &str = "
SELECT
    EXISTS (
        SELECT FROM {schema}.outbox_published WHERE stream = $1 AND stream_created_at < $2
    ) OR EXISTS (
        SELECT FROM {schema}.outbox_published WHERE stream = $1 AND stream_created_at > $2
    )";

pub(super) const NEWEST: &str = "
SELECT event_id, stream_seq
FROM {schema}.outbox_published
WHERE stream = $1 AND stream_created_at = $2
ORDER BY stream_seq DESC
LIMIT 1";

/// Of a stream that there is now: the highest of the one that was created last.
pub(super) const HIGHEST: &str = "
SELECT (
    SELECT stream_seq
    FROM {schema}.outbox_published
    WHERE stream = $1
    ORDER BY stream_created_at DESC, stream_seq DESC
    LIMIT 1
)";

pub(super) const AT_OR_AFTER: &str = "
SELECT event_id, stream_seq
FROM {schema}.outbox_published
WHERE stream = $1 AND stream_created_at = $2 AND stream_seq >= $3
ORDER BY stream_seq
LIMIT $4";

pub(super) const REUSED: &str = "
SELECT EXISTS (
    SELECT FROM {schema}.outbox_published
    WHERE stream = $1 AND stream_created_at = $2 AND stream_seq >= $3
    GROUP BY stream_seq
    HAVING count(*) > 1
)";

/// The row gets its old place back, so that events of one key are sent again in their order. What
/// another reconciler has locked, it sends again: two that waited for each other would deadlock.
pub(super) const SEND_AGAIN: &str = "
WITH chosen AS (
    SELECT t.stream_seq, t.event_id
    FROM {schema}.outbox_published AS t
    INNER JOIN unnest($3::uuid [], $4::bigint []) AS gone (event_id, stream_seq)
        ON t.stream_seq = gone.stream_seq AND t.event_id = gone.event_id
    WHERE t.stream = $1 AND t.stream_created_at = $2 AND t.stream_seq = ANY($4)
    FOR UPDATE OF t SKIP LOCKED
),

lost AS (
    DELETE FROM {schema}.outbox_published AS t
    USING chosen AS gone
    WHERE t.stream = $1
        AND t.stream_created_at = $2
        AND t.stream_seq = gone.stream_seq
        AND t.event_id = gone.event_id
    RETURNING t.*
)

INSERT INTO {schema}.outbox_events ({moved})
OVERRIDING SYSTEM VALUE
SELECT {moved} FROM lost ORDER BY seq
ON CONFLICT (event_id) DO NOTHING";

pub(super) const SEND_AGAIN_ELSEWHERE: &str = "
WITH chosen AS (
    SELECT stream_created_at, stream_seq, event_id
    FROM {schema}.outbox_published
    WHERE stream = $1 AND stream_created_at < $2
    ORDER BY stream_created_at, stream_seq
    LIMIT $3
    FOR UPDATE SKIP LOCKED
),

chosen_later AS (
    SELECT stream_created_at, stream_seq, event_id
    FROM {schema}.outbox_published
    WHERE stream = $1 AND stream_created_at > $2
    ORDER BY stream_created_at, stream_seq
    LIMIT $3
    FOR UPDATE SKIP LOCKED
),

lost AS (
    DELETE FROM {schema}.outbox_published AS t
    USING (TABLE chosen UNION ALL TABLE chosen_later) AS gone
    WHERE t.stream = $1
        AND t.stream_created_at = gone.stream_created_at
        AND t.stream_seq = gone.stream_seq
        AND t.event_id = gone.event_id
    RETURNING t.*
),

sent AS (
    INSERT INTO {schema}.outbox_events ({moved})
    OVERRIDING SYSTEM VALUE
    SELECT {moved} FROM lost ORDER BY seq
    ON CONFLICT (event_id) DO NOTHING
)

SELECT count(*) FROM lost";
