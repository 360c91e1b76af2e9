-- What gets the most attention: of the latest rows of a topic, however many there are. Whoever pays it
-- counts once for each event, by what of it weighs most now.
WITH given AS MATERIALIZED (
    SELECT target, from_key, kind, given_at, floor(extract(EPOCH FROM statement_timestamp()))::bigint - given_at AS age
    FROM cn_relay.attention
    WHERE topic = $1 AND counts
        AND given_at > floor(extract(EPOCH FROM statement_timestamp()))::bigint - $2::bigint
        AND given_at <= floor(extract(EPOCH FROM statement_timestamp()))::bigint
    ORDER BY given_at DESC
    LIMIT $4
),

people AS (
    SELECT
        target, from_key, max(given_at) AS given_at,
        max((CASE kind WHEN 7 THEN 1.0::float8 ELSE 2.0::float8 END) * 0.5::float8 ^ (age / $3::float8)) AS weight
    FROM given
    GROUP BY target, from_key
)

SELECT target AS "target!", round(sum(weight)::numeric, 3)::float8 AS "score!", count(*) AS "people!"
FROM people
GROUP BY target
ORDER BY 2 DESC, max(given_at) DESC, target
LIMIT $5
