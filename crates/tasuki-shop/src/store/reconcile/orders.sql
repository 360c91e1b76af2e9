-- What must not be of these orders, as far as they have ended.
WITH ended AS (
    SELECT
        orders.order_id, orders.state, orders.payment_id, orders.reservation_id, orders.amount,
        orders.currency
    FROM shop.orders AS orders
    WHERE orders.order_id = ANY ($1) AND orders.ended_at IS NOT NULL
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
    WHERE ended.state = 'COMPENSATED' AND payments.state NOT IN ('FAILED', 'REFUNDED')
    UNION ALL
    SELECT 'charged_another_amount', ended.order_id, payments.payment_id::text
    FROM ended
    JOIN shop.payments AS payments USING (payment_id)
    WHERE (payments.amount, payments.currency) <> (ended.amount, ended.currency)
    UNION ALL
    SELECT 'sold_but_not_taken_from_stock', ended.order_id, ended.reservation_id::text
    FROM ended
    WHERE ended.state = 'COMPLETED'
        AND NOT EXISTS (
            SELECT FROM shop.reservations AS held
            WHERE held.reservation_id = ended.reservation_id AND held.state = 'COMMITTED'
        )
    UNION ALL
    SELECT 'sold_other_goods_than_ordered', ended.order_id, ended.reservation_id::text
    FROM ended
    JOIN shop.reservations AS held USING (reservation_id)
    WHERE held.state = 'COMMITTED'
        AND EXISTS (
            SELECT FROM (
                SELECT items.stock_keeping_unit, items.quantity
                FROM shop.order_items AS items
                WHERE items.order_id = ended.order_id
            ) AS wanted
            FULL JOIN (
                SELECT items.stock_keeping_unit, items.quantity
                FROM shop.reservation_items AS items
                WHERE items.reservation_id = ended.reservation_id
            ) AS taken USING (stock_keeping_unit)
            WHERE wanted.quantity IS DISTINCT FROM taken.quantity
        )
    UNION ALL
    SELECT 'undone_but_still_reserved', ended.order_id, held.reservation_id::text
    FROM ended
    JOIN shop.reservations AS held USING (reservation_id)
    WHERE ended.state = 'COMPENSATED' AND held.state IN ('HELD', 'COMMITTED')
    UNION ALL
    SELECT
        'provider_differs_from_payments', ended.order_id, payments.payment_id::text || ':charge'
    FROM ended
    JOIN shop.payments AS payments USING (payment_id)
    LEFT JOIN shop.simulated_charges AS charges
        ON charges.idem_key = payments.payment_id::text || ':charge'
            AND charges.outcome = 'APPROVED'
    WHERE coalesce(charges.amount - charges.refunded, 0) <>
        CASE WHEN payments.state = 'COMPLETED' THEN payments.amount ELSE 0 END
        OR charges.currency <> payments.currency
)
SELECT kind AS "kind!", order_id, subject AS "subject!"
FROM wrong
