-- Who has reported something last when: those who talk with somebody first, then the latest.
SELECT wanted.place, one.reporter, one.reported_at
FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS wanted (author, target, place)
CROSS JOIN LATERAL (
    SELECT report.reporter, max(report.reported_at) AS reported_at
    FROM (
        SELECT by_author.reporter, by_author.reported_at
        FROM cn_relay.trust_reports AS by_author
        WHERE by_author.author = wanted.author AND by_author.reporter <> wanted.author
            AND by_author.reported_at > $3::bigint
        UNION ALL
        SELECT by_target.reporter, by_target.reported_at
        FROM cn_relay.trust_reports AS by_target
        WHERE by_target.target = wanted.target AND by_target.author IS DISTINCT FROM by_target.reporter
            AND by_target.reported_at > $3::bigint
    ) AS report
    GROUP BY report.reporter
    ORDER BY
        EXISTS (
            SELECT FROM cn_relay.trust_contacts AS contact
            WHERE contact.from_key = CASE
                WHEN report.reporter ~ '^[0-9a-f]{64}$' THEN decode(report.reporter, 'hex')
            END
        ) DESC,
        max(report.reported_at) DESC,
        report.reporter
    LIMIT $4
) AS one
