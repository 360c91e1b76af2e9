-- Why:   what a topic may bring in is for its operators to say, and what goes first when consumers are
--        behind.
-- Phase: expand. The previous release goes on with the defaults.
-- Lock:  ACCESS EXCLUSIVE on two small tables, for a moment.
-- Undo:  ALTER TABLE cn_relay.topics DROP COLUMN priority, DROP COLUMN takes_backfill,
--            DROP COLUMN events_per_minute, DROP COLUMN capacity;
--        ALTER TABLE cn_relay.rules_audit DROP COLUMN detail, and the old check.

ALTER TABLE cn_relay.topics
    ADD COLUMN priority text NOT NULL DEFAULT 'normal' CHECK (priority IN ('normal', 'low')),
    ADD COLUMN takes_backfill boolean NOT NULL DEFAULT TRUE,
    -- 0 is no limit, here and below.
    ADD COLUMN events_per_minute integer NOT NULL DEFAULT 0 CHECK (events_per_minute >= 0),
    -- Rows of its events that the slowest consumer may have before it.
    ADD COLUMN capacity integer NOT NULL DEFAULT 0 CHECK (capacity >= 0);

ALTER TABLE cn_relay.rules_audit
    ADD COLUMN detail text,
    DROP CONSTRAINT rules_audit_action_check,
    ADD CONSTRAINT rules_audit_action_check
        CHECK (action IN ('ENABLE', 'DISABLE', 'POLICY', 'BAN', 'UNBAN'));
