-- Adds moves that are older than $1 to the sums of these SKUs.
WITH bound AS (
    SELECT clock_timestamp() - $1::interval AS up_to
)
INSERT INTO shop.stock_sums AS sums (stock_keeping_unit, up_to, quantity)
SELECT
    held.stock_keeping_unit, bound.up_to,
    (coalesce(earlier.quantity, 0) + moved.quantity)::bigint
FROM bound
CROSS JOIN shop.stock AS held
LEFT JOIN shop.stock_sums AS earlier USING (stock_keeping_unit)
CROSS JOIN LATERAL (
    SELECT sum(moves.quantity) AS quantity
    FROM shop.stock_moves AS moves
    WHERE moves.stock_keeping_unit = held.stock_keeping_unit
        AND moves.moved_at >= coalesce(earlier.up_to, '-infinity')
        AND moves.moved_at < bound.up_to
) AS moved
WHERE held.stock_keeping_unit = ANY ($2) AND moved.quantity IS NOT NULL
ON CONFLICT (stock_keeping_unit) DO UPDATE
SET up_to = excluded.up_to, quantity = excluded.quantity
