-- Users with five entitlements each, and the audit of how they came to be in the last thirty days.
-- The driver puts a number for `:users`. The five rows of one user lie far apart, as they do when
-- rows are written in the order of time.
INSERT INTO entitlement.entitlements (
    user_id, stock_keeping_unit, status, version, granted_at, source, source_id, updated_at
)
SELECT
    'user-' || (n % :users + 1), 'sku-' || (n / :users + 1), 'ACTIVE', 1, made_at, 'purchase',
    'order-' || n, made_at
FROM generate_series(0, :users * 5 - 1) AS n
CROSS JOIN LATERAL (
    SELECT now() - interval '30 days' * (1 - n / (:users * 5)::float8) AS made_at
) AS grants;

INSERT INTO entitlement.entitlement_audit (
    audit_id, occurred_at, user_id, stock_keeping_unit, version, action, source, source_id, caller,
    request_id
)
SELECT
    lpad(to_hex(n), 32, '0')::uuid, made_at, 'user-' || (n % :users + 1),
    'sku-' || (n / :users + 1), 1, 'GRANT', 'purchase', 'order-' || n,
    'api-key/00000000-0000-7000-8000-000000000000', 'history-' || n
FROM generate_series(0, :users * 5 - 1) AS n
CROSS JOIN LATERAL (
    SELECT now() - interval '30 days' * (1 - n / (:users * 5)::float8) AS made_at
) AS grants;
