-- Labels as they are first said. What a person has done to one since is not touched.
INSERT INTO cn_relay.labels AS kept (
    label_id, target, label, origin, round, rule_id, rule_version, author, confidence, issued_at,
    expires_at, policy_url, policy_ref, topics, node_event_id, is_before_target, actor, reason
)
SELECT
    (it.said ->> 'label_id')::uuid, it.said ->> 'target', it.said ->> 'label', it.said ->> 'origin',
    (it.said ->> 'round')::integer, (it.said ->> 'rule_id')::uuid,
    (it.said ->> 'rule_version')::integer, decode(it.said ->> 'author', 'hex'),
    (it.said ->> 'confidence')::double precision, times.issued_at, times.expires_at,
    it.said ->> 'policy_url', it.said ->> 'policy_ref',
    ARRAY(SELECT jsonb_array_elements_text(it.said -> 'topics')),
    decode(it.said ->> 'node_event_id', 'hex'), (it.said ->> 'is_before_target')::boolean,
    it.said ->> 'actor', it.said ->> 'reason'
FROM jsonb_array_elements($1::text::jsonb) WITH ORDINALITY AS it (said, place)
JOIN unnest($2::timestamptz[], $3::timestamptz[]) WITH ORDINALITY
    AS times (issued_at, expires_at, place) USING (place)
ON CONFLICT (target, label, origin, round) DO UPDATE
SET
    rule_id = excluded.rule_id, rule_version = excluded.rule_version, author = excluded.author,
    confidence = excluded.confidence, issued_at = excluded.issued_at,
    expires_at = excluded.expires_at, policy_url = excluded.policy_url,
    policy_ref = excluded.policy_ref, topics = excluded.topics,
    node_event_id = excluded.node_event_id
WHERE kept.origin = 'rule' AND (
    kept.rule_id, kept.rule_version, kept.author, kept.confidence, kept.issued_at, kept.expires_at,
    kept.policy_url, kept.policy_ref, kept.topics, kept.node_event_id
) IS DISTINCT FROM (
    excluded.rule_id, excluded.rule_version, excluded.author, excluded.confidence,
    excluded.issued_at, excluded.expires_at, excluded.policy_url, excluded.policy_ref,
    excluded.topics, excluded.node_event_id
)
RETURNING kept.node_event_id
