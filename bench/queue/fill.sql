-- Rows for the claim baseline: the driver puts a number for `:rows`. Ids ascend, as the library's do.
INSERT INTO {schema}.jobs (job_id, queue, kind, payload)
SELECT
    lpad(to_hex(n), 32, '0')::uuid, 'default', 'noop',
    jsonb_build_object('n', n, 'email', 'someone@example.com', 'template', 'welcome')
FROM generate_series(1, :rows) AS n;
