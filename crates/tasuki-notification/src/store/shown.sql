-- Numbers are given under the lock of the inbox's row, which is held until the commit: a reader
-- that has passed a number never finds a later one below it. Rows are locked in the order of
-- their keys, so two settlements that overlap wait for each other and never in a circle.
WITH mine AS (
    DELETE FROM notification.notifications_live AS live
    USING UNNEST($1::uuid[], $2::uuid[]) AS claim (id, token)
    -- By the ids, too: whatever the plan, the rows are found by their key.
    WHERE live.notification_id = ANY($1) AND live.notification_id = claim.id
        AND live.claim_token = claim.token
    RETURNING live.*
),

counted AS (
    SELECT user_id, count(*) AS added
    FROM mine
    WHERE channel = 'in-app'
    GROUP BY user_id
    ORDER BY user_id
),

numbered AS (
    INSERT INTO notification.inboxes AS inbox (user_id, last_seq)
    SELECT user_id, added FROM counted
    ON CONFLICT (user_id) DO UPDATE SET last_seq = inbox.last_seq + excluded.last_seq
    RETURNING inbox.user_id, inbox.last_seq
),

latest AS (
    SELECT user_id, aggregate_key, max(version) AS version
    FROM mine
    WHERE channel = 'in-app'
    GROUP BY user_id, aggregate_key
    ORDER BY user_id, aggregate_key
),

newest AS (
    INSERT INTO notification.shown AS shown (user_id, aggregate_key, version)
    -- After all of the inboxes, in every plan: locks of the two tables are taken in one order. Who
    -- asks whether there is one inbox has it numbered and the others not yet.
    SELECT user_id, aggregate_key, version FROM latest
    WHERE (SELECT count(*) FROM numbered) > 0
    ON CONFLICT (user_id, aggregate_key) DO UPDATE SET
        version = GREATEST(shown.version, excluded.version), shown_on = excluded.shown_on
    RETURNING shown.user_id, shown.aggregate_key, shown.version
)

INSERT INTO notification.notifications_sent (
    notification_id, event_id, user_id, type, channel, endpoint_id, aggregate_key, version,
    occurred_at, payload_json, traceparent, attempt_count, created_at, inbox_seq, superseded
)
SELECT
    mine.notification_id, mine.event_id, mine.user_id, mine.type, mine.channel,
    mine.endpoint_id, mine.aggregate_key, mine.version, mine.occurred_at, mine.payload_json,
    mine.traceparent, mine.attempt_count + 1, mine.created_at,
    CASE
        WHEN mine.channel = 'in-app'
            THEN numbered.last_seq - counted.added + row_number() OVER (
                PARTITION BY mine.user_id, mine.channel
                ORDER BY mine.created_at, mine.version, mine.notification_id
            )
    END,
    mine.channel = 'in-app' AND mine.version < newest.version
FROM mine
LEFT JOIN counted ON mine.channel = 'in-app' AND counted.user_id = mine.user_id
LEFT JOIN numbered ON mine.channel = 'in-app' AND numbered.user_id = mine.user_id
LEFT JOIN newest
    ON mine.channel = 'in-app' AND newest.user_id = mine.user_id
    AND newest.aggregate_key = mine.aggregate_key
RETURNING notification_id
