-- no-transaction
-- Why:   what was shown long ago is found to be forgotten, without reading all that was shown.
-- Phase: expand. The previous release runs unchanged against this schema.
-- Lock:  SHARE UPDATE EXCLUSIVE; reads and writes continue while it builds.
-- Undo:  DROP INDEX CONCURRENTLY notification.shown_shown_on_idx;
CREATE INDEX CONCURRENTLY shown_shown_on_idx ON notification.shown (shown_on);
