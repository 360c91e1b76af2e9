-- no-transaction
-- Why:   claims go from endpoint to endpoint and take a few of each: one that is owed a hundred
--        thousand messages must cost the others nothing.
-- Phase: expand. The previous release claims by notifications_live_webhook_idx.
-- Lock:  SHARE UPDATE EXCLUSIVE; reads and writes continue while it builds.
-- Undo:  DROP INDEX CONCURRENTLY notification.notifications_live_endpoint_idx;
CREATE INDEX CONCURRENTLY notifications_live_endpoint_idx
    ON notification.notifications_live (endpoint_id, next_retry_at)
    WHERE channel = 'webhook' AND next_retry_at < 'infinity';
