-- no-transaction
-- Why:   entitlements_due_idx begins with the same column and has the same rows: two would be
--        written for every end.
-- Phase: contract. The previous release finds what has run out by entitlements_due_idx.
-- Lock:  SHARE UPDATE EXCLUSIVE; reads and writes continue, and it waits for those that run.
-- Undo:  CREATE INDEX CONCURRENTLY entitlements_expires_at_idx ON entitlement.entitlements
--        (expires_at) WHERE expires_at IS NOT NULL;
DROP INDEX CONCURRENTLY IF EXISTS entitlement.entitlements_expires_at_idx;
