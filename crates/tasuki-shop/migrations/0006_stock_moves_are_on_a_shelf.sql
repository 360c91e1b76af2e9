-- Why:   what has moved before there was the constraint is on a shelf as well.
-- Phase: expand. The previous release runs unchanged against this schema.
-- Lock:  SHARE UPDATE EXCLUSIVE on stock_moves, ROW SHARE on stock; reads and writes continue.
-- Undo:  nothing: the constraint holds for what is new in any case.
ALTER TABLE shop.stock_moves VALIDATE CONSTRAINT stock_moves_stock_keeping_unit_fkey;
