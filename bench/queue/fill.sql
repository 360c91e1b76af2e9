-- Rows for the claim baseline: the driver puts a number for `:rows`.
INSERT INTO {schema}.jobs (job_id, queue, kind, payload)
SELECT
    gen_random_uuid(), 'default', 'noop',
    jsonb_build_object('n', n, 'email', 'someone@example.com', 'template', 'welcome')
FROM generate_series(1, :rows) AS n;
