-- One row into the jobs table, the statement alone: its commit is implicit.
-- To be held against the library's own enqueue: the same columns, and ids that ascend with time.
INSERT INTO {schema}.jobs (job_id, queue, priority, kind, payload, next_retry_at)
VALUES (
    lpad(to_hex((extract(epoch FROM clock_timestamp()) * 1000000)::bigint * 100 + :client_id), 32, '0')::uuid,
    'default', 2, 'noop',
    '{"n": 1, "email": "someone@example.com", "template": "welcome"}', clock_timestamp()
);
