//! The statements of one log, as text: `{schema}`, `{log}`, `{pending}`, `{at}` and the lists of its
//! columns are rendered once.

/// Takes the lease of the sequencer, or renews it. Whoever finds another at work locks nothing. Up to
/// where everything is numbered is written down, and told to whoever begins.
pub(super) const TAKE: &str = "
INSERT INTO {schema}.seqlogs AS s (log, owner, holder, epoch, lease_until, seen_xmax, seen_open)
SELECT '{log}', $1, $2, 1, clock_timestamp() + make_interval(secs => $3), $4, $5
WHERE NOT EXISTS (
    SELECT FROM {schema}.seqlogs AS other
    WHERE other.log = '{log}' AND other.holder <> $2 AND other.lease_until > clock_timestamp()
)
ON CONFLICT (log) DO UPDATE
SET
    owner = excluded.owner,
    holder = excluded.holder,
    lease_until = excluded.lease_until,
    epoch = CASE WHEN s.holder = excluded.holder THEN s.epoch ELSE s.epoch + 1 END,
    seen_xmax = CASE
        WHEN s.holder = excluded.holder THEN coalesce(excluded.seen_xmax, s.seen_xmax)
        ELSE s.seen_xmax
    END,
    seen_open = CASE
        WHEN s.holder = excluded.holder THEN coalesce(excluded.seen_open, s.seen_open)
        ELSE s.seen_open
    END
WHERE s.holder IS NULL OR s.holder = excluded.holder OR s.lease_until <= clock_timestamp()
RETURNING s.epoch, s.seen_xmax, s.seen_open";

pub(super) const LEAVE: &str = "
UPDATE {schema}.seqlogs
SET owner = NULL, holder = NULL, lease_until = '-infinity'
WHERE log = '{log}' AND epoch = $1";

/// The transactions whose rows may have come since an earlier snapshot, as ranges: those that had not
/// begun by then, without those that are open now; and those that were open then and are not any more.
/// Nobody walks over the rows of one that is open, however many it has appended, nor over what vacuum has
/// not taken away yet.
pub(super) const RANGES: &str = "now AS MATERIALIZED (
    SELECT pg_current_snapshot() AS seen
),

open AS MATERIALIZED (
    SELECT xip.tx::text::bigint AS tx
    FROM now
    CROSS JOIN LATERAL pg_snapshot_xip(now.seen) AS xip (tx)
),

ranges AS (
    SELECT
        edge.tx AS above,
        coalesce(
            lead(edge.tx) OVER (ORDER BY edge.tx),
            (SELECT pg_snapshot_xmax(now.seen)::text::bigint FROM now)
        ) AS below
    FROM (
        SELECT {since_xmax} - 1 AS tx
        UNION ALL
        SELECT open.tx FROM open WHERE open.tx >= {since_xmax}
    ) AS edge
    UNION ALL
    SELECT ended.tx - 1, ended.tx + 1
    FROM (SELECT unnest({since_open}) AS tx EXCEPT SELECT open.tx FROM open) AS ended
)";

/// The rows that are committed and have no number, in the order in which they were appended, and the
/// snapshot that they were seen in; without what an earlier one had seen, of which everything is numbered.
///
/// By the number of their appending, because that is the order of causes: who appended after another
/// had committed has the higher one. (The numbers of transactions are not in that order: an older one
/// may have waited for a younger.)
pub(super) const LOOK: &str = "
WITH {ranges}

SELECT
    (SELECT pg_snapshot_xmax(now.seen)::text::bigint FROM now) AS xmax,
    ARRAY(SELECT open.tx FROM open) AS open,
    coalesce(array_agg(first.tx ORDER BY first.id), '{}') AS txs,
    coalesce(array_agg(first.id ORDER BY first.id), '{}') AS ids
FROM (
    SELECT p.append_tx AS tx, p.append_id AS id
    FROM ranges
    CROSS JOIN LATERAL (
        SELECT waiting.append_tx, waiting.append_id
        FROM {schema}.{pending} AS waiting
        WHERE waiting.append_tx > ranges.above AND waiting.append_tx < ranges.below
    ) AS p
    ORDER BY p.append_id
    LIMIT $1
) AS first";

/// What no look finds, and should not be there: rows of transactions of which everything is numbered, or
/// that have not begun. This one does walk over everything.
pub(super) const SWEEP: &str = "
SELECT
    pg_snapshot_xmax(now.seen)::text::bigint AS xmax,
    ARRAY(SELECT open::text::bigint FROM pg_snapshot_xip(now.seen) AS open) AS open,
    coalesce(found.txs, '{}') AS txs,
    coalesce(found.ids, '{}') AS ids
FROM (SELECT pg_current_snapshot() AS seen) AS now
CROSS JOIN LATERAL (
    SELECT array_agg(tx ORDER BY id) AS txs, array_agg(id ORDER BY id) AS ids
    FROM (
        SELECT p.append_tx AS tx, p.append_id AS id
        FROM {schema}.{pending} AS p
        WHERE (p.append_tx < $2 AND p.append_tx <> ALL ($3::bigint []))
            OR p.append_tx >= pg_snapshot_xmax(now.seen)::text::bigint
        ORDER BY p.append_id
        LIMIT $1
    ) AS first
) AS found";

