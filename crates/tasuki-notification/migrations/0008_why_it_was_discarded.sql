-- Why:   why a message of the broker's was given up is not what went wrong at its last redrive.
-- Phase: expand. The previous release runs unchanged against this schema.
-- Lock:  ACCESS EXCLUSIVE on a table with few rows, for a moment: a column without a default.
-- Undo:  ALTER TABLE notification.notification_nats_dlq DROP COLUMN discard_reason;
ALTER TABLE notification.notification_nats_dlq ADD COLUMN discard_reason text;
