//! What people see of consumers and do about them, as text: over all the logs of a schema.

/// The columns of a consumer, alias `c`, of the log `s`.
pub(super) const COLUMNS: &str = "c.consumer, c.log, c.state, c.last_seq, c.updated_at, c.created_at,
    c.rebuilt_at, c.owner, c.lease_until > clock_timestamp() AS is_held, c.attempt_seq, c.attempts,
    c.retry_at, c.last_error, coalesce(s.last_seq, 0) AS head_seq, coalesce(s.floor_seq, 0) AS floor_seq,
    (
        SELECT count(*) FROM {schema}.seqlog_set_aside AS a WHERE a.consumer = c.consumer
    ) AS set_aside";

pub(super) const LIST: &str = "
SELECT {consumer}
FROM {schema}.consumer_offsets AS c
LEFT JOIN {schema}.seqlogs AS s ON s.log = c.log
ORDER BY c.log, c.consumer";

pub(super) const SHOW: &str = "
SELECT {consumer}
FROM {schema}.consumer_offsets AS c
LEFT JOIN {schema}.seqlogs AS s ON s.log = c.log
WHERE c.consumer = $1";

pub(super) const SET_ASIDE: &str = "
SELECT set_aside_id, seq, entry::text AS entry, status, attempt_count, last_error, set_aside_at
FROM {schema}.seqlog_set_aside
WHERE consumer = $1
ORDER BY seq
LIMIT 1000";

pub(super) const TRAIL: &str = "
SELECT action, from_seq, to_seq, actor, reason, acted_at
FROM {schema}.seqlog_audit
WHERE consumer = $1
ORDER BY acted_at, audit_id";

pub(super) const LOGS: &str = "
SELECT
    s.log,
    s.last_seq,
    s.floor_seq,
    s.numbered_at,
    s.owner,
    s.lease_until > clock_timestamp() AS is_led
FROM {schema}.seqlogs AS s
ORDER BY s.log";

/// The consumer, held until the end of the transaction.
pub(super) const LOCK: &str = "
SELECT {consumer}
FROM {schema}.consumer_offsets AS c
LEFT JOIN {schema}.seqlogs AS s ON s.log = c.log
WHERE c.consumer = $1
FOR UPDATE OF c";

/// A running instance finds at its next word that its offset is another one.
pub(super) const REPLAY: &str = "
UPDATE {schema}.consumer_offsets
SET
    last_seq = $2,
    state = 'FOLLOWING',
    updated_at = clock_timestamp(),
    unclean = 0,
    careful_until = 0,
    attempt_seq = NULL,
    attempts = 0,
    retry_at = NULL,
    last_error = NULL
WHERE consumer = $1";

/// An attempt that is under way is not the one that was asked for: its snapshot is from before.
pub(super) const REBUILD: &str = "
UPDATE {schema}.consumer_offsets
SET
    state = 'REBUILDING',
    rebuild_attempt = rebuild_attempt + 1,
    unclean = 0,
    careful_until = 0,
    attempt_seq = NULL,
    attempts = 0,
    retry_at = NULL,
    last_error = NULL
WHERE consumer = $1";

/// How far the log `$1` goes.
pub(super) const BOUNDS: &str = "
SELECT coalesce(max(s.floor_seq), 0) AS floor_seq, coalesce(max(s.last_seq), 0) AS last_seq
FROM {schema}.seqlogs AS s
WHERE s.log = $1";

pub(super) const FORGET: &str = "DELETE FROM {schema}.consumer_offsets WHERE consumer = $1";

pub(super) const AUDIT: &str = "
INSERT INTO {schema}.seqlog_audit (audit_id, consumer, action, from_seq, to_seq, actor, reason)
VALUES (gen_random_uuid(), $1, $2, $3, $4, $5, $6)";

pub(super) const BEGIN_AT: &str = "
INSERT INTO {schema}.consumer_offsets (consumer, log, last_seq)
VALUES ($1, $2, $3)
ON CONFLICT (consumer) DO NOTHING";

/// $2 becomes what $1 is. Both have another epoch: no instance of either goes on by what it knew.
pub(super) const REPLACE: &str = "
WITH fresh AS (
    DELETE FROM {schema}.consumer_offsets
    WHERE consumer = $1 AND state = 'FOLLOWING'
    RETURNING log, last_seq
)

INSERT INTO {schema}.consumer_offsets AS c (consumer, log, last_seq, rebuilt_at)
SELECT $2, fresh.log, fresh.last_seq, clock_timestamp()
FROM fresh
ON CONFLICT (consumer) DO UPDATE
SET
    log = excluded.log,
    last_seq = excluded.last_seq,
    state = 'FOLLOWING',
    updated_at = clock_timestamp(),
    rebuilt_at = clock_timestamp(),
    owner = NULL,
    holder = NULL,
    epoch = c.epoch + 1,
    lease_until = '-infinity',
    unclean = 0,
    careful_until = 0,
    attempt_seq = NULL,
    attempts = 0,
    retry_at = NULL,
    last_error = NULL
RETURNING c.last_seq";

/// What $1 had set aside up to $2 its new store has handled, or set aside itself.
pub(super) const HANDLED: &str = "
WITH handled AS (
    DELETE FROM {schema}.seqlog_set_aside AS a
    WHERE a.consumer = $1 AND a.seq <= $2
    RETURNING a.set_aside_id, a.consumer
),

{closed}

SELECT count(*) FROM handled";

/// What $1 has set aside is what $2 has set aside.
pub(super) const INHERIT: &str = "
WITH moved AS (
    UPDATE {schema}.seqlog_set_aside AS a
    SET consumer = $2
    WHERE a.consumer = $1
    RETURNING a.set_aside_id
)

UPDATE {schema}.dead_letters AS l
SET queue = $2
FROM moved
WHERE l.source = 'seqlog_set_aside'
    AND l.source_id = moved.set_aside_id
    AND l.redriven_at IS NULL
    AND l.discarded_at IS NULL";
