//! The statements over dead letters, as text: `{schema}` and the rest are rendered once.

/// The letters, alias `l`, that a filter means.
pub(super) const MEANT: &str = "($1::text IS NULL OR l.source = $1)
    AND ($2::text IS NULL OR l.queue = $2)
    AND ($3::text IS NULL OR l.kind = $3)
    AND ($4::text IS NULL OR strpos(lower(l.error), lower($4)) > 0)
    AND ($5::timestamptz IS NULL OR l.failed_at >= $5)
    AND ($6::timestamptz IS NULL OR l.failed_at < $6)
    AND ($7::uuid [] IS NULL OR l.letter_id = ANY ($7))
    AND ($8::text <> 'open' OR (l.redriven_at IS NULL AND l.discarded_at IS NULL))
    AND ($8 <> 'redriven' OR l.redriven_at IS NOT NULL)
    AND ($8 <> 'discarded' OR l.discarded_at IS NOT NULL)";

/// Nothing has been done about the letter, alias `l`.
pub(super) const IS_OPEN: &str = "l.redriven_at IS NULL AND l.discarded_at IS NULL";

/// The row of the letter, alias `l`, is still there to be put back.
pub(super) const STANDING: &str = "(
            l.source = '{name}'
            AND EXISTS (
                SELECT FROM {schema}.{name} AS t
                WHERE t.{key} = l.source_id AND t.status = 'FAILED'
            )
        )";

pub(super) const LIST: &str = "
SELECT
    l.letter_id,
    l.source,
    l.source_id,
    l.queue,
    l.kind,
    substring(l.payload FROM 1 FOR 256) AS payload,
    octet_length(l.payload) AS payload_size,
    l.error,
    l.attempt_count,
    l.traceparent,
    l.failed_at,
    l.redriven_at,
    l.discarded_at
FROM {schema}.dead_letters AS l
WHERE {meant}
    AND ($9::timestamptz IS NULL OR (l.failed_at, l.letter_id) < ($9, $10::uuid))
ORDER BY l.failed_at DESC, l.letter_id DESC
LIMIT $11";

pub(super) const SHOW: &str = "
SELECT *, octet_length(payload) AS payload_size
FROM {schema}.dead_letters
WHERE letter_id = $1";

pub(super) const TRAIL: &str = "
SELECT letter_id, action, actor, reason, acted_at
FROM {schema}.dead_letter_audit
WHERE source = $1 AND source_id = $2
ORDER BY acted_at, audit_id";

pub(super) const GROUPS: &str = "
SELECT clock_timestamp() AS as_of, coalesce(g.sum, 0) AS total, g.*
FROM (VALUES (1)) AS one (row)
LEFT JOIN (
    SELECT
        l.source,
        l.queue,
        l.kind,
        count(*) AS letters,
        min(l.failed_at) AS first_at,
        max(l.failed_at) AS last_at,
        (sum(count(*)) OVER ())::bigint AS sum
    FROM {schema}.dead_letters AS l
    WHERE {meant}
    GROUP BY l.source, l.queue, l.kind
    ORDER BY letters DESC, l.source, l.queue, l.kind
    LIMIT 100
) AS g ON TRUE
ORDER BY g.letters DESC, g.source, g.queue, g.kind";

pub(super) const STUCK: &str = "
SELECT count(*) AS letters
FROM {schema}.dead_letters AS l
WHERE {is_open}
    AND {meant}
    AND NOT ({standing})";

pub(super) const FOREIGN: &str = "
SELECT count(*) AS letters
FROM {schema}.dead_letters AS l
WHERE {is_open}
    AND {meant}
    AND l.source NOT IN ({names})";

pub(super) const KNOWN: &str = "
SELECT
    count(*) AS asked,
    count(l.letter_id) AS known,
    count(*) FILTER (WHERE l.redriven_at IS NOT NULL OR l.discarded_at IS NOT NULL) AS closed
FROM (SELECT DISTINCT unnest($1::uuid [])) AS asked (id)
LEFT JOIN {schema}.dead_letters AS l ON l.letter_id = asked.id";

/// The pick joins letter and row and locks both, so that whoever waited here for somebody else
/// looks at them again: what that one has redriven is none of ours. Rows that are not `FAILED`
/// are not even picked, and so never stand in the way of the next batch.
pub(super) const REDRIVE: &str = "
WITH picked AS (
    SELECT l.letter_id, l.source_id
    FROM {schema}.dead_letters AS l
    INNER JOIN {schema}.{name} AS t ON t.{key} = l.source_id
    WHERE l.source = '{name}'
        AND {is_open}
        AND t.status = 'FAILED'
        AND {meant}
    ORDER BY l.failed_at, l.letter_id
    LIMIT $9
    FOR UPDATE OF l, t
),

