-- no-transaction
-- Why:   what has run out is walked in an order in which each has a place of its own; where many run
--        out at the same moment, all of them were sorted for every page of the walk.
-- Phase: expand. The previous release finds what has run out by either index.
-- Lock:  SHARE UPDATE EXCLUSIVE; reads and writes continue while it builds.
-- Undo:  DROP INDEX CONCURRENTLY entitlement.entitlements_due_idx;
CREATE INDEX CONCURRENTLY entitlements_due_idx
    ON entitlement.entitlements (expires_at, user_id, stock_keeping_unit)
    WHERE expires_at IS NOT NULL;
