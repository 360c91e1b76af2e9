-- Why:   a claim's new version of a row is larger than the row that waits. At 70 % full, a page has
--        room for a third of its claims only; the others went to another page and into every index.
-- Phase: expand. For pages that are filled from now on; a queue's are soon.
-- Lock:  SHARE UPDATE EXCLUSIVE on both tables, for a moment: reads and writes go on.
-- Undo:  set it to 70 again.
ALTER TABLE {schema}.jobs SET (fillfactor = 40);
ALTER TABLE {schema}.outbox_events SET (fillfactor = 40);
