-- One row into the jobs table, the statement alone: its commit is implicit.
-- To be held against the library's own enqueue: the columns and the kind of id must be the same.
INSERT INTO {schema}.jobs (job_id, queue, priority, kind, payload, next_retry_at)
VALUES (
    gen_random_uuid(), 'default', 2, 'noop',
    '{"n": 1, "email": "someone@example.com", "template": "welcome"}', clock_timestamp()
);
