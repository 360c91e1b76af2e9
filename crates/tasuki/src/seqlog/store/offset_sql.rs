//! The statements of one consumer of a log, as text. What changes anything shows the epoch of its
//! instance and the offset that it knows: whoever has been replaced, and whoever has been moved,
//! changes nothing.

/// What was set aside and is handled after all, `handled`, is not dead any more: otherwise somebody could
/// have it handled once more.
pub(super) const CLOSED: &str = "closed AS (
    UPDATE {schema}.dead_letters AS l
    SET redriven_at = clock_timestamp()
    FROM handled
    WHERE l.source = 'seqlog_set_aside'
        AND l.source_id = handled.set_aside_id
        AND l.redriven_at IS NULL
        AND l.discarded_at IS NULL
    RETURNING l.letter_id, l.source_id, handled.consumer
),

audited AS (
    INSERT INTO {schema}.dead_letter_audit (
        audit_id, letter_id, source, source_id, action, actor, reason
    )
    SELECT
        gen_random_uuid(),
        letter_id,
        'seqlog_set_aside',
        source_id,
        'REDRIVE',
        consumer,
        'the consumer has handled the row: it was moved back, or its store made anew'
    FROM closed
)";

/// Makes this instance the active one, or renews its lease; makes the consumer, if there is none and
/// none is known to have been.
///
/// One that died without a word while rows were handled is counted; after the second in a row without
/// progress they are handled one by one, to find the one that they die of.
pub(super) const STAND: &str = "
INSERT INTO {schema}.consumer_offsets AS c (
    consumer, log, last_seq, owner, holder, lease_until
)
SELECT
    $1,
    '{log}',
    CASE
        WHEN $2 THEN coalesce((SELECT s.last_seq FROM {schema}.seqlogs AS s WHERE s.log = '{log}'), 0)
        ELSE 0
    END,
    $3,
    $4,
    clock_timestamp() + make_interval(secs => $5)
WHERE ($7 OR EXISTS (SELECT FROM {schema}.consumer_offsets AS there WHERE there.consumer = $1))
    AND NOT EXISTS (
        SELECT FROM {schema}.consumer_offsets AS other
        WHERE other.consumer = $1 AND other.holder <> $4 AND other.lease_until > clock_timestamp()
    )
ON CONFLICT (consumer) DO UPDATE
SET
    owner = excluded.owner,
    holder = excluded.holder,
    lease_until = excluded.lease_until,
    epoch = CASE WHEN c.holder = excluded.holder THEN c.epoch ELSE c.epoch + 1 END,
    unclean = CASE WHEN c.holder <> excluded.holder THEN c.unclean + 1 ELSE c.unclean END,
    careful_until = CASE
        WHEN c.holder <> excluded.holder AND c.unclean >= 1
            THEN greatest(c.careful_until, c.last_seq + $6)
        ELSE c.careful_until
    END
WHERE c.log = excluded.log
    AND (c.holder IS NULL OR c.holder = excluded.holder OR c.lease_until <= clock_timestamp())
RETURNING
    c.state,
    c.epoch,
    c.last_seq,
    c.careful_until,
    coalesce(greatest(extract(EPOCH FROM c.retry_at - clock_timestamp()), 0), 0)::double precision
        AS retry_seconds,
    coalesce((SELECT s.last_seq FROM {schema}.seqlogs AS s WHERE s.log = c.log), 0) AS head,
    EXISTS (
        SELECT FROM {schema}.seqlog_set_aside AS a
        WHERE a.consumer = c.consumer AND a.status = 'PENDING'
    ) AS is_redriven";

/// The other log that the consumer of this name follows, if it does.
pub(super) const OF_ANOTHER: &str = "
SELECT c.log FROM {schema}.consumer_offsets AS c WHERE c.consumer = $1 AND c.log <> '{log}'";

/// Whether this instance is still the active one, and where the consumer is.
pub(super) const RENEW: &str = "
UPDATE {schema}.consumer_offsets
SET lease_until = clock_timestamp() + make_interval(secs => $3)
WHERE consumer = $1 AND epoch = $2
RETURNING last_seq, state";

pub(super) const LEAVE: &str = "
UPDATE {schema}.consumer_offsets
SET owner = NULL, holder = NULL, unclean = 0, lease_until = '-infinity'
WHERE consumer = $1 AND epoch = $2";

