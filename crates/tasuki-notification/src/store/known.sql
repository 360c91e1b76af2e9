-- The ids are those of a window of time, so block ranges find the sent ones without an index of
-- their own. What waits is read whole: it is little, and an index would cost every delivery.
WITH wanted AS MATERIALIZED (
    SELECT event_id FROM UNNEST($1::uuid[]) AS wanted (event_id)
),

bounds AS MATERIALIZED (
    -- There is no min() of uuid in this version of PostgreSQL.
    SELECT
        (SELECT event_id FROM wanted ORDER BY event_id LIMIT 1) AS lowest,
        (SELECT event_id FROM wanted ORDER BY event_id DESC LIMIT 1) AS highest
),

told AS MATERIALIZED (
    SELECT event_id, notification_id, user_id, channel, endpoint_id, 'SENT' AS status
    FROM notification.notifications_sent
    WHERE event_id BETWEEN (SELECT lowest FROM bounds) AND (SELECT highest FROM bounds)
    UNION ALL
    SELECT event_id, notification_id, user_id, channel, endpoint_id, status
    FROM notification.notifications_live
    WHERE event_id BETWEEN (SELECT lowest FROM bounds) AND (SELECT highest FROM bounds)
),

each AS (
    SELECT
        told.event_id, told.user_id, told.channel, told.endpoint_id, count(*) AS notifications,
        count(*) FILTER (WHERE told.status = 'SENT') AS sent,
        count(*) FILTER (WHERE told.status = 'FAILED') AS failed,
        count(*) FILTER (WHERE told.status IN ('PENDING', 'PROCESSING')) AS waiting,
        count(letter.letter_id) AS letters
    FROM told
    LEFT JOIN notification.dead_letters AS letter
        ON told.status = 'FAILED' AND letter.source = 'notifications_live'
        AND letter.source_id = told.notification_id
        AND letter.redriven_at IS NULL AND letter.discarded_at IS NULL
    GROUP BY told.event_id, told.user_id, told.channel, told.endpoint_id
),

summed AS (
    SELECT
        event_id, sum(sent)::bigint AS sent, sum(failed)::bigint AS failed,
        sum(waiting)::bigint AS waiting, sum(letters)::bigint AS letters,
        max(notifications) AS most_each
    FROM each
    GROUP BY event_id
)

SELECT
    wanted.event_id AS "event_id!",
    taken.processed AS "processed!",
    taken.made AS "made?",
    COALESCE(summed.waiting, 0) AS "waiting!",
    COALESCE(summed.sent, 0) AS "sent!",
    COALESCE(summed.failed, 0) AS "failed!",
    COALESCE(summed.letters, 0) AS "letters!",
    COALESCE(summed.most_each, 0) AS "most_each!"
FROM wanted
CROSS JOIN LATERAL (
    SELECT count(*) AS processed, sum(processed.effects)::bigint AS made
    FROM notification.processed_events AS processed
    WHERE processed.event_id = wanted.event_id
) AS taken
LEFT JOIN summed ON summed.event_id = wanted.event_id
