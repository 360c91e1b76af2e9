-- Why:   who checks that nothing is missing compares what is there with what there was to be, and
--        only the transaction that took the event in knew that.
-- Phase: expand. The release before names the columns that it writes; what it records has none.
-- Lock:  ACCESS EXCLUSIVE on processed_events for a moment: a column without a default.
-- Undo:  ALTER TABLE {schema}.processed_events DROP COLUMN effects;

-- How many things the consumer made of the event, where it says so.
ALTER TABLE {schema}.processed_events ADD COLUMN effects integer;