pub(super) const ADVANCE: &str = "
WITH moved AS (
    UPDATE {schema}.consumer_offsets
    SET
        last_seq = $4,
        updated_at = clock_timestamp(),
        lease_until = clock_timestamp() + make_interval(secs => $5),
        unclean = 0,
        attempt_seq = NULL,
        attempts = 0,
        retry_at = NULL,
        last_error = NULL
    WHERE consumer = $1 AND epoch = $2 AND last_seq = $3 AND state = 'FOLLOWING'
    RETURNING consumer
),

handled AS (
    DELETE FROM {schema}.seqlog_set_aside AS a
    USING moved
    WHERE a.consumer = moved.consumer AND a.seq > $3 AND a.seq <= $4
    RETURNING a.set_aside_id, a.consumer
),

{closed}

SELECT count(*) AS moved FROM moved";

pub(super) const CAREFUL: &str = "
UPDATE {schema}.consumer_offsets
SET careful_until = $4, last_error = $5
WHERE consumer = $1 AND epoch = $2 AND last_seq = $3 AND state = 'FOLLOWING'";

/// Counts the attempt before it is made: also one that kills the process is one.
pub(super) const ATTEMPT: &str = "
UPDATE {schema}.consumer_offsets
SET
    attempt_seq = $3 + 1,
    attempts = CASE WHEN attempt_seq = $3 + 1 THEN attempts + 1 ELSE 1 END
WHERE consumer = $1 AND epoch = $2 AND last_seq = $3 AND state = 'FOLLOWING'
RETURNING attempts";

/// It was nobody's fault.
pub(super) const UNDO_ATTEMPT: &str = "
UPDATE {schema}.consumer_offsets
SET attempts = greatest(attempts - 1, 0), last_error = $4
WHERE consumer = $1 AND epoch = $2 AND last_seq = $3 AND state = 'FOLLOWING'";

pub(super) const RETRY: &str = "
UPDATE {schema}.consumer_offsets
SET retry_at = clock_timestamp() + make_interval(secs => $4), last_error = $5
WHERE consumer = $1 AND epoch = $2 AND last_seq = $3 AND state = 'FOLLOWING'";

/// Moves past a row that can't be handled, and keeps it with a dead letter; not past one that is gone.
/// One that was set aside before, and came again by a replay, is the same one.
pub(super) const SET_ASIDE: &str = "
WITH moved AS (
    UPDATE {schema}.consumer_offsets
    SET
        last_seq = $3 + 1,
        updated_at = clock_timestamp(),
        lease_until = clock_timestamp() + make_interval(secs => $4),
        unclean = 0,
        attempt_seq = NULL,
        attempts = 0,
        retry_at = NULL,
        last_error = NULL
    WHERE consumer = $1 AND epoch = $2 AND last_seq = $3 AND state = 'FOLLOWING'
        AND EXISTS (SELECT FROM {schema}.{log} AS l WHERE l.seq = $3 + 1)
    RETURNING consumer
),

kept AS (
    INSERT INTO {schema}.seqlog_set_aside AS a (
        set_aside_id, consumer, log, seq, entry, attempt_count, last_error
    )
    SELECT gen_random_uuid(), moved.consumer, '{log}', l.seq, row_to_json(l), $5, $6
    FROM moved
    CROSS JOIN {schema}.{log} AS l
    WHERE l.seq = $3 + 1
    ON CONFLICT (consumer, seq) DO UPDATE
    SET
        status = 'FAILED',
        attempt_count = excluded.attempt_count,
        last_error = excluded.last_error,
        set_aside_at = now()
    RETURNING a.set_aside_id, a.consumer, a.entry, a.attempt_count, a.last_error
),

letters AS (
    INSERT INTO {schema}.dead_letters (
        letter_id, source, source_id, queue, kind, payload, error, attempt_count
    )
    SELECT
        gen_random_uuid(),
        'seqlog_set_aside',
        set_aside_id,
        consumer,
        '{log}',
        convert_to(entry::text, 'UTF8'),
        last_error,
        attempt_count
    FROM kept
    ON CONFLICT (source, source_id) WHERE redriven_at IS NULL AND discarded_at IS NULL
    DO UPDATE SET error = excluded.error, attempt_count = excluded.attempt_count, failed_at = now()
)

SELECT count(*) AS moved FROM moved";

pub(super) const TOO_FAR: &str = "
UPDATE {schema}.consumer_offsets
SET state = 'TOO_FAR_BEHIND', last_error = $4
WHERE consumer = $1 AND epoch = $2 AND last_seq = $3 AND state = 'FOLLOWING'";

