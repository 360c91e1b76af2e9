-- Why:   whoever takes over numbering goes on from where the last one had seen everything, instead of
--        walking over all rows; and each attempt at a rebuild has a number, so that no two share a store.
-- Phase: expand. The release before leaves the new columns as they are, and what they say stays true.
-- Lock:  ACCESS EXCLUSIVE on seqlogs and consumer_offsets for a moment: columns without a default that
--        changes, nothing is rewritten.
-- Undo:  ALTER TABLE {schema}.seqlogs DROP COLUMN seen_xmax, DROP COLUMN seen_open;
--        ALTER TABLE {schema}.consumer_offsets DROP COLUMN rebuild_attempt;

-- A snapshot of which everything is numbered: the first transaction that had not begun, and those that
-- were open.
ALTER TABLE {schema}.seqlogs ADD COLUMN seen_xmax bigint, ADD COLUMN seen_open bigint [];

-- The last attempt at a rebuild. Counted up as well when somebody asks for one.
ALTER TABLE {schema}.consumer_offsets ADD COLUMN rebuild_attempt bigint NOT NULL DEFAULT 0;
