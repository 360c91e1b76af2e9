-- What authors delete: it stays away from now on, and what is there is hidden. Rows are found by their id or
-- their version, and by nothing else: an author may have very many.
WITH asked AS MATERIALIZED (
    SELECT * FROM unnest($1::uuid[], $2::bytea[], $3::bytea[], $4::bigint[], $5::bytea[])
        AS it (target, event_id, author, until, deletion_id)
),

stones AS (
    INSERT INTO cn_relay.tombstones AS stone (target, author, until, deletion_id)
    SELECT target, author, until, deletion_id FROM asked
    -- The latest counts; each is kept as long as the last deletion that set it. Of a single event there
    -- is no time.
    ON CONFLICT (target, author) DO UPDATE
    SET until = greatest(stone.until, excluded.until), deletion_id = excluded.deletion_id, recorded_at = now()
),

found AS MATERIALIZED (
    SELECT one.event_id
    FROM asked
    CROSS JOIN LATERAL (
        SELECT kept.event_id FROM cn_relay.kept_events AS kept
        WHERE kept.event_id = asked.event_id AND kept.pubkey IS NOT DISTINCT FROM asked.author
        UNION ALL
        SELECT kept.event_id FROM cn_relay.kept_events AS kept
        WHERE kept.version_key = asked.target AND kept.pubkey IS NOT DISTINCT FROM asked.author
            AND kept.created_at <= asked.until
    ) AS one
),

regular AS (
    UPDATE cn_relay.events AS event
    SET hidden_at = now()
    FROM asked
    WHERE event.event_id = asked.event_id AND event.hidden_at IS NULL
        -- So written, no index on authors serves.
        AND event.pubkey IS NOT DISTINCT FROM asked.author
    RETURNING
        event.event_id, event.kind, event.created_at, event.ingested_at, NULL AS effective_key,
        event.topics
),

kept AS (
    UPDATE cn_relay.kept_events AS event
    SET hidden_at = now()
    WHERE event.event_id = ANY(ARRAY(SELECT event_id FROM found))
        AND event.hidden_at IS NULL AND event.kind <> 5
    RETURNING
        event.event_id, event.kind, event.created_at, event.ingested_at, event.effective_key,
        event.topics
)

INSERT INTO cn_relay.events_outbox_pending (
    op, event_id, topic_id, kind, created_at, ingested_at, effective_key, reason
)
SELECT 'delete', encode(event_id, 'hex'), topic, kind, created_at, ingested_at, effective_key, 'nip09'
FROM (SELECT * FROM regular UNION ALL SELECT * FROM kept) AS hidden
CROSS JOIN LATERAL unnest(topics) AS topic
