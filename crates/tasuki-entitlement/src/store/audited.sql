-- Ids of events are made at the time of their change, so those of a window of the audit are in a
-- range of ids, and block ranges find their rows without an index of their own.
WITH changes AS MATERIALIZED (
    SELECT audit_id, occurred_at, user_id, stock_keeping_unit, version
    FROM entitlement.entitlement_audit
    WHERE occurred_at >= $1 AND occurred_at < $2
),

bounds AS MATERIALIZED (
    -- There is no min() of uuid in this version of PostgreSQL.
    SELECT
        (SELECT audit_id FROM changes ORDER BY audit_id LIMIT 1) AS lowest,
        (SELECT audit_id FROM changes ORDER BY audit_id DESC LIMIT 1) AS highest
),

published AS MATERIALIZED (
    SELECT event_id, count(*) AS found
    FROM entitlement.outbox_published
    WHERE event_id BETWEEN (SELECT lowest FROM bounds) AND (SELECT highest FROM bounds)
    GROUP BY event_id
)

SELECT
    changes.audit_id, changes.occurred_at, changes.user_id, changes.stock_keeping_unit,
    changes.version,
    (
        SELECT count(*) FROM entitlement.outbox_events AS waiting
        WHERE waiting.event_id = changes.audit_id AND waiting.status <> 'FAILED'
    ) AS "waiting!",
    (
        SELECT count(*) FROM entitlement.outbox_events AS dead
        WHERE dead.event_id = changes.audit_id AND dead.status = 'FAILED'
    ) AS "dead!",
    COALESCE(published.found, 0) AS "published!"
FROM changes
LEFT JOIN published ON published.event_id = changes.audit_id
