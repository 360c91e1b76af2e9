//! The statements behind the questions, as text: `{schema}` is rendered once.
//!
//! Those that run every few seconds begin at the head of an index and stop after a fixed number
//! of rows. Each has an order for that, also where nobody needs one: to count some rows without,
//! PostgreSQL may as well scan the table.

/// Walks from the heads of indexes, each of bounded length: unordered events in the order in
/// which they are due, ordered ones by key, dead ones, and the lowest ids, which are the oldest.
pub(super) const OUTBOX: &str = "
WITH live AS (
    (
        SELECT 'unordered' AS walk, status, created_at, next_retry_at, lease_until
        FROM {schema}.outbox_events
        WHERE ordering_key IS NULL AND next_retry_at < 'infinity'
        ORDER BY next_retry_at, seq
        LIMIT 10000
    )
    UNION ALL
    (
        SELECT 'ordered' AS walk, status, created_at, next_retry_at, lease_until
        FROM {schema}.outbox_events
        WHERE ordering_key IS NOT NULL AND next_retry_at < 'infinity'
        ORDER BY ordering_key, seq
        LIMIT 10000
    )
),

oldest AS (
    SELECT min(created_at) AS created_at
    FROM (
        SELECT status, created_at
        FROM {schema}.outbox_events
        ORDER BY event_id
        LIMIT 1000
    ) AS lowest
    WHERE status <> 'FAILED'
),

dead AS (
    SELECT count(*) AS events
    FROM (
        SELECT FROM {schema}.outbox_events
        WHERE next_retry_at = 'infinity'
        ORDER BY event_id
        LIMIT 10000
    ) AS dead_events
)

SELECT
    count(*) FILTER (WHERE status = 'PENDING') AS pending,
    count(*) FILTER (WHERE status = 'PENDING' AND next_retry_at <= now()) AS due,
    count(*) FILTER (WHERE status = 'IN_FLIGHT') AS in_flight,
    count(*) FILTER (
        WHERE status = 'IN_FLIGHT' AND (lease_until IS NULL OR lease_until <= now())
    ) AS expired,
    (SELECT events FROM dead) AS failed,
    count(*) FILTER (WHERE walk = 'unordered') = 10000
    OR count(*) FILTER (WHERE walk = 'ordered') = 10000 AS is_full,
    extract(EPOCH FROM clock_timestamp() - least(
        min(created_at),
        (SELECT created_at FROM oldest)
    ))::double precision AS oldest_seconds,
    coalesce(
        pg_sequence_last_value(pg_get_serial_sequence('{schema}.outbox_events', 'seq')::regclass),
        0
    ) AS enqueued,
    (
        SELECT created_at FROM {schema}.outbox_events
        ORDER BY event_id DESC
        LIMIT 1
    ) AS newest_at
FROM live";

pub(super) const OUTBOX_ESTIMATE: &str = "EXPLAIN (FORMAT JSON) SELECT FROM {schema}.outbox_events";

/// The two newest ranges that hold anything, and the default partition.
pub(super) const NEWEST_PARTITIONS: &str = "
WITH filled AS (
    SELECT
        format('%I.%I', n.nspname, c.relname) AS name,
        pg_relation_size(c.oid) AS bytes,
        pg_get_expr(c.relpartbound, c.oid) AS bounds
    FROM pg_inherits AS i
    INNER JOIN pg_class AS c ON c.oid = i.inhrelid
    INNER JOIN pg_namespace AS n ON n.oid = c.relnamespace
    WHERE i.inhparent = '{schema}.outbox_published'::regclass
)

(
    SELECT name FROM filled
    WHERE bytes > 0 AND bounds <> 'DEFAULT'
    ORDER BY bounds DESC
    LIMIT 2
)
UNION ALL
SELECT name FROM filled
WHERE bytes > 0 AND bounds = 'DEFAULT'";

