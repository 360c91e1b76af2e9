-- What is known of events that have arrived. One by one: a join may be planned while a table is empty.
SELECT
    floor(extract(EPOCH FROM clock_timestamp()))::bigint AS "now!",
    wanted.place AS "place!",
    EXISTS (
        SELECT FROM cn_relay.event_dedupe AS seen WHERE seen.event_id = wanted.event_id
    ) AS "is_seen!",
    EXISTS (
        SELECT FROM cn_relay.tombstones AS stone
        WHERE stone.target = wanted.target AND stone.author = wanted.author
    ) AS "is_deleted!",
    (
        SELECT stone.until FROM cn_relay.tombstones AS stone
        WHERE stone.target = wanted.version_key AND stone.author = wanted.author
    ) AS "deleted_until?",
    latest.event_id AS "latest_id?",
    latest.created_at AS "latest_created_at?"
FROM unnest($1::bytea[], $2::uuid[], $3::bytea[], $4::uuid[])
    WITH ORDINALITY AS wanted (event_id, target, author, version_key, place)
LEFT JOIN LATERAL (
    SELECT kept.event_id, kept.created_at
    FROM cn_relay.kept_events AS kept
    WHERE kept.version_key = wanted.version_key
    LIMIT 1
) AS latest ON TRUE
