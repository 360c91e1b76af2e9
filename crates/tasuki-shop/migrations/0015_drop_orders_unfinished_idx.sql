-- no-transaction
-- Why:   the state in the condition of this index makes every change of an order write all of its indexes.
-- Phase: expand. The previous release runs unchanged against this schema: its comparison, the only one
--        that goes by this index, reads more.
-- Lock:  SHARE UPDATE EXCLUSIVE; reads and writes continue.
-- Undo:  CREATE INDEX CONCURRENTLY orders_unfinished_idx ON shop.orders (created_at)
--            WHERE state NOT IN ('COMPLETED', 'COMPENSATED');
DROP INDEX CONCURRENTLY shop.orders_unfinished_idx;
