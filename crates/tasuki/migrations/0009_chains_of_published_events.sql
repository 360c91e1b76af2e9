-- Why:   an event that the broker lost is published again from here, with all that it had.
-- Phase: expand. The columns are empty for whoever does not know them.
-- Lock:  ACCESS EXCLUSIVE on outbox_published, for a moment: nothing is rewritten. Apart from the
--        step before, because relays and reconcilers take the two tables in either order.
-- Undo:  ALTER TABLE {schema}.outbox_published DROP COLUMN correlation_id, DROP COLUMN causation_id;
ALTER TABLE {schema}.outbox_published ADD COLUMN correlation_id text, ADD COLUMN causation_id uuid;
