-- One grant in a transaction of its own, as an application without a library makes it: the same
-- rows are locked, read and written as by the service, one statement each. The driver says how many
-- `users` there are. A grant goes to a neighbour of one of them, who has no entitlement yet: so it
-- finds its place anywhere in the index, and what is read of the users stays as it was.
-- Ids ascend with time, as the service's do. Payload and answer are as long as the service's.
-- No colon stands before a letter in quotes: pgbench would take that for a variable.
\set user random(1, :users)
\set sku random(1, 1000000000000)
\set key random(1, 1000000000000000000)
BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE;
SELECT
    pg_advisory_xact_lock(hashtextextended('entitlement/key/bench-' || :key::text, 0)),
    pg_advisory_xact_lock(
        hashtextextended('entitlement/user-' || :user::text || 'x/sku-' || :sku::text, 0)
    );
SELECT request_hash, response_code, response_headers, response_body
FROM entitlement.idempotency_keys
WHERE caller = 'api-key/00000000-0000-7000-8000-000000000000'
    AND idem_key = 'bench-' || :key::text
    AND expires_at > now();
SELECT
    clock_timestamp() AS made_at,
    lpad(
        to_hex((extract(EPOCH FROM clock_timestamp()) * 1000000)::bigint * 100 + :client_id), 32, '0'
    ) AS event_id,
    held.status, held.version, held.quantity, held.expires_at, held.granted_at, held.revoked_at,
    held.source, held.source_id, held.updated_at
FROM (VALUES (true)) AS always (present)
LEFT JOIN entitlement.entitlements AS held
    ON held.user_id = 'user-' || :user::text || 'x'
    AND held.stock_keeping_unit = 'sku-' || :sku::text \gset
INSERT INTO entitlement.entitlements (
    user_id, stock_keeping_unit, status, version, quantity, expires_at, granted_at, revoked_at,
    source, source_id, updated_at
) VALUES (
    'user-' || :user::text || 'x', 'sku-' || :sku::text, 'ACTIVE', 1, NULL, NULL,
    :made_at::timestamptz, NULL, 'purchase', 'order-' || :sku::text, :made_at::timestamptz
);
INSERT INTO entitlement.entitlement_audit (
    audit_id, occurred_at, user_id, stock_keeping_unit, version, action, source, source_id, caller,
    request_id, detail
) VALUES (
    :event_id::uuid, :made_at::timestamptz, 'user-' || :user::text || 'x', 'sku-' || :sku::text, 1,
    'GRANT', 'purchase', 'order-' || :sku::text, 'api-key/00000000-0000-7000-8000-000000000000',
    'bench-' || :key::text, NULL
);
INSERT INTO entitlement.outbox_events (
    event_id, event_type, aggregate_key, ordering_key, payload, traceparent, occurred_at
) VALUES (
    :event_id::uuid, 'EntitlementGranted', 'user-' || :user::text || 'x/sku-' || :sku::text,
    'user-' || :user::text || 'x/sku-' || :sku::text, decode(repeat('78', 185), 'hex'),
    '00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01', :made_at::timestamptz
);
INSERT INTO entitlement.idempotency_keys (
    caller, idem_key, request_hash, status, response_code, response_headers, response_body,
    expires_at
) VALUES (
    'api-key/00000000-0000-7000-8000-000000000000', 'bench-' || :key::text,
    decode(repeat('78', 32), 'hex'), 'completed', 200, NULL, decode(repeat('78', 132), 'hex'),
    clock_timestamp() + interval '24 hours'
);
COMMIT;
