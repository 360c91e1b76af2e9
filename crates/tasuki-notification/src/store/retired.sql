-- What was dead for longer than it is kept goes, and its letter is closed with it: there is nothing
-- left that it could put back. Whoever acts on the letter right now has it locked, and keeps the
-- row; nobody is waited for, so nobody waits in a circle.
WITH old AS MATERIALIZED (
    SELECT notification_id
    FROM notification.notifications_live
    WHERE next_retry_at = 'infinity' AND status = 'FAILED'
        AND created_at < now() - make_interval(hours => $1)
    ORDER BY created_at
    LIMIT $2
    FOR UPDATE SKIP LOCKED
),

letters AS MATERIALIZED (
    SELECT letter.letter_id, letter.source_id
    FROM notification.dead_letters AS letter
    INNER JOIN old ON letter.source_id = old.notification_id
    WHERE letter.source = 'notifications_live'
        AND letter.redriven_at IS NULL AND letter.discarded_at IS NULL
    FOR UPDATE OF letter SKIP LOCKED
),

retired AS (
    DELETE FROM notification.notifications_live AS live
    USING old
    WHERE live.notification_id = old.notification_id
        AND (
            EXISTS (SELECT FROM letters WHERE letters.source_id = old.notification_id)
            OR NOT EXISTS (
                SELECT FROM notification.dead_letters AS letter
                WHERE letter.source = 'notifications_live'
                    AND letter.source_id = old.notification_id
                    AND letter.redriven_at IS NULL AND letter.discarded_at IS NULL
            )
        )
    RETURNING live.notification_id
),

closed AS (
    UPDATE notification.dead_letters AS letter
    SET discarded_at = clock_timestamp()
    FROM letters
    INNER JOIN retired ON letters.source_id = retired.notification_id
    WHERE letter.letter_id = letters.letter_id
    RETURNING letter.letter_id, letter.source_id
),

audited AS (
    INSERT INTO notification.dead_letter_audit (
        audit_id, letter_id, source, source_id, action, actor, reason
    )
    SELECT
        gen_random_uuid(), letter_id, 'notifications_live', source_id, 'DISCARD', 'retention',
        'the notification is older than notifications are kept'
    FROM closed
)

SELECT count(*) AS "retired!" FROM retired