/// Moves rows into the log, and gives them the next numbers. The row of the log is locked first: one
/// that has another epoch by now is not found, and then nothing moves. All are as old as their numbers.
pub(super) const NUMBER: &str = "
WITH mine AS (
    SELECT s.last_seq
    FROM {schema}.seqlogs AS s
    WHERE s.log = '{log}' AND s.epoch = $1
    FOR UPDATE
),

stamp AS MATERIALIZED (
    SELECT mine.last_seq, clock_timestamp() AS at FROM mine
),

gone AS (
    DELETE FROM {schema}.{pending} AS p
    USING unnest($2::bigint [], $3::bigint []) AS picked (tx, id)
    WHERE p.append_tx = picked.tx
        AND p.append_id = picked.id
        AND EXISTS (SELECT FROM mine)
    RETURNING p.append_id, {pending_written}
),

numbered AS (
    INSERT INTO {schema}.{log} (seq, {at}, {written})
    SELECT
        (SELECT last_seq FROM stamp) + row_number() OVER (ORDER BY append_id),
        (SELECT at FROM stamp),
        {written}
    FROM gone
    ORDER BY append_id
)

UPDATE {schema}.seqlogs AS s
SET
    last_seq = s.last_seq + counted.moved,
    numbered_at = clock_timestamp(),
    lease_until = clock_timestamp() + make_interval(secs => $4),
    seen_xmax = coalesce($5, s.seen_xmax),
    seen_open = coalesce($6, s.seen_open)
FROM (SELECT count(*) AS moved FROM gone) AS counted
WHERE s.log = '{log}' AND s.epoch = $1
RETURNING s.last_seq, counted.moved";

/// There are no gaps: so many numbers are so many rows, and each partition is asked for a few only.
pub(super) const READ: &str = "
SELECT l.seq, {log_columns}
FROM {schema}.{log} AS l
WHERE l.seq > $1 AND l.seq <= $1 + $2
ORDER BY l.seq";

pub(super) const HEAD: &str = "
SELECT s.last_seq, s.floor_seq, s.numbered_at, s.owner, s.lease_until > clock_timestamp() AS is_led
FROM {schema}.seqlogs AS s
WHERE s.log = '{log}'";

/// Writes entries of the library's own table, in the order of the slices.
pub(super) const APPEND: &str = "
INSERT INTO {schema}.{pending} (kind, key, payload, traceparent)
SELECT e.kind, e.key, e.payload, e.traceparent
FROM unnest($1::text [], $2::text [], $3::bytea [], $4::text []) WITH ORDINALITY
    AS e (kind, key, payload, traceparent, place)
ORDER BY e.place";

/// How much waits for a number, counted up to ten thousand, and since when. Not what a sequencer has seen
/// by its last word: that is numbered.
pub(super) const WAITING: &str = "
WITH since AS (
    SELECT coalesce(s.seen_xmax, 0) AS xmax, coalesce(s.seen_open, '{}') AS open
    FROM (SELECT) AS always
    LEFT JOIN {schema}.seqlogs AS s ON s.log = '{log}'
),

{ranges}

SELECT
    count(*) AS waiting,
    coalesce(extract(EPOCH FROM clock_timestamp() - min(first.appended_at)), 0)::double precision
        AS oldest_seconds
FROM (
    SELECT p.appended_at
    FROM ranges
    CROSS JOIN LATERAL (
        SELECT waiting.appended_at
        FROM {schema}.{pending} AS waiting
        WHERE waiting.append_tx > ranges.above AND waiting.append_tx < ranges.below
        ORDER BY waiting.append_tx, waiting.append_id
        LIMIT 10000
    ) AS p
    LIMIT 10000
) AS first";

/// What the consumers of this log have before them, and how old the first of it is; since when they stand
/// where it is gone, which is so also while none of their instances runs to say it.
pub(super) const BEHIND: &str = "
SELECT
    c.consumer,
    s.last_seq - c.last_seq AS backlog,
    CASE
        WHEN s.last_seq <= c.last_seq THEN 0
        ELSE extract(EPOCH FROM clock_timestamp() - coalesce(next.at, c.updated_at))
    END::double precision AS oldest_seconds,
    c.state = 'TOO_FAR_BEHIND'
    OR (c.state = 'FOLLOWING' AND s.last_seq > c.last_seq AND next.at IS NULL) AS is_too_far
FROM {schema}.consumer_offsets AS c
INNER JOIN {schema}.seqlogs AS s ON s.log = c.log
LEFT JOIN LATERAL (
    SELECT min(l.{at}) AS at FROM {schema}.{log} AS l WHERE l.seq = c.last_seq + 1
) AS next ON TRUE
WHERE c.log = '{log}'
ORDER BY c.consumer";
