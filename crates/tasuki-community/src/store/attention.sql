-- What events say of others: a row for each that is named, and one for each of its topics if it can be seen
-- and is not one's own.
INSERT INTO cn_relay.attention AS known (event_id, target, topic, counts, from_key, kind, given_at)
SELECT
    given.event_id, given.target, topic.name, target.topics IS NOT NULL, given.from_key, given.kind,
    given.given_at
FROM unnest($1::bytea[], $2::bytea[], $3::bytea[], $4::integer[], $5::bigint[])
    AS given (event_id, target, from_key, kind, given_at)
LEFT JOIN LATERAL (
    SELECT event.topics
    FROM (
        SELECT pubkey, topics, expires_at, hidden_at FROM cn_relay.events
        WHERE event_id = given.target
        UNION ALL
        SELECT pubkey, topics, expires_at, hidden_at FROM cn_relay.kept_events
        WHERE event_id = given.target
    ) AS event
    WHERE event.hidden_at IS NULL AND event.pubkey <> given.from_key
        AND (event.expires_at IS NULL OR event.expires_at > extract(EPOCH FROM clock_timestamp()))
    LIMIT 1
) AS target ON TRUE
CROSS JOIN LATERAL unnest(coalesce(target.topics, '{}') || ''::text) AS topic (name)
WHERE (SELECT set_config('synchronous_commit', 'off', TRUE)) = 'off'
ON CONFLICT (event_id, target, topic) DO UPDATE SET counts = TRUE
WHERE excluded.counts AND NOT known.counts
