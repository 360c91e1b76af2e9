-- no-transaction
-- Why:   the two halves of a transfer are in two databases: one is looked for by the other.
-- Phase: expand. The previous release runs unchanged against this schema.
-- Lock:  SHARE UPDATE EXCLUSIVE; reads and writes continue while it builds.
-- Undo:  DROP INDEX CONCURRENTLY shop.stock_moves_transfer_idx;
CREATE INDEX CONCURRENTLY stock_moves_transfer_idx
    ON shop.stock_moves (cause)
    WHERE kind = 'TRANSFER';
