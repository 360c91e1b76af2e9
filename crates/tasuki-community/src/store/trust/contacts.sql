-- To whom somebody has spoken last when, and when that one has answered last. From one name to the next by
-- the index of pairs: how often somebody speaks to the same one costs nothing.
SELECT wanted.key, said.at AS said_at, heard.at AS heard_at
FROM unnest($1::bytea[]) AS wanted (key)
CROSS JOIN LATERAL (
    WITH RECURSIVE others AS (
        (
            SELECT first.to_key AS other, 1 AS place FROM cn_relay.trust_contacts AS first
            WHERE first.from_key = wanted.key AND first.to_key IS NOT NULL
            ORDER BY first.to_key
            LIMIT 1
        )
        UNION ALL
        SELECT following.to_key, others.place + 1
        FROM others
        CROSS JOIN LATERAL (
            SELECT later.to_key FROM cn_relay.trust_contacts AS later
            WHERE later.from_key = wanted.key AND later.to_key > others.other
            ORDER BY later.to_key
            LIMIT 1
        ) AS following
        WHERE others.place < $3::integer
    )

    SELECT others.other FROM others
) AS pair
CROSS JOIN LATERAL (
    SELECT max(contact.said_at) AS at FROM cn_relay.trust_contacts AS contact
    WHERE contact.from_key = wanted.key AND contact.to_key = pair.other
) AS said
CROSS JOIN LATERAL (
    SELECT max(contact.said_at) AS at FROM cn_relay.trust_contacts AS contact
    WHERE contact.from_key = pair.other AND contact.to_key = wanted.key
) AS heard
WHERE pair.other <> wanted.key AND said.at > $2::bigint
