-- Why:   an event that arrives twice has one effect.
-- Phase: expand. Nothing reads this table yet.
-- Lock:  none on existing tables.
-- Undo:  DROP TABLE {schema}.processed_events;

-- Ids are UUIDv7, so ranges of ids are ranges of time: old partitions are dropped whole. Ids of
-- another make, and times that no partition is made for, are in the default partition.
CREATE TABLE {schema}.processed_events (
    event_id uuid NOT NULL,
    consumer text NOT NULL,
    traceparent text,
    processed_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (event_id, consumer)
) PARTITION BY RANGE (event_id);

CREATE TABLE {schema}.processed_events_default PARTITION OF {schema}.processed_events DEFAULT;

CREATE INDEX processed_events_default_processed_at_idx
    ON {schema}.processed_events_default (processed_at);
