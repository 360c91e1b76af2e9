//! The statements, and the description of the table for the lease engine.

use crate::lease::{Letter, Table};

/// One lane per priority, each walked along the index from where the worker has come to; a lane is
/// entered only when those before it did not fill the claim, and a row beyond it is not locked.
/// `$5` queue, `$6` the start of each lane.
const PICK: &str = "
    SELECT j.ctid
    FROM unnest($6::timestamptz []) WITH ORDINALITY AS lane (start, ordinal)
    CROSS JOIN LATERAL (
        SELECT t.ctid
        FROM {table} AS t
        WHERE t.queue = $5
            AND t.priority = (lane.ordinal - 1)::smallint
            AND t.next_retry_at >= coalesce(lane.start, now() - interval '1 minute')
            AND {claimable}
        ORDER BY t.next_retry_at
        LIMIT $1
        FOR UPDATE SKIP LOCKED
    ) AS j
    LIMIT $1";

/// The first row of each lane that may be claimed before the place where claims begin. `$1` queue,
/// `$2` that place per lane.
pub(super) const LOOK: &str = "
SELECT (lane.ordinal - 1)::integer AS lane, first.next_retry_at
FROM unnest($2::timestamptz []) WITH ORDINALITY AS lane (until, ordinal)
CROSS JOIN LATERAL (
    SELECT t.next_retry_at
    FROM {schema}.jobs AS t
    WHERE t.queue = $1
        AND t.priority = (lane.ordinal - 1)::smallint
        AND t.next_retry_at < coalesce(lane.until, 'infinity')
        AND {claimable}
    ORDER BY t.next_retry_at
    LIMIT 1
) AS first";

/// The time of the claim, which tells a worker how far it has come when there was nothing to claim.
const NOW: &str = "
place AS (
    SELECT (extract(EPOCH FROM now()) * 1000)::bigint::text AS place
)";

pub(super) const JOBS: Table = Table {
    name: "jobs",
    key: "job_id",
    claimed: "PROCESSING",
    columns: "
    t.kind,
    t.priority,
    t.next_retry_at,
    extract(epoch FROM clock_timestamp() - t.next_retry_at)::float8 AS waited,
    t.payload::text AS payload,
    t.traceparent,
    t.unique_id IS NOT NULL AS is_unique,
    t.lost_count",
    with: NOW,
    pick: PICK,
    letter: Letter {
        queue: "queue",
        kind: "kind",
        payload: "convert_to(payload::text, 'UTF8')",
    },
    // A job may be what took its process down: it must not do so for ever.
    lost: Some("lost_count"),
};

/// `greatest` ignores what is NULL, and lets no job be due in the past, before those that wait.
pub(super) const INSERT: &str = "
INSERT INTO {schema}.jobs (job_id, queue, priority, kind, payload, traceparent, next_retry_at)
VALUES (
    $1, $2, $3, $4, $5::jsonb, $6,
    greatest($7, clock_timestamp() + make_interval(secs => $8))
)";

/// A unique id is taken over when its time has passed, or else taken if nobody has it. Neither
/// locks a row that stays with its owner: a twin in a long transaction would keep the owner from
/// being settled. Both wait for whoever is about to take or release the same id.
pub(super) const INSERT_SET: &str = "
WITH drafts AS (
    SELECT *
    FROM unnest($6::uuid [], $7::smallint [], $8::text [], $9::text [], $10::float8 [])
        AS draft (job_id, priority, payload, unique_id, holds)
),

taken_over AS (
    UPDATE {schema}.job_uniques AS u
    SET
        job_id = drafts.job_id,
        unique_until = clock_timestamp() + make_interval(secs => drafts.holds)
    FROM drafts
    WHERE u.kind = $2
        AND u.unique_id = drafts.unique_id
        AND u.unique_id = ANY($9)
        AND u.unique_until <= clock_timestamp()
    RETURNING u.unique_id, u.job_id
),

taken AS (
    INSERT INTO {schema}.job_uniques (kind, unique_id, job_id, unique_until)
    SELECT
        $2,
        drafts.unique_id,
        drafts.job_id,
        clock_timestamp() + make_interval(secs => drafts.holds)
    FROM drafts
    WHERE drafts.unique_id IS NOT NULL
        AND drafts.unique_id NOT IN (SELECT taken_over.unique_id FROM taken_over)
    ON CONFLICT (kind, unique_id) DO NOTHING
    RETURNING unique_id, job_id
),

