-- no-transaction
-- Why:   the two halves of a transfer are in two databases: the late ones are compared.
-- Phase: expand. The previous release runs unchanged against this schema.
-- Lock:  SHARE UPDATE EXCLUSIVE; reads and writes continue while it builds.
-- Undo:  DROP INDEX CONCURRENTLY shop.stock_moves_transferred_at_idx;
CREATE INDEX CONCURRENTLY stock_moves_transferred_at_idx
    ON shop.stock_moves (moved_at)
    WHERE kind = 'TRANSFER';
