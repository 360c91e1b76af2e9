-- One row into the jobs table in a transaction of its own: three round trips, as an application
-- makes them.
BEGIN;
INSERT INTO {schema}.jobs (job_id, queue, priority, kind, payload, next_retry_at)
VALUES (
    gen_random_uuid(), 'default', 2, 'noop',
    '{"n": 1, "email": "someone@example.com", "template": "welcome"}', clock_timestamp()
);
COMMIT;
