-- no-transaction
-- Why:   notices of one kind are shown page by page, the last first.
-- Phase: expand. The previous release runs unchanged against this schema.
-- Lock:  SHARE UPDATE EXCLUSIVE; reads and writes continue while it builds.
-- Undo:  DROP INDEX CONCURRENTLY shop.operator_notices_kind_idx;
CREATE INDEX CONCURRENTLY operator_notices_kind_idx
    ON shop.operator_notices (kind, notice_id);
