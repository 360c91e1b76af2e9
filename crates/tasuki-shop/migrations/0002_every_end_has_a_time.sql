-- Why:   what has ended is compared in the order of its end. The state can't say when that was, and in the
--        condition of an index it makes every change of an order write all of them.
-- Phase: expand. The previous release dates no end: the trigger does it for that one.
-- Lock:  ACCESS EXCLUSIVE on orders, for a moment: no row is read.
-- Undo:  DROP TRIGGER orders_ended ON shop.orders;
--        DROP FUNCTION shop.orders_ended();
--        ALTER TABLE shop.orders DROP COLUMN ended_at;

-- NULL while it is on its way.
ALTER TABLE shop.orders ADD COLUMN ended_at timestamptz;

CREATE FUNCTION shop.orders_ended() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.ended_at :=
        CASE WHEN NEW.state IN ('COMPLETED', 'COMPENSATED') THEN NEW.updated_at END;
    RETURN NEW;
END
$$;

-- Whoever dates the end is not asked.
CREATE TRIGGER orders_ended
    BEFORE INSERT OR UPDATE ON shop.orders
    FOR EACH ROW
    WHEN ((NEW.ended_at IS NOT NULL) <> (NEW.state IN ('COMPLETED', 'COMPENSATED')))
    EXECUTE FUNCTION shop.orders_ended();
