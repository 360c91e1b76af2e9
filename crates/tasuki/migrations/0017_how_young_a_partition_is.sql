-- Why:   before a partition of ids is dropped, its youngest row is asked for. Without an index by time
--        that reads all of it, and of a large one takes longer than upkeep may take.
-- Phase: expand. Nothing names these indexes. Only partitions that are made from now on have them: the
--        others, built here, would hold their writers, and go within their retention.
-- Lock:  SHARE on processed_events and barriers for a moment: nothing is built.
-- Undo:  DROP INDEX {schema}.processed_events_processed_at_idx, {schema}.barriers_changed_at_idx;

-- A few bytes for each megabyte. It narrows what is read as long as rows are about as old as their
-- neighbours, which these are.
CREATE INDEX processed_events_processed_at_idx
    ON ONLY {schema}.processed_events USING brin (processed_at) WITH (autosummarize = on);

CREATE INDEX barriers_changed_at_idx
    ON ONLY {schema}.barriers USING brin (changed_at) WITH (autosummarize = on);
