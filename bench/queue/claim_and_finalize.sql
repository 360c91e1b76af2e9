-- What a worker must do at least: take a hundred due rows, set a lease and a token on them, read
-- them, and remove them. Two transactions, as the handlers run in between. pgbench can take only
-- one row from a statement, so the ids come back as one array and the payloads stay behind: a
-- little less work than a worker has. For `--protocol=prepared`, where `:ids` is a parameter.
WITH due AS (
    SELECT job_id
    FROM {schema}.jobs
    WHERE
        queue = 'default'
        AND next_retry_at <= now()
        AND (status = 'PENDING' OR (status = 'PROCESSING' AND lease_until <= now()))
    ORDER BY priority, next_retry_at
    LIMIT 100
    FOR UPDATE SKIP LOCKED
), claimed AS (
    UPDATE {schema}.jobs AS job
    SET
        status = 'PROCESSING',
        attempt_count = job.attempt_count + 1,
        locked_by = 'bench',
        locked_at = now(),
        lease_until = now() + interval '60 seconds',
        claim_token = '00000000-0000-7000-8000-000000000000',
        last_error = NULL
    FROM due
    WHERE job.job_id = due.job_id
    RETURNING job.job_id, job.kind, job.payload, job.attempt_count
)
SELECT
    coalesce(array_agg(job_id), '{}') AS ids,
    count(*) AS claimed
FROM claimed \gset
DELETE FROM {schema}.jobs
WHERE job_id = ANY(:ids::uuid[]) AND claim_token = '00000000-0000-7000-8000-000000000000';
