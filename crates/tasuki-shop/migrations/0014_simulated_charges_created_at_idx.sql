-- no-transaction
-- Why:   the provider's charges are read in the order of time, page by page.
-- Phase: expand. The previous release runs unchanged against this schema.
-- Lock:  SHARE UPDATE EXCLUSIVE; reads and writes continue while it builds.
-- Undo:  DROP INDEX CONCURRENTLY shop.simulated_charges_created_at_idx;
CREATE INDEX CONCURRENTLY simulated_charges_created_at_idx
    ON shop.simulated_charges (created_at, idem_key);
