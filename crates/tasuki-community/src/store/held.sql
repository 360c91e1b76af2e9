-- Locks what a batch replaces and deletes, in one order: two batches of which each deletes what the other
-- replaces have no lock on an id or a version in common, and must not wait for each other's rows.
SELECT kept.event_id
FROM cn_relay.kept_events AS kept
WHERE kept.event_id = ANY(ARRAY(
    SELECT one.event_id
    FROM unnest($1::uuid[]) AS wanted (version_key)
    CROSS JOIN LATERAL (
        SELECT found.event_id FROM cn_relay.kept_events AS found
        WHERE found.version_key = wanted.version_key
        LIMIT 1
    ) AS one
    UNION ALL
    SELECT unnest($2::bytea[])
))
ORDER BY kept.event_id
FOR UPDATE
