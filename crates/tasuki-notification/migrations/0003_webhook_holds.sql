-- Why:   an endpoint in trouble is left alone by all processes and asked for by no claim; every
--        secret that was replaced signs until its time is over; tests are counted; an owner is
--        told before an endpoint is disabled; what a paused one is owed is not kept for ever.
-- Phase: expand. The previous release knows neither the columns nor the table: it claims what is
--        held, too, signs with the last two secrets, and pauses without a time: then it is that of
--        the last change.
-- Lock:  ACCESS EXCLUSIVE on webhook_endpoints for a moment, no rewrite: every default is constant.
-- Undo:  DROP TABLE notification.webhook_secrets;
--        ALTER TABLE notification.webhook_endpoints DROP COLUMN failures,
--        DROP COLUMN failing_since, DROP COLUMN held_until, DROP COLUMN tests,
--        DROP COLUMN tests_since, DROP COLUMN warned_at, DROP COLUMN paused_at;
ALTER TABLE notification.webhook_endpoints
    -- Attempts that failed in a row, and since when nothing but that happened.
    ADD COLUMN failures integer NOT NULL DEFAULT 0,
    ADD COLUMN failing_since timestamptz,
    -- Nothing is sent before that; afterwards one message at a time, until one arrives.
    ADD COLUMN held_until timestamptz,
    -- Tests since then, which is at most a minute ago while it counts.
    ADD COLUMN tests integer NOT NULL DEFAULT 0,
    ADD COLUMN tests_since timestamptz,
    -- When its owner was told of the trouble, while it lasts.
    ADD COLUMN warned_at timestamptz,
    -- When its owner paused it, while it is paused.
    ADD COLUMN paused_at timestamptz;

-- Secrets that were replaced before the last one was, and still sign.
CREATE TABLE notification.webhook_secrets (
    endpoint_id uuid NOT NULL
        REFERENCES notification.webhook_endpoints (endpoint_id) ON DELETE CASCADE,
    secret text NOT NULL,
    signs_until timestamptz NOT NULL,
    PRIMARY KEY (endpoint_id, secret)
);
