-- no-transaction
-- Why:   a payment is found by the key that the provider knows its charge by.
-- Phase: expand. The previous release runs unchanged against this schema.
-- Lock:  SHARE UPDATE EXCLUSIVE; reads and writes continue while it builds.
-- Undo:  DROP INDEX CONCURRENTLY shop.payments_charge_key_idx;
CREATE INDEX CONCURRENTLY payments_charge_key_idx
    ON shop.payments ((payment_id::text || ':charge'));
