-- no-transaction
-- Why:   what has ended, in the order of its end; and, at NULL, what is on its way.
-- Phase: expand. The previous release runs unchanged against this schema.
-- Lock:  SHARE UPDATE EXCLUSIVE; reads and writes continue while it builds.
-- Undo:  DROP INDEX CONCURRENTLY shop.orders_ended_at_idx;
CREATE INDEX CONCURRENTLY orders_ended_at_idx
    ON shop.orders (ended_at, order_id);
