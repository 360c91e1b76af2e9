-- no-transaction
-- Why:   the moves of a SKU since they were added up last.
-- Phase: expand. The previous release runs unchanged against this schema.
-- Lock:  SHARE UPDATE EXCLUSIVE; reads and writes continue while it builds.
-- Undo:  DROP INDEX CONCURRENTLY shop.stock_moves_moved_at_idx;
CREATE INDEX CONCURRENTLY stock_moves_moved_at_idx
    ON shop.stock_moves (stock_keeping_unit, moved_at);
