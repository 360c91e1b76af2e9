-- Each entitlement goes from exactly the version that was read to the last one that was made
-- of it: the locks say that nobody else is at it, and this is the judge. Its changes go into the
-- audit in the same statement, which saves everybody a round trip. Answers how many entitlements
-- were written.
WITH made AS MATERIALIZED (
    SELECT *
    FROM UNNEST(
        $1::text[], $2::text[], $3::text[], $4::bigint[], $5::bigint[], $6::timestamptz[],
        $7::timestamptz[], $8::timestamptz[], $9::text[], $10::text[], $11::timestamptz[],
        $12::bigint[]
    ) AS made (
        user_id, stock_keeping_unit, status, version, quantity, expires_at, granted_at, revoked_at,
        source, source_id, updated_at, made_from
    )
),

changed AS (
    UPDATE entitlement.entitlements AS held
    SET
        status = made.status,
        version = made.version,
        quantity = made.quantity,
        expires_at = made.expires_at,
        granted_at = made.granted_at,
        revoked_at = made.revoked_at,
        source = made.source,
        source_id = made.source_id,
        updated_at = made.updated_at
    FROM made
    WHERE made.made_from > 0
        AND held.user_id = made.user_id AND held.stock_keeping_unit = made.stock_keeping_unit
        AND held.version = made.made_from
    RETURNING 1
),

new AS (
    INSERT INTO entitlement.entitlements (
        user_id, stock_keeping_unit, status, version, quantity, expires_at, granted_at, revoked_at,
        source, source_id, updated_at
    )
    SELECT
        user_id, stock_keeping_unit, status, version, quantity, expires_at, granted_at, revoked_at,
        source, source_id, updated_at
    FROM made
    WHERE made_from = 0
    RETURNING 1
),

audited AS (
    INSERT INTO entitlement.entitlement_audit (
        audit_id, occurred_at, user_id, stock_keeping_unit, version, action, source, source_id,
        caller, request_id, detail
    )
    SELECT
        audit_id, occurred_at, user_id, stock_keeping_unit, version, action, source, source_id,
        caller, request_id, detail
    FROM UNNEST(
        $13::uuid[], $14::timestamptz[], $15::text[], $16::text[], $17::bigint[], $18::text[],
        $19::text[], $20::text[], $21::text[], $22::text[], $23::jsonb[]
    ) AS done (
        audit_id, occurred_at, user_id, stock_keeping_unit, version, action, source, source_id,
        caller, request_id, detail
    )
)

SELECT (SELECT count(*) FROM changed) + (SELECT count(*) FROM new) AS "written!"
