-- What must not be of the stock of one warehouse. $1: all moves are added up, and not only those that
-- are not in a sum yet.
SELECT
    'stock_differs_from_its_moves' AS "kind!", NULL::uuid AS "order_id?",
    held.stock_keeping_unit AS "subject!"
FROM shop.stock AS held
LEFT JOIN shop.stock_sums AS sums ON held.stock_keeping_unit = sums.stock_keeping_unit AND NOT $1
CROSS JOIN LATERAL (
    SELECT coalesce(sum(moves.quantity), 0) AS quantity
    FROM shop.stock_moves AS moves
    WHERE moves.stock_keeping_unit = held.stock_keeping_unit
        AND moves.moved_at >= coalesce(sums.up_to, '-infinity')
) AS moved
WHERE held.on_hand <> coalesce(sums.quantity, 0) + moved.quantity
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
