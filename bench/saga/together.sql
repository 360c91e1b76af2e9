-- The same transitions, each of `:sagas` sagas in one transaction.
WITH born AS (
    INSERT INTO {schema}.sagas (
        saga_id, definition, version, state, story, moves, status, next_retry_at, locked_by, locked_at,
        lease_until, claim_token
    )
    SELECT
        lpad(to_hex((extract(epoch FROM now()) * 1000000)::bigint * 1000 + n), 32, '0')::uuid,
        'short', 1, 'STARTED',
        '{"input": {"n": 1,"email": "someone@example.com","template": "welcome"}}',
        1, 'PROCESSING', clock_timestamp() + interval '20 seconds', 'bench', now(),
        clock_timestamp() + interval '20 seconds', '00000000-0000-7000-8000-000000000000'
    FROM generate_series(1, :sagas::int) AS n
    RETURNING saga_id
)
SELECT array_agg(saga_id) AS ids FROM born \gset
UPDATE {schema}.sagas
SET
    step = 'first',
    story = '{"input": {"n": 1,"email": "someone@example.com","template": "welcome"},"steps": [{"name": "first","state": "done","input": null,"output": 1,"begun_at": 1794788123485,"ended_at": 1794788123485}]}',
    moves = 2,
    updated_at = clock_timestamp(),
    lease_until = clock_timestamp() + interval '20 seconds'
WHERE
    saga_id = ANY(:ids::uuid [])
    AND claim_token = '00000000-0000-7000-8000-000000000000'
    AND moves = 1;
UPDATE {schema}.sagas
SET
    step = 'second',
    story = '{"input": {"n": 1,"email": "someone@example.com","template": "welcome"},"steps": [{"name": "first","state": "done","input": null,"output": 1,"begun_at": 1794788123485,"ended_at": 1794788123485},{"name": "second","state": "done","input": null,"output": 2,"begun_at": 1794788123485,"ended_at": 1794788123485}]}',
    moves = 3,
    updated_at = clock_timestamp(),
    lease_until = clock_timestamp() + interval '20 seconds'
WHERE
    saga_id = ANY(:ids::uuid [])
    AND claim_token = '00000000-0000-7000-8000-000000000000'
    AND moves = 2;
WITH gone AS (
    DELETE FROM {schema}.sagas
    WHERE
        saga_id = ANY(:ids::uuid [])
        AND claim_token = '00000000-0000-7000-8000-000000000000'
        AND moves = 3
    RETURNING *
)
INSERT INTO {schema}.sagas_done (
    saga_id, definition, version, state, story, moves, traceparent, created_at, locked_by
)
SELECT
    saga_id, definition, version, 'COMPLETED',
    '{"input": {"n": 1,"email": "someone@example.com","template": "welcome"},"steps": [{"name": "first","state": "done","input": null,"output": 1,"begun_at": 1794788123485,"ended_at": 1794788123485},{"name": "second","state": "done","input": null,"output": 2,"begun_at": 1794788123485,"ended_at": 1794788123485},{"name": "third","state": "done","input": null,"output": 3,"begun_at": 1794788123485,"ended_at": 1794788123485}]}',
    4, traceparent, created_at, locked_by
FROM gone;
