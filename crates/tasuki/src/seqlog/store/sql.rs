//! The statements of one log, as text: `{schema}`, `{log}`, `{pending}`, `{columns}` and `{at}` are
//! rendered once.

/// Takes the lease of the sequencer, or renews it. Whoever finds another at work locks nothing.
pub(super) const TAKE: &str = "
INSERT INTO {schema}.seqlogs AS s (log, owner, holder, epoch, lease_until)
SELECT '{log}', $1, $2, 1, clock_timestamp() + make_interval(secs => $3)
WHERE NOT EXISTS (
    SELECT FROM {schema}.seqlogs AS other
    WHERE other.log = '{log}' AND other.holder <> $2 AND other.lease_until > clock_timestamp()
)
ON CONFLICT (log) DO UPDATE
SET
    owner = excluded.owner,
    holder = excluded.holder,
    lease_until = excluded.lease_until,
    epoch = CASE WHEN s.holder = excluded.holder THEN s.epoch ELSE s.epoch + 1 END
WHERE s.holder IS NULL OR s.holder = excluded.holder OR s.lease_until <= clock_timestamp()
RETURNING s.epoch";

pub(super) const LEAVE: &str = "
UPDATE {schema}.seqlogs
SET owner = NULL, holder = NULL, lease_until = '-infinity'
WHERE log = '{log}' AND epoch = $1";

/// The rows that are committed and have no number, in the order in which they were appended, and the
/// snapshot that they were seen in.
///
/// By the number of their appending, because that is the order of causes: who appended after another
/// had committed has the higher one. (The numbers of transactions are not in that order: an older one
/// may have waited for a younger.)
pub(super) const LOOK_ALL: &str = "
SELECT
    pg_snapshot_xmax(now.seen)::text::bigint AS xmax,
    ARRAY(SELECT open::text::bigint FROM pg_snapshot_xip(now.seen) AS open) AS open,
    coalesce(found.txs, '{}') AS txs,
    coalesce(found.ids, '{}') AS ids
FROM (SELECT pg_current_snapshot() AS seen) AS now
CROSS JOIN (
    SELECT array_agg(tx ORDER BY id) AS txs, array_agg(id ORDER BY id) AS ids
    FROM (
        SELECT p.append_tx AS tx, p.append_id AS id
        FROM {schema}.{pending} AS p
        ORDER BY p.append_id
        LIMIT $1
    ) AS first
) AS found";

/// The same, without what an earlier snapshot had seen: everything of transactions that had ended by
/// then is numbered. So it costs what is new, and not what vacuum has not taken away yet.
pub(super) const LOOK_SINCE: &str = "
SELECT
    pg_snapshot_xmax(now.seen)::text::bigint AS xmax,
    ARRAY(SELECT open::text::bigint FROM pg_snapshot_xip(now.seen) AS open) AS open,
    coalesce(found.txs, '{}') AS txs,
    coalesce(found.ids, '{}') AS ids
FROM (SELECT pg_current_snapshot() AS seen) AS now
CROSS JOIN (
    SELECT array_agg(tx ORDER BY id) AS txs, array_agg(id ORDER BY id) AS ids
    FROM (
        SELECT p.append_tx AS tx, p.append_id AS id
        FROM {schema}.{pending} AS p
        WHERE (p.append_tx >= $2 AND p.append_tx < 9223372036854775807)
            OR p.append_tx = ANY ($3::bigint [])
        ORDER BY p.append_id
        LIMIT $1
    ) AS first
) AS found";

/// Moves rows into the log, and gives them the next numbers. The row of the log is locked first: one
/// that has another epoch by now is not found, and then nothing moves.
pub(super) const NUMBER: &str = "
WITH mine AS (
    SELECT s.last_seq
    FROM {schema}.seqlogs AS s
    WHERE s.log = '{log}' AND s.epoch = $1
    FOR UPDATE
),

gone AS (
    DELETE FROM {schema}.{pending} AS p
    USING unnest($2::bigint [], $3::bigint []) AS picked (tx, id)
    WHERE p.append_tx = picked.tx
        AND p.append_id = picked.id
        AND EXISTS (SELECT FROM mine)
    RETURNING p.append_id, {pending_columns}
),

numbered AS (
    INSERT INTO {schema}.{log} (seq, {columns})
    SELECT (SELECT last_seq FROM mine) + row_number() OVER (ORDER BY append_id), {columns}
    FROM gone
    ORDER BY append_id
)

UPDATE {schema}.seqlogs AS s
SET
    last_seq = s.last_seq + counted.moved,
    numbered_at = clock_timestamp(),
    lease_until = clock_timestamp() + make_interval(secs => $4)
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

/// How much waits for a number, counted up to ten thousand, and since when.
pub(super) const WAITING: &str = "
SELECT
    count(*) AS waiting,
    coalesce(extract(EPOCH FROM clock_timestamp() - min(first.appended_at)), 0)::double precision
        AS oldest_seconds
FROM (
    SELECT p.appended_at
    FROM {schema}.{pending} AS p
    ORDER BY p.append_tx, p.append_id
    LIMIT 10000
) AS first";

/// What the consumers of this log have before them, and how old the first of it is.
pub(super) const BEHIND: &str = "
SELECT
    c.consumer,
    c.state,
    s.last_seq - c.last_seq AS backlog,
    coalesce(
        extract(EPOCH FROM clock_timestamp() - (
            SELECT min(l.{at}) FROM {schema}.{log} AS l WHERE l.seq = c.last_seq + 1
        )),
        0
    )::double precision AS oldest_seconds
FROM {schema}.consumer_offsets AS c
INNER JOIN {schema}.seqlogs AS s ON s.log = c.log
WHERE c.log = '{log}'
ORDER BY c.consumer";