/// Begins an attempt at a rebuild, with a number that no attempt has had, also of a consumer of this name
/// that was forgotten: it is not below the clock.
pub(super) const BEGIN_REBUILD: &str = "
UPDATE {schema}.consumer_offsets
SET
    rebuild_attempt = greatest(
        rebuild_attempt + 1, (extract(EPOCH FROM clock_timestamp()) * 1000)::bigint
    ),
    lease_until = clock_timestamp() + make_interval(secs => $3)
WHERE consumer = $1 AND epoch = $2 AND state = 'REBUILDING'
RETURNING rebuild_attempt";

/// The fresh store is complete up to $3, whatever the old one was; unless somebody has asked for another
/// one since this attempt ($5) began.
pub(super) const REBUILT: &str = "
WITH moved AS (
    UPDATE {schema}.consumer_offsets
    SET
        last_seq = $3,
        state = 'FOLLOWING',
        updated_at = clock_timestamp(),
        rebuilt_at = clock_timestamp(),
        lease_until = clock_timestamp() + make_interval(secs => $4),
        unclean = 0,
        careful_until = 0,
        attempt_seq = NULL,
        attempts = 0,
        retry_at = NULL,
        last_error = NULL
    WHERE consumer = $1 AND epoch = $2 AND state = 'REBUILDING' AND rebuild_attempt = $5
    RETURNING consumer
),

handled AS (
    DELETE FROM {schema}.seqlog_set_aside AS a
    USING moved
    WHERE a.consumer = moved.consumer AND a.seq <= $3
    RETURNING a.set_aside_id, a.consumer
),

{closed}

SELECT count(*) AS moved FROM moved";

pub(super) const NOTE: &str = "
UPDATE {schema}.consumer_offsets SET last_error = $3 WHERE consumer = $1 AND epoch = $2";

/// A row that somebody put back, as it was when it was set aside, and as it is read from the log.
pub(super) const REDRIVEN: &str = "
SELECT l.seq, {log_columns}, a.set_aside_id
FROM {schema}.seqlog_set_aside AS a
CROSS JOIN LATERAL json_populate_record(NULL::{schema}.{log}, a.entry) AS l
WHERE a.consumer = $1 AND a.status = 'PENDING' AND a.next_retry_at <= clock_timestamp()
ORDER BY a.seq
LIMIT 1";

pub(super) const REDRIVE_ATTEMPT: &str = "
UPDATE {schema}.seqlog_set_aside AS a
SET attempt_count = a.attempt_count + 1
FROM {schema}.consumer_offsets AS c
WHERE a.set_aside_id = $3
    AND a.status = 'PENDING'
    AND c.consumer = $1
    AND c.epoch = $2
RETURNING a.attempt_count";

/// In the transaction of its effects.
pub(super) const REDRIVE_DONE: &str = "
WITH mine AS (
    UPDATE {schema}.consumer_offsets
    SET lease_until = clock_timestamp() + make_interval(secs => $4)
    WHERE consumer = $1 AND epoch = $2
    RETURNING consumer
)

DELETE FROM {schema}.seqlog_set_aside AS a
USING mine
WHERE a.set_aside_id = $3 AND a.status = 'PENDING' AND a.consumer = mine.consumer";

pub(super) const REDRIVE_RETRY: &str = "
UPDATE {schema}.seqlog_set_aside AS a
SET
    attempt_count = $4,
    last_error = $5,
    next_retry_at = clock_timestamp() + make_interval(secs => $6)
FROM {schema}.consumer_offsets AS c
WHERE a.set_aside_id = $3
    AND a.status = 'PENDING'
    AND c.consumer = $1
    AND c.epoch = $2";

pub(super) const REDRIVE_DEAD: &str = "
WITH dead AS (
    UPDATE {schema}.seqlog_set_aside AS a
    SET status = 'FAILED', attempt_count = $4, last_error = $5, set_aside_at = now()
    FROM {schema}.consumer_offsets AS c
    WHERE a.set_aside_id = $3
        AND a.status = 'PENDING'
        AND c.consumer = $1
        AND c.epoch = $2
    RETURNING a.*
)

INSERT INTO {schema}.dead_letters (
    letter_id, source, source_id, queue, kind, payload, error, attempt_count
)
SELECT
    gen_random_uuid(),
    'seqlog_set_aside',
    set_aside_id,
    consumer,
    log,
    convert_to(entry::text, 'UTF8'),
    last_error,
    attempt_count
FROM dead
ON CONFLICT (source, source_id) WHERE redriven_at IS NULL AND discarded_at IS NULL
DO UPDATE SET error = excluded.error, attempt_count = excluded.attempt_count, failed_at = now()";
