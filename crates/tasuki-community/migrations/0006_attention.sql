-- Why:   what many people answer, pass on and react to is found: what gets attention, in a topic or in all.
-- Phase: expand. Nothing reads this table yet. What came before it is in it after a rebuild of index-v1.
-- Lock:  none on existing tables.
-- Undo:  DROP TABLE cn_relay.attention;

-- Who pays attention to which event, as far as both can be seen. A row for each event that does so and
-- each that it names, and another one for each topic of the latter once that is there. A rebuild fills
-- another table beside it, which then takes its place and its name.
CREATE TABLE cn_relay.attention (
    -- A reaction, an answer, a repost or a zap.
    event_id bytea NOT NULL,
    target bytea NOT NULL,
    -- A topic of the target; empty: all of them.
    topic text NOT NULL,
    -- Not while the target can't be seen, and never if it is one's own.
    counts boolean NOT NULL,
    from_key bytea NOT NULL,
    -- Of the event: how much it weighs.
    kind integer NOT NULL,
    given_at bigint NOT NULL,
    PRIMARY KEY (event_id, target, topic)
);

CREATE INDEX attention_topic_idx ON cn_relay.attention (topic, given_at DESC)
    INCLUDE (target, from_key, kind) WHERE counts;
CREATE INDEX attention_target_idx ON cn_relay.attention (target, topic);
