-- One by one: a join may be planned while the table is empty, and then reads all of it for as long
-- as the plan is kept.
SELECT
    (SELECT clock_timestamp()) AS "now!",
    wanted.place AS "place!",
    held.status AS "status?",
    held.version AS "version?",
    held.quantity AS "quantity?",
    held.expires_at AS "expires_at?",
    held.granted_at AS "granted_at?",
    held.revoked_at AS "revoked_at?",
    held.source AS "source?",
    held.source_id AS "source_id?",
    held.updated_at AS "updated_at?"
FROM UNNEST($1::text[], $2::text[])
    WITH ORDINALITY AS wanted (user_id, stock_keeping_unit, place)
LEFT JOIN LATERAL (
    SELECT * FROM entitlement.entitlements AS held
    WHERE held.user_id = wanted.user_id
        AND held.stock_keeping_unit = wanted.stock_keeping_unit
    LIMIT 1
) AS held ON TRUE
