-- Why:   where people want to be told over HTTP, and how each attempt went.
-- Phase: expand. Nothing reads these tables yet.
-- Lock:  none on existing tables.
-- Undo:  DROP TABLE notification.webhook_attempts, notification.webhook_endpoints;
CREATE TABLE notification.webhook_endpoints (
    endpoint_id uuid PRIMARY KEY,
    user_id text NOT NULL,
    url text NOT NULL,
    description text NOT NULL,
    -- Which types it gets; none means all.
    types text[] NOT NULL,
    status text NOT NULL DEFAULT 'ENABLED' CHECK (status IN ('ENABLED', 'PAUSED', 'DISABLED')),
    -- Why and when we disabled it.
    disabled_reason text,
    disabled_at timestamptz,
    secret text NOT NULL,
    -- Signs beside the new one until then, so that nobody misses a message at a rotation.
    previous_secret text,
    previous_until timestamptz,
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now()
);

CREATE INDEX webhook_endpoints_user_id_idx ON notification.webhook_endpoints (user_id);

-- Every attempt. Partitions are days, dropped whole.
CREATE TABLE notification.webhook_attempts (
    attempt_id uuid NOT NULL,
    endpoint_id uuid NOT NULL,
    notification_id uuid NOT NULL,
    attempted_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- delivered, gone, later, failed, refused
    outcome text NOT NULL,
    response_code integer,
    took_ms integer NOT NULL,
    error text,
    excerpt text
) PARTITION BY RANGE (attempted_at);

CREATE INDEX webhook_attempts_endpoint_idx
    ON notification.webhook_attempts (endpoint_id, attempted_at);

CREATE TABLE notification.webhook_attempts_default
    PARTITION OF notification.webhook_attempts DEFAULT;

CREATE INDEX webhook_attempts_default_sweep_idx
    ON notification.webhook_attempts_default (attempted_at);
