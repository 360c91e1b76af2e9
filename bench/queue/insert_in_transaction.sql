-- One row into the jobs table in a transaction of its own: three round trips, as an application
-- makes them. Ids ascend with time, as the library's do.
BEGIN;
INSERT INTO {schema}.jobs (job_id, queue, priority, kind, payload, next_retry_at)
VALUES (
    lpad(to_hex((extract(epoch FROM clock_timestamp()) * 1000000)::bigint * 100 + :client_id), 32, '0')::uuid,
    'default', 2, 'noop',
    '{"n": 1, "email": "someone@example.com", "template": "welcome"}', clock_timestamp()
);
COMMIT;
