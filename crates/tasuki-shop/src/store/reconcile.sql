-- Everything that must not be, of orders that have ended, and of stock. Compared in one snapshot.
WITH ended AS (
    SELECT orders.order_id, orders.state, orders.payment_id, orders.reservation_id, orders.amount
    FROM shop.orders AS orders
    WHERE orders.state IN ('COMPLETED', 'COMPENSATED')
), wrong AS (
    SELECT
        'charged_but_neither_granted_nor_refunded' AS kind, ended.order_id,
        payments.payment_id::text AS subject
    FROM ended
    JOIN shop.payments AS payments USING (payment_id)
    WHERE payments.state = 'COMPLETED'
        AND EXISTS (
            SELECT FROM shop.order_items AS items
            WHERE items.order_id = ended.order_id
                AND items.grant_state IS DISTINCT FROM 'GRANTED'
        )
    UNION ALL
    SELECT 'granted_but_not_paid', ended.order_id, ended.payment_id::text
    FROM ended
    WHERE EXISTS (
            SELECT FROM shop.order_items AS items
            WHERE items.order_id = ended.order_id AND items.grant_state = 'GRANTED'
        )
        AND NOT EXISTS (
            SELECT FROM shop.payments AS payments
            WHERE payments.payment_id = ended.payment_id AND payments.state = 'COMPLETED'
        )
    UNION ALL
    SELECT 'undone_but_still_charged', ended.order_id, payments.payment_id::text
    FROM ended
    JOIN shop.payments AS payments USING (payment_id)
    WHERE ended.state = 'COMPENSATED' AND payments.state IN ('PENDING', 'COMPLETED', 'REFUNDING')
    UNION ALL
    SELECT 'charged_another_amount', ended.order_id, payments.payment_id::text
    FROM ended
    JOIN shop.payments AS payments USING (payment_id)
    WHERE payments.amount <> ended.amount
    UNION ALL
    SELECT 'sold_but_not_taken_from_stock', ended.order_id, ended.reservation_id::text
    FROM ended
    WHERE ended.state = 'COMPLETED'
        AND NOT EXISTS (
            SELECT FROM shop.reservations AS held
            WHERE held.reservation_id = ended.reservation_id AND held.state = 'COMMITTED'
        )
    UNION ALL
    SELECT 'undone_but_still_reserved', ended.order_id, held.reservation_id::text
    FROM ended
    JOIN shop.reservations AS held USING (reservation_id)
    WHERE ended.state = 'COMPENSATED' AND held.state IN ('HELD', 'COMMITTED')
    UNION ALL
    SELECT 'stock_differs_from_its_moves', NULL, held.stock_keeping_unit
    FROM shop.stock AS held
    LEFT JOIN LATERAL (
        SELECT coalesce(sum(moves.quantity), 0) AS moved
        FROM shop.stock_moves AS moves
        WHERE moves.stock_keeping_unit = held.stock_keeping_unit
    ) AS moves ON TRUE
    WHERE held.on_hand <> moves.moved
    UNION ALL
    SELECT 'reserved_differs_from_reservations', NULL, held.stock_keeping_unit
    FROM shop.stock AS held
    LEFT JOIN (
        SELECT items.stock_keeping_unit, sum(items.quantity) AS quantity
        FROM shop.reservations AS reservations
        JOIN shop.reservation_items AS items USING (reservation_id)
        WHERE reservations.state = 'HELD'
        GROUP BY items.stock_keeping_unit
    ) AS holds USING (stock_keeping_unit)
    WHERE held.reserved <> coalesce(holds.quantity, 0)
    UNION ALL
    SELECT 'provider_differs_from_payments', payments.order_id, charges.idem_key
    FROM shop.simulated_charges AS charges
    LEFT JOIN shop.payments AS payments ON charges.idem_key = payments.payment_id::text || ':charge'
    LEFT JOIN ended ON payments.payment_id = ended.payment_id
    WHERE charges.outcome = 'APPROVED'
        AND (payments.payment_id IS NULL OR ended.order_id IS NOT NULL)
        AND (charges.amount - charges.refunded) IS DISTINCT FROM
        CASE WHEN payments.state = 'COMPLETED' THEN payments.amount ELSE 0 END
), counted AS (
    SELECT
        kind, order_id, subject,
        count(*) OVER (PARTITION BY kind) AS many,
        row_number() OVER (PARTITION BY kind ORDER BY subject) AS place
    FROM wrong
)
SELECT kind AS "kind!", order_id, subject AS "subject!", many AS "many!"
FROM counted
WHERE place <= $1
ORDER BY kind, subject
