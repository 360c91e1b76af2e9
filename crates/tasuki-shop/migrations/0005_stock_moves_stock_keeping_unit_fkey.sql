-- Why:   nothing moves that is on no shelf.
-- Phase: expand. The previous release runs unchanged against this schema: whatever it moves has a shelf.
-- Lock:  SHARE ROW EXCLUSIVE on stock_moves and stock, for a moment: what is there is not looked at yet.
-- Undo:  ALTER TABLE shop.stock_moves DROP CONSTRAINT stock_moves_stock_keeping_unit_fkey;
ALTER TABLE shop.stock_moves
    ADD CONSTRAINT stock_moves_stock_keeping_unit_fkey
    FOREIGN KEY (stock_keeping_unit) REFERENCES shop.stock (stock_keeping_unit)
    NOT VALID;