winners AS (
    SELECT unique_id, job_id FROM taken_over
    UNION ALL
    SELECT unique_id, job_id FROM taken
),

inserted AS (
    INSERT INTO {schema}.jobs (
        job_id, queue, priority, kind, payload, unique_id, traceparent, next_retry_at
    )
    SELECT
        drafts.job_id,
        $1,
        drafts.priority,
        $2,
        drafts.payload::jsonb,
        drafts.unique_id,
        $3,
        greatest($4, clock_timestamp() + make_interval(secs => $5))
    FROM drafts
    WHERE drafts.unique_id IS NULL
        OR drafts.job_id IN (SELECT winners.job_id FROM winners)
    RETURNING job_id
)

SELECT told.job_id, told.holder
FROM (
    SELECT
        drafts.job_id,
        coalesce(inserted.job_id, winners.job_id, u.job_id) AS holder
    FROM drafts
    LEFT JOIN inserted ON inserted.job_id = drafts.job_id
    LEFT JOIN winners ON winners.unique_id = drafts.unique_id
    LEFT JOIN {schema}.job_uniques AS u
        ON u.kind = $2
        AND u.unique_id = drafts.unique_id
        AND u.unique_until > clock_timestamp()
) AS told
WHERE told.holder IS NOT NULL";

/// Unique ids go with the jobs in `gone`. Only one whose time has passed can be locked, by somebody
/// who takes it over: that one is not ours any more, or will be taken over by the next.
pub(super) const RELEASE: &str = "
    DELETE FROM {schema}.job_uniques
    WHERE ctid = ANY (ARRAY(
        SELECT u.ctid
        FROM gone
        INNER JOIN {schema}.job_uniques AS u
            ON u.kind = gone.kind AND u.unique_id = gone.unique_id AND u.job_id = gone.job_id
        FOR UPDATE OF u SKIP LOCKED
    ))";

/// (The ids once more: a plan that was made on an empty table reads all of it otherwise.)
pub(super) const FINISH: &str = "
WITH gone AS (
    DELETE FROM {schema}.jobs AS t
    USING unnest($1::uuid [], $2::uuid []) AS mine (id, token)
    WHERE t.job_id = mine.id AND t.claim_token = mine.token AND t.job_id = ANY($1)
    RETURNING t.*
),

released AS ({release}
){keep}

SELECT job_id FROM gone";

pub(super) const KEEP: &str = ",

kept AS (
    INSERT INTO {schema}.jobs_done (
        job_id, queue, kind, payload, traceparent, attempt_count, created_at, locked_by, started_at
    )
    SELECT
        job_id, queue, kind, payload, traceparent, attempt_count, created_at, locked_by, locked_at
    FROM gone
)";

pub(super) const BURIED: &str = "
WITH gone AS (
    SELECT job_id, kind, unique_id, payload::text AS payload, traceparent
    FROM {schema}.jobs
    WHERE job_id = ANY ($1)
),

released AS ({release}
)

SELECT job_id, kind, payload, traceparent FROM gone";

pub(super) const CANCEL: &str = "
WITH gone AS (
    DELETE FROM {schema}.jobs AS t
    WHERE t.job_id = $1 AND t.status = 'PENDING'
    RETURNING t.job_id, t.kind, t.unique_id
),

released AS ({release}
)

SELECT job_id FROM gone";

pub(super) const GET: &str = "
SELECT
    job_id,
    queue,
    kind,
    status,
    payload,
    attempt_count,
    created_at,
    nullif(next_retry_at, 'infinity') AS due_at,
    NULL::timestamptz AS finished_at,
    locked_by,
    last_error,
    traceparent
FROM {schema}.jobs
WHERE job_id = $1
UNION ALL
SELECT
    job_id,
    queue,
    kind,
    'FINISHED' AS status,
    payload,
    attempt_count,
    created_at,
    NULL AS due_at,
    finished_at,
    locked_by,
    NULL AS last_error,
    traceparent
FROM {schema}.jobs_done
WHERE job_id = $1
LIMIT 1";
