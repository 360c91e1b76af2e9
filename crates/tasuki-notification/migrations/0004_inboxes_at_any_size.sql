-- Why:   an inbox of ten thousand is read through to count what is unread, or to find one
--        notification in it; what was shown is remembered for ever.
-- Phase: expand. The previous release runs unchanged against this schema.
-- Lock:  ACCESS EXCLUSIVE on shown and SHARE on notifications_sent alone, for a moment: no rewrite,
--        and no index is built. PostgreSQL builds none concurrently over all partitions, so those
--        that are made from now on have them; older ones are read as before until they are dropped.
-- Undo:  DROP INDEX notification.notifications_sent_unread_idx,
--        notification.notifications_sent_named_idx;
--        ALTER TABLE notification.shown DROP COLUMN shown_on;

-- Those that somebody can name: in an inbox, or sent to an endpoint. What goes to the log alone
-- is not in it, and costs nothing more.
CREATE INDEX notifications_sent_named_idx
    ON ONLY notification.notifications_sent (notification_id)
    WHERE inbox_seq IS NOT NULL OR endpoint_id IS NOT NULL;
CREATE INDEX notifications_sent_unread_idx
    ON ONLY notification.notifications_sent (user_id, inbox_seq)
    WHERE inbox_seq IS NOT NULL AND read_at IS NULL AND NOT superseded;

-- The day on which a version was last shown, in UTC. No finer: a row that is written again on the
-- same day changes nothing that is in an index.
ALTER TABLE notification.shown
    ADD COLUMN shown_on date NOT NULL DEFAULT (now() AT TIME ZONE 'UTC')::date;
