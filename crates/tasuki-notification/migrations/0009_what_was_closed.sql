-- no-transaction
-- Why:   messages that were set aside and closed long ago are found to be removed.
-- Phase: expand. The previous release runs unchanged against this schema.
-- Lock:  SHARE UPDATE EXCLUSIVE; reads and writes continue while it builds.
-- Undo:  DROP INDEX CONCURRENTLY notification.notification_nats_dlq_closed_idx;
CREATE INDEX CONCURRENTLY notification_nats_dlq_closed_idx
    ON notification.notification_nats_dlq (created_at)
    WHERE redriven_at IS NOT NULL OR discarded_at IS NOT NULL;
