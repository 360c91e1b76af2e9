-- Each entitlement goes from exactly the version that was read to the last one that was made
-- of it: the locks say that nobody else is at it, and this is the judge.
MERGE INTO entitlement.entitlements AS held
USING UNNEST(
    $1::text[], $2::text[], $3::text[], $4::bigint[], $5::bigint[], $6::timestamptz[],
    $7::timestamptz[], $8::timestamptz[], $9::text[], $10::text[], $11::timestamptz[],
    $12::bigint[]
) AS made (
    user_id, stock_keeping_unit, status, version, quantity, expires_at, granted_at, revoked_at,
    source, source_id, updated_at, made_from
)
ON held.user_id = made.user_id AND held.stock_keeping_unit = made.stock_keeping_unit
WHEN MATCHED AND held.version = made.made_from THEN UPDATE SET
    status = made.status,
    version = made.version,
    quantity = made.quantity,
    expires_at = made.expires_at,
    granted_at = made.granted_at,
    revoked_at = made.revoked_at,
    source = made.source,
    source_id = made.source_id,
    updated_at = made.updated_at
WHEN NOT MATCHED AND made.made_from = 0 THEN INSERT (
    user_id, stock_keeping_unit, status, version, quantity, expires_at, granted_at, revoked_at,
    source, source_id, updated_at
) VALUES (
    made.user_id, made.stock_keeping_unit, made.status, made.version, made.quantity,
    made.expires_at, made.granted_at, made.revoked_at, made.source, made.source_id,
    made.updated_at
)