/// From stream to stream by the index, and from the end of each: the broker numbers what it takes,
/// so what was published last has the highest numbers. Where a row is on disk says nothing, new ones
/// fill whatever room is left.
pub(super) const LAST_PUBLISHED: &str = "
WITH RECURSIVE streams AS (
    (
        SELECT stream, stream_created_at FROM {partition}
        ORDER BY stream DESC, stream_created_at DESC
        LIMIT 1
    )
    UNION ALL
    SELECT n.stream, n.stream_created_at
    FROM streams AS s
    CROSS JOIN LATERAL (
        SELECT t.stream, t.stream_created_at FROM {partition} AS t
        WHERE (t.stream, t.stream_created_at) < (s.stream, s.stream_created_at)
        ORDER BY t.stream DESC, t.stream_created_at DESC
        LIMIT 1
    ) AS n
)

SELECT max(l.created_at) AS created_at, max(l.published_at) AS published_at
FROM (SELECT stream, stream_created_at FROM streams LIMIT 200) AS s
CROSS JOIN LATERAL (
    SELECT t.created_at, t.published_at FROM {partition} AS t
    WHERE t.stream = s.stream AND t.stream_created_at = s.stream_created_at
    ORDER BY t.stream_seq DESC
    LIMIT 100
) AS l";

/// From queue to queue by the index. A statement of its own: PostgreSQL expects a hundred rows
/// of it, and would compile a statement that does so much for each of a hundred queues, which
/// takes a second, to run it for three, which takes milliseconds.
pub(super) const QUEUE_NAMES: &str = "
WITH RECURSIVE names AS (
    (SELECT queue FROM {schema}.jobs ORDER BY queue LIMIT 1)
    UNION ALL
    SELECT (
        SELECT j.queue FROM {schema}.jobs AS j
        WHERE j.queue > n.queue
        ORDER BY j.queue
        LIMIT 1
    )
    FROM names AS n
    WHERE n.queue IS NOT NULL
)

SELECT queue FROM names
WHERE queue IS NOT NULL
LIMIT 200";

/// From the head of every priority of one queue.
pub(super) const QUEUE: &str = "
SELECT
    sum(lane.waiting)::bigint AS waiting,
    sum(lane.due)::bigint AS due,
    sum(lane.running)::bigint AS running,
    sum(lane.expired)::bigint AS expired,
    sum(buried.dead)::bigint AS dead,
    bool_or(lane.is_full) AS is_full,
    extract(EPOCH FROM clock_timestamp() - min(lane.due_at))::double precision AS oldest_seconds
FROM (VALUES (0::smallint), (1::smallint), (2::smallint), (3::smallint)) AS p (priority)
CROSS JOIN LATERAL (
    SELECT
        count(*) FILTER (WHERE status = 'PENDING') AS waiting,
        count(*) FILTER (WHERE status = 'PENDING' AND next_retry_at <= now()) AS due,
        count(*) FILTER (WHERE status = 'PROCESSING') AS running,
        count(*) FILTER (
            WHERE status = 'PROCESSING' AND (lease_until IS NULL OR lease_until <= now())
        ) AS expired,
        count(*) = 2500 AS is_full,
        min(next_retry_at) FILTER (
            WHERE next_retry_at <= now()
            AND (status = 'PENDING' OR lease_until IS NULL OR lease_until <= now())
        ) AS due_at
    FROM (
        SELECT j.status, j.next_retry_at, j.lease_until
        FROM {schema}.jobs AS j
        WHERE j.queue = $1 AND j.priority = p.priority AND j.next_retry_at < 'infinity'
        ORDER BY j.next_retry_at
        LIMIT 2500
    ) AS head
) AS lane
CROSS JOIN LATERAL (
    SELECT count(*) AS dead
    FROM (
        SELECT FROM {schema}.jobs AS j
        WHERE j.queue = $1 AND j.priority = p.priority AND j.next_retry_at >= 'infinity'
        ORDER BY j.next_retry_at
        LIMIT 2500
    ) AS tail
) AS buried";

pub(super) const QUEUE_ESTIMATE: &str =
    "EXPLAIN (FORMAT JSON) SELECT FROM {schema}.jobs WHERE queue = $1";