put_back AS (
    UPDATE {schema}.{name} AS t
    SET status = 'PENDING', attempt_count = 0, next_retry_at = clock_timestamp()
    FROM picked
    WHERE t.{key} = picked.source_id AND t.status = 'FAILED'
    RETURNING picked.letter_id
),

closed AS (
    UPDATE {schema}.dead_letters AS l
    SET redriven_at = clock_timestamp()
    FROM put_back
    WHERE l.letter_id = put_back.letter_id
    RETURNING l.letter_id, l.source_id
)

INSERT INTO {schema}.dead_letter_audit (
    audit_id, letter_id, source, source_id, action, actor, reason
)
SELECT gen_random_uuid(), letter_id, '{name}', source_id, 'REDRIVE', $10, $11
FROM closed";

/// Letters are closed whether or not their row is still there: that is what is left to do about
/// one whose row somebody has taken away by hand.
pub(super) const DISCARD: &str = "
WITH picked AS (
    SELECT l.letter_id, l.source_id
    FROM {schema}.dead_letters AS l
    WHERE l.source = '{name}'
        AND {is_open}
        AND {meant}
    ORDER BY l.failed_at, l.letter_id
    LIMIT $9
    FOR UPDATE
),

given_up AS (
    DELETE FROM {schema}.{name} AS t
    USING picked
    WHERE t.{key} = picked.source_id AND t.status = 'FAILED'
),

closed AS (
    UPDATE {schema}.dead_letters AS l
    SET discarded_at = clock_timestamp()
    FROM picked
    WHERE l.letter_id = picked.letter_id
    RETURNING l.letter_id, l.source_id
)

INSERT INTO {schema}.dead_letter_audit (
    audit_id, letter_id, source, source_id, action, actor, reason
)
SELECT gen_random_uuid(), letter_id, '{name}', source_id, 'DISCARD', $10, $11
FROM closed";

/// From source to source by the index, instead of reading every open letter.
pub(super) const OPEN_SOURCES: &str = "
WITH RECURSIVE sources AS (
    (
        SELECT l.source
        FROM {schema}.dead_letters AS l
        WHERE {is_open}
        ORDER BY l.source
        LIMIT 1
    )
    UNION ALL
    SELECT (
        SELECT l.source
        FROM {schema}.dead_letters AS l
        WHERE {is_open} AND l.source > s.source
        ORDER BY l.source
        LIMIT 1
    )
    FROM sources AS s
    WHERE s.source IS NOT NULL
)

SELECT source FROM sources
WHERE source IS NOT NULL";

/// In order, so that it goes by the index, whatever the share of open letters is.
pub(super) const OPEN: &str = "
SELECT
    count(*) AS letters,
    coalesce(extract(EPOCH FROM clock_timestamp() - min(failed_at)), 0)::double precision
        AS oldest_seconds
FROM (
    SELECT l.failed_at
    FROM {schema}.dead_letters AS l
    WHERE l.source = $1 AND {is_open}
    ORDER BY l.failed_at
    LIMIT 10000
) AS oldest";

pub(super) const BEGIN: &str = "
SELECT pg_current_snapshot()::text AS snapshot, now() - INTERVAL '1 hour' AS not_before";

/// What this statement's snapshot sees and the one before did not: exactly the deaths that were
/// committed in between. A cursor on the time of death would miss those that took longer to
/// commit than a later one.
pub(super) const DEATHS: &str = "
SELECT pg_current_snapshot()::text AS snapshot, coalesce(g.sum, 0) AS total, g.*, l.error
FROM (VALUES (1)) AS one (row)
LEFT JOIN (
    SELECT
        source,
        queue,
        kind,
        count(*) AS letters,
        min(letter_id::text)::uuid AS sample,
        (sum(count(*)) OVER ())::bigint AS sum
    FROM {schema}.dead_letters
    WHERE died_in >= pg_snapshot_xmin($1::text::pg_snapshot)
        AND NOT pg_visible_in_snapshot(died_in, $1::text::pg_snapshot)
        AND failed_at > $2
    GROUP BY source, queue, kind
    ORDER BY letters DESC, source, queue, kind
    LIMIT 100
) AS g ON TRUE
LEFT JOIN {schema}.dead_letters AS l ON l.letter_id = g.sample
ORDER BY g.letters DESC, g.source, g.queue, g.kind";
