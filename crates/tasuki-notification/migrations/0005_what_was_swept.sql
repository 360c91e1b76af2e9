-- Why:   a stream that was rolled back gives its numbers again, and what leaves a stream by its age
--        was perhaps never read. Only the message that was compared last, and how far the consumer
--        had settled, tell.
-- Phase: expand. The previous release runs unchanged against this schema.
-- Lock:  ACCESS EXCLUSIVE on sweeps, a row per consumer, for an instant: nothing is rewritten.
-- Undo:  ALTER TABLE notification.sweeps
--        DROP COLUMN settled_seq, DROP COLUMN known_seq, DROP COLUMN known_id;
ALTER TABLE notification.sweeps
    -- Up to where the consumer had settled at the last look.
    ADD COLUMN settled_seq bigint,
    -- The last message that was compared, as far as it had an id.
    ADD COLUMN known_seq bigint,
    ADD COLUMN known_id uuid;
