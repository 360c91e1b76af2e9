-- What authors delete: it stays away from now on, and what is there is hidden.
WITH asked AS MATERIALIZED (
    SELECT * FROM unnest($1::uuid[], $2::bytea[], $3::bytea[], $4::bigint[], $5::bytea[])
        AS it (target, event_id, author, until, deletion_id)
),

stones AS (
    INSERT INTO cn_relay.tombstones AS stone (target, author, until, deletion_id)
    SELECT target, author, until, deletion_id FROM asked
    ON CONFLICT (target, author) DO UPDATE
    SET until = excluded.until, deletion_id = excluded.deletion_id, recorded_at = now()
    -- One of a single event has no time, and counts again.
    WHERE excluded.until > stone.until OR excluded.until IS NULL
),

regular AS (
    UPDATE cn_relay.events AS event
    SET hidden_at = now()
    FROM asked
    WHERE event.event_id = asked.event_id AND event.pubkey = asked.author AND event.hidden_at IS NULL
    RETURNING
        event.event_id, event.kind, event.created_at, event.ingested_at, NULL AS effective_key,
        event.topics
),

kept AS (
    UPDATE cn_relay.kept_events AS event
    SET hidden_at = now()
    FROM asked
    WHERE event.pubkey = asked.author AND event.hidden_at IS NULL AND event.kind <> 5
        AND (
            event.event_id = asked.event_id
            OR (event.version_key = asked.target AND event.created_at <= asked.until)
        )
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
