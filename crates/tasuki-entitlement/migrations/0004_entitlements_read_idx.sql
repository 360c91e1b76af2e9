-- no-transaction
-- Why:   what a user has was read from as many pages as there are entitlements: they were granted at
--        different times, and lie far apart. An index that has what is read has it on one page.
-- Phase: expand. The next migration makes it the primary key.
-- Lock:  SHARE UPDATE EXCLUSIVE; reads and writes continue while it builds.
-- Undo:  DROP INDEX CONCURRENTLY entitlement.entitlements_read_idx;
CREATE UNIQUE INDEX CONCURRENTLY entitlements_read_idx
    ON entitlement.entitlements (user_id, stock_keeping_unit)
    INCLUDE (status, version, quantity, expires_at, updated_at);
