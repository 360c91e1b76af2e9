-- no-transaction
-- Why:   notices that are old are found to be removed.
-- Phase: expand. The previous release runs unchanged against this schema.
-- Lock:  SHARE UPDATE EXCLUSIVE; reads and writes continue while it builds.
-- Undo:  DROP INDEX CONCURRENTLY shop.operator_notices_told_at_idx;
CREATE INDEX CONCURRENTLY operator_notices_told_at_idx
    ON shop.operator_notices (told_at);
