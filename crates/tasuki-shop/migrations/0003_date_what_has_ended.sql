-- no-transaction
-- Why:   an order that has ended without a time would never be compared, and be taken for one that is on
--        its way.
-- Phase: expand. The previous release runs unchanged against this schema.
-- Lock:  rows of orders that have ended, some thousands at a time: nobody changes those any more.
-- Undo:  UPDATE shop.orders SET ended_at = NULL; without the trigger orders_ended
-- Each round is committed. Run again, it finds those that are left.
DO $$
DECLARE
    place uuid := '00000000-0000-0000-0000-000000000000';
    up_to uuid;
BEGIN
    LOOP
        SELECT order_id INTO up_to
        FROM (
            SELECT order_id
            FROM shop.orders
            WHERE order_id > place
            ORDER BY order_id
            LIMIT 5000
        ) AS slice
        ORDER BY order_id DESC
        LIMIT 1;
        EXIT WHEN up_to IS NULL;
        UPDATE shop.orders
        SET ended_at = updated_at
        WHERE order_id > place AND order_id <= up_to
            AND state IN ('COMPLETED', 'COMPENSATED') AND ended_at IS NULL;
        COMMIT;
        place := up_to;
    END LOOP;
END
$$;
