-- What must not be of orders that are on their way: the money of one that only a person can move, and
-- one that has not moved for $1 and that no saga, no job and no event will move.
SELECT
    'charged_but_parked' AS "kind!", orders.order_id AS "order_id?",
    orders.payment_id::text AS "subject!"
FROM shop.orders AS orders
JOIN shop.payments AS payments USING (payment_id)
WHERE orders.ended_at IS NULL
    AND payments.state NOT IN ('FAILED', 'REFUNDED')
    AND (
        orders.state = 'NEEDS_ATTENTION'
        OR EXISTS (
            SELECT FROM shop.sagas AS sagas
            WHERE sagas.saga_id = orders.order_id AND sagas.state = 'NEEDS_ATTENTION'
        )
    )
UNION ALL
SELECT 'unfinished_and_nobody_moves_it', orders.order_id, orders.order_id::text
FROM shop.orders AS orders
WHERE orders.ended_at IS NULL
    AND orders.updated_at < clock_timestamp() - $1::interval
    AND NOT EXISTS (SELECT FROM shop.sagas AS sagas WHERE sagas.saga_id = orders.order_id)
    AND NOT EXISTS (
        SELECT FROM shop.jobs AS jobs
        WHERE jobs.unique_id = orders.order_id::text AND jobs.next_retry_at < 'infinity'
    )
    AND NOT EXISTS (
        SELECT FROM shop.outbox_events AS events
        WHERE events.ordering_key = 'order:' || orders.order_id::text
            AND events.next_retry_at < 'infinity'
    )