/// Each state from the head of its index; what is due from the head of another.
pub(super) const SAGAS: &str = "
SELECT
    started.sagas AS started,
    compensating.sagas AS compensating,
    stuck.sagas AS stuck,
    extract(EPOCH FROM clock_timestamp() - due.at)::double precision AS oldest_seconds
FROM (
    SELECT count(*) AS sagas
    FROM (
        SELECT FROM {schema}.sagas WHERE state = 'STARTED' ORDER BY saga_id LIMIT 10000
    ) AS head
) AS started
CROSS JOIN (
    SELECT count(*) AS sagas
    FROM (
        SELECT FROM {schema}.sagas WHERE state = 'COMPENSATING' ORDER BY saga_id LIMIT 10000
    ) AS head
) AS compensating
CROSS JOIN (
    SELECT count(*) AS sagas
    FROM (
        SELECT FROM {schema}.sagas WHERE state = 'NEEDS_ATTENTION' ORDER BY saga_id LIMIT 10000
    ) AS head
) AS stuck
CROSS JOIN (
    SELECT min(next_retry_at) AS at
    FROM (
        SELECT status, next_retry_at, lease_until
        FROM {schema}.sagas
        WHERE next_retry_at <= now()
        ORDER BY next_retry_at
        LIMIT 10000
    ) AS head
    WHERE status = 'PENDING' OR lease_until IS NULL OR lease_until <= now()
) AS due";

/// A claim leaves the due time as it is: what is not due is not claimed.
pub(super) const LEASES: &str = "
SELECT
    source,
    coalesce(locked_by, '') AS owner,
    count(*) AS rows,
    count(*) FILTER (WHERE lease_until IS NULL OR lease_until <= now()) AS expired,
    min(locked_at) AS oldest_at
FROM (
    SELECT 'jobs' AS source, locked_by, locked_at, lease_until
    FROM {schema}.jobs
    WHERE status = 'PROCESSING' AND next_retry_at <= now()
    UNION ALL
    SELECT 'outbox_events' AS source, locked_by, locked_at, lease_until
    FROM {schema}.outbox_events
    WHERE status = 'IN_FLIGHT' AND next_retry_at <= now()
    UNION ALL
    -- One that was born in the hands of its process is due when its first lease ends.
    SELECT 'sagas' AS source, locked_by, locked_at, lease_until
    FROM {schema}.sagas
    WHERE status = 'PROCESSING'
) AS held
GROUP BY source, locked_by
ORDER BY source, owner";

pub(super) const PARTITIONS: &str = "
SELECT
    p.relname AS table,
    c.relname AS name,
    pg_get_expr(c.relpartbound, c.oid) AS bounds,
    pg_total_relation_size(c.oid) AS bytes,
    nullif(c.reltuples, -1)::bigint AS rows
FROM pg_inherits AS i
INNER JOIN pg_class AS p ON p.oid = i.inhparent
INNER JOIN pg_class AS c ON c.oid = i.inhrelid
INNER JOIN pg_namespace AS n ON n.oid = p.relnamespace
WHERE n.nspname = $1 AND p.relkind = 'p'
ORDER BY p.relname, bounds";

