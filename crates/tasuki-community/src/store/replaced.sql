-- Versions whose place another one takes. Whoever saw them is told that they are gone.
WITH held AS MATERIALIZED (
    SELECT event_id FROM cn_relay.kept_events
    WHERE version_key = ANY($1::uuid[])
    -- In one order, so that two batches never wait for each other.
    ORDER BY event_id
    FOR UPDATE
),

gone AS (
    DELETE FROM cn_relay.kept_events
    WHERE event_id = ANY(ARRAY(SELECT event_id FROM held))
    RETURNING event_id, kind, created_at, ingested_at, effective_key, topics, hidden_at
)

INSERT INTO cn_relay.events_outbox_pending (
    op, event_id, topic_id, kind, created_at, ingested_at, effective_key, reason
)
SELECT
    'delete', encode(event_id, 'hex'), topic, kind, created_at, ingested_at, effective_key, 'replaced'
FROM gone
CROSS JOIN LATERAL unnest(topics) AS topic
WHERE hidden_at IS NULL
