-- Ids of events are made at the time of their change, so those of a window are in a range of ids, and
-- block ranges find their rows without an index of their own.
WITH told AS MATERIALIZED (
    SELECT story.event_id, story.recorded_at, story.event_type, story.correlation_id
    FROM shop.orders AS ended
    INNER JOIN shop.stories AS story ON story.correlation_id = ended.order_id::text
    WHERE ended.ended_at >= $1 AND ended.ended_at < $2
        AND story.consumer IS NULL AND story.recorded_at >= $3
),

bounds AS MATERIALIZED (
    -- There is no min() of uuid in this version of PostgreSQL.
    SELECT
        (SELECT event_id FROM told ORDER BY event_id LIMIT 1) AS lowest,
        (SELECT event_id FROM told ORDER BY event_id DESC LIMIT 1) AS highest
),

published AS MATERIALIZED (
    SELECT event_id, count(*) AS found
    FROM shop.outbox_published
    WHERE event_id BETWEEN (SELECT lowest FROM bounds) AND (SELECT highest FROM bounds)
    GROUP BY event_id
)

SELECT
    told.event_id, told.recorded_at, told.event_type, told.correlation_id AS order_id,
    (
        SELECT count(*) FROM shop.outbox_events AS waiting
        WHERE waiting.event_id = told.event_id AND waiting.status <> 'FAILED'
    ) AS "waiting!",
    (
        SELECT count(*) FROM shop.outbox_events AS dead
        WHERE dead.event_id = told.event_id AND dead.status = 'FAILED'
    ) AS "dead!",
    COALESCE(published.found, 0) AS "published!"
FROM told
LEFT JOIN published ON published.event_id = told.event_id
