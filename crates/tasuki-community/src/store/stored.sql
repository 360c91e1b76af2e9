-- New events with what can be looked for in them, their place among what was ever accepted, and the log.
WITH incoming AS MATERIALIZED (
    SELECT
        it.event_id, it.pubkey, it.created_at, it.kind, it.expires_at, it.version_key, it.effective_key,
        it.body, ARRAY(SELECT jsonb_array_elements_text(it.topics::jsonb)) AS topics
    FROM unnest(
        $1::bytea[], $2::bytea[], $3::bigint[], $4::integer[], $5::bigint[], $6::uuid[], $7::text[],
        $8::text[], $9::text[]
    ) AS it (
        event_id, pubkey, created_at, kind, expires_at, version_key, effective_key, body, topics
    )
),

regular AS (
    INSERT INTO cn_relay.events (
        event_id, ingested_at, pubkey, created_at, kind, topics, expires_at, body
    )
    SELECT event_id, now(), pubkey, created_at, kind, topics, expires_at, body
    FROM incoming
    WHERE version_key IS NULL AND kind <> 5
),

kept AS (
    INSERT INTO cn_relay.kept_events (
        event_id, version_key, effective_key, ingested_at, pubkey, created_at, kind, topics,
        expires_at, body
    )
    SELECT
        event_id, version_key, effective_key, now(), pubkey, created_at, kind, topics, expires_at, body
    FROM incoming
    WHERE version_key IS NOT NULL OR kind = 5
),

regular_tags AS (
    INSERT INTO cn_relay.event_tags (tag_key, created_at, event_id, ingested_at)
    SELECT tag.tag_key, tag.created_at, tag.event_id, now()
    FROM unnest($10::uuid[], $11::bigint[], $12::bytea[], $13::boolean[])
        AS tag (tag_key, created_at, event_id, is_kept)
    WHERE NOT tag.is_kept
),

kept_tags AS (
    INSERT INTO cn_relay.kept_tags (tag_key, created_at, event_id)
    SELECT tag.tag_key, tag.created_at, tag.event_id
    FROM unnest($10::uuid[], $11::bigint[], $12::bytea[], $13::boolean[])
        AS tag (tag_key, created_at, event_id, is_kept)
    WHERE tag.is_kept
),

known AS (
    INSERT INTO cn_relay.event_dedupe (event_id, ingested_at)
    SELECT accepted.event_id, now() FROM unnest($14::bytea[]) AS accepted (event_id)
)

INSERT INTO cn_relay.events_outbox_pending (
    op, event_id, topic_id, kind, created_at, ingested_at, effective_key
)
SELECT 'upsert', encode(event_id, 'hex'), topic, kind, created_at, now(), effective_key
FROM incoming
CROSS JOIN LATERAL unnest(topics) AS topic