pub(super) const EVENT: &str = "
(
    SELECT
        1 AS rank,
        t.status AS place,
        t.event_type AS kind,
        t.aggregate_key AS queue,
        t.ordering_key,
        t.created_at,
        t.attempt_count,
        t.last_error,
        CASE t.status
            WHEN 'PENDING' THEN t.next_retry_at
            WHEN 'IN_FLIGHT' THEN t.locked_at
        END AS at,
        t.locked_by AS who,
        t.lease_until AS until,
        NULL::bigint AS stream_seq,
        NULL::text AS reason,
        l.letter_id
    FROM {schema}.outbox_events AS t
    LEFT JOIN {schema}.dead_letters AS l
        ON l.source = 'outbox_events' AND l.source_id = t.event_id
        AND l.redriven_at IS NULL AND l.discarded_at IS NULL
    WHERE t.event_id = $1
)
UNION ALL
(
    SELECT
        2, 'PUBLISHED', event_type, aggregate_key, ordering_key, created_at, attempt_count, NULL,
        published_at, stream, stream_created_at, stream_seq, NULL, NULL
    FROM {schema}.outbox_published
    WHERE event_id = $1
    ORDER BY published_at DESC
    LIMIT 1
)
UNION ALL
(
    SELECT
        3, 'DISCARDED', l.kind, l.queue, NULL, NULL, l.attempt_count, l.error,
        a.acted_at, a.actor, NULL, NULL, a.reason, a.letter_id
    FROM {schema}.dead_letter_audit AS a
    LEFT JOIN {schema}.dead_letters AS l ON l.letter_id = a.letter_id
    WHERE a.source = 'outbox_events' AND a.source_id = $1 AND a.action = 'DISCARD'
    ORDER BY a.acted_at DESC
    LIMIT 1
)
ORDER BY rank
LIMIT 1";

/// Events that are neither published nor dead, the oldest first: their ids are made in the order of
/// time. `$1` how many.
pub(super) const WAITING: &str = "
SELECT
    t.event_id,
    t.status AS place,
    t.event_type AS kind,
    t.aggregate_key AS queue,
    t.ordering_key,
    t.created_at,
    t.attempt_count,
    t.last_error,
    CASE t.status
        WHEN 'PENDING' THEN t.next_retry_at
        WHEN 'IN_FLIGHT' THEN t.locked_at
    END AS at,
    t.locked_by AS who,
    t.lease_until AS until,
    NULL::bigint AS stream_seq,
    NULL::text AS reason,
    NULL::uuid AS letter_id
FROM {schema}.outbox_events AS t
WHERE t.status <> 'FAILED'
ORDER BY t.event_id
LIMIT $1";

pub(super) const JOB: &str = "
(
    SELECT
        1 AS rank,
        t.status AS place,
        t.kind,
        t.queue,
        NULL::text AS ordering_key,
        t.created_at,
        t.attempt_count,
        t.last_error,
        CASE t.status
            WHEN 'PENDING' THEN t.next_retry_at
            WHEN 'PROCESSING' THEN t.locked_at
        END AS at,
        t.locked_by AS who,
        t.lease_until AS until,
        NULL::text AS reason,
        l.letter_id
    FROM {schema}.jobs AS t
    LEFT JOIN {schema}.dead_letters AS l
        ON l.source = 'jobs' AND l.source_id = t.job_id
        AND l.redriven_at IS NULL AND l.discarded_at IS NULL
    WHERE t.job_id = $1
)
UNION ALL
(
    SELECT
        2, 'FINISHED', kind, queue, NULL, created_at, attempt_count, NULL,
        finished_at, locked_by, NULL, NULL, NULL
    FROM {schema}.jobs_done
    WHERE job_id = $1
    ORDER BY finished_at DESC
    LIMIT 1
)
UNION ALL
(
    SELECT
        3, 'DISCARDED', l.kind, l.queue, NULL, NULL, l.attempt_count, l.error,
        a.acted_at, a.actor, NULL, a.reason, a.letter_id
    FROM {schema}.dead_letter_audit AS a
    LEFT JOIN {schema}.dead_letters AS l ON l.letter_id = a.letter_id
    WHERE a.source = 'jobs' AND a.source_id = $1 AND a.action = 'DISCARD'
    ORDER BY a.acted_at DESC
    LIMIT 1
)
ORDER BY rank
LIMIT 1";

/// Ids are in the order of their times: the oldest is among the first.
pub(super) const TWOPC: &str = "
SELECT
    count(*) AS open,
    extract(EPOCH FROM clock_timestamp() - min(first.created_at))::float8 AS oldest_seconds
FROM (
    SELECT t.created_at FROM {schema}.twopc_transactions AS t ORDER BY t.transaction_id LIMIT 10000
) AS first";
