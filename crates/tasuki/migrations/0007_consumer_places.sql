-- Why:   a stream that lost its end and grew again holds new messages where a consumer has read
--        already. Only what it read there tells, and a process that was restarted has forgotten it.
-- Phase: expand. Nothing reads this table yet.
-- Lock:  none on existing tables.
-- Undo:  DROP TABLE {schema}.consumer_places;

-- The furthest message that each consumer has read.
CREATE TABLE {schema}.consumer_places (
    stream text NOT NULL,
    durable text NOT NULL,
    stream_created_at timestamptz NOT NULL,
    stream_seq bigint NOT NULL,
    event_id uuid NOT NULL,
    read_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (stream, durable)
) WITH (fillfactor = 50);
