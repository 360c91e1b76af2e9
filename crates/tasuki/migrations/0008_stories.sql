-- Why:   services that only react to each other's events are understood as one story: what belongs
--        together has a correlation id, and every event names the one that it follows from.
-- Phase: expand. Nothing reads the table yet; the columns are empty for whoever does not know them.
-- Lock:  ACCESS EXCLUSIVE on outbox_events, for a moment: nothing is rewritten.
-- Undo:  DROP TABLE {schema}.stories;
--        ALTER TABLE {schema}.outbox_events DROP COLUMN correlation_id, DROP COLUMN causation_id;
ALTER TABLE {schema}.outbox_events ADD COLUMN correlation_id text, ADD COLUMN causation_id uuid;

-- This service's part: a row for each event that it told, and for each that it reacted to. Nothing
-- is unique: a row commits with that of the outbox, or of the inbox, which is.
CREATE TABLE {schema}.stories (
    correlation_id text NOT NULL,
    event_id uuid NOT NULL,
    causation_id uuid,
    event_type text NOT NULL,
    service text NOT NULL,
    -- Who reacted to it; NULL in the row of whoever told it.
    consumer text,
    recorded_at timestamptz NOT NULL DEFAULT now()
) PARTITION BY RANGE (recorded_at);

CREATE INDEX stories_correlation_id_idx ON {schema}.stories (correlation_id);

CREATE TABLE {schema}.stories_default PARTITION OF {schema}.stories DEFAULT;

CREATE INDEX stories_default_recorded_at_idx ON {schema}.stories_default (recorded_at);
