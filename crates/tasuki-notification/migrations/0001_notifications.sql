-- Why:   what people are told, over which channel, and what became of it.
-- Phase: expand. Nothing reads these tables yet.
-- Lock:  none on existing tables.
-- Undo:  DROP VIEW notification.notification_dlq, notification.notifications;
--        DROP TABLE notification.notification_nats_dlq, notification.sweeps,
--        notification.preferences, notification.shown, notification.inboxes,
--        notification.notifications_sent, notification.notifications_live;

-- What waits, is being delivered, or is dead. What was sent moves to notifications_sent in the
-- transaction that settles it, so that a claim costs the same beside ten million old ones.
CREATE TABLE notification.notifications_live (
    notification_id uuid PRIMARY KEY,
    event_id uuid NOT NULL,
    user_id text NOT NULL,
    type text NOT NULL,
    channel text NOT NULL CHECK (channel IN ('log', 'in-app', 'webhook')),
    -- Where a webhook goes.
    endpoint_id uuid CHECK ((endpoint_id IS NOT NULL) = (channel = 'webhook')),
    -- What it is about, and which version of that: the newest wins in what a person is shown.
    aggregate_key text NOT NULL,
    version bigint NOT NULL,
    occurred_at timestamptz NOT NULL,
    payload_json jsonb NOT NULL,
    traceparent text,
    status text NOT NULL DEFAULT 'PENDING' CHECK (status IN ('PENDING', 'PROCESSING', 'FAILED')),
    attempt_count integer NOT NULL DEFAULT 0,
    -- 'infinity' for a dead row: claims never come past it.
    next_retry_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    created_at timestamptz NOT NULL DEFAULT now(),
    locked_by text,
    locked_at timestamptz,
    lease_until timestamptz,
    claim_token uuid,
    last_error text
) WITH (
    -- Room for the claim's new version of a row on the same page, without touching an index.
    fillfactor = 40,
    autovacuum_vacuum_scale_factor = 0.01,
    autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_cost_delay = 0
);

-- No status in them: a claim changes it, and must not have to touch an index. Webhooks may be
-- slow, and have an index and workers of their own.
CREATE INDEX notifications_live_inside_idx ON notification.notifications_live (next_retry_at)
    WHERE channel <> 'webhook';
CREATE INDEX notifications_live_webhook_idx ON notification.notifications_live (next_retry_at)
    WHERE channel = 'webhook';
-- The dead ones, for retention.
CREATE INDEX notifications_live_dead_idx ON notification.notifications_live (created_at)
    WHERE next_retry_at = 'infinity';

-- What was sent. Partitions are days, dropped whole; the default one catches what no partition
-- is made for.
CREATE TABLE notification.notifications_sent (
    notification_id uuid NOT NULL,
    event_id uuid NOT NULL,
    user_id text NOT NULL,
    type text NOT NULL,
    channel text NOT NULL,
    endpoint_id uuid,
    aggregate_key text NOT NULL,
    version bigint NOT NULL,
    occurred_at timestamptz NOT NULL,
    payload_json jsonb NOT NULL,
    traceparent text,
    attempt_count integer NOT NULL,
    created_at timestamptz NOT NULL,
    sent_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- In-app only: its number in the user's inbox, without gaps and in the order in which they
    -- became visible; whether a newer version was shown before; when it was read.
    inbox_seq bigint,
    superseded boolean NOT NULL DEFAULT false,
    read_at timestamptz
) PARTITION BY RANGE (created_at);

CREATE INDEX notifications_sent_user_idx ON notification.notifications_sent (user_id, created_at);
CREATE INDEX notifications_sent_inbox_idx ON notification.notifications_sent (user_id, inbox_seq)
    WHERE inbox_seq IS NOT NULL;
-- Ids are ordered by time, and so are the rows: block ranges find one for almost nothing.
CREATE INDEX notifications_sent_event_id_idx ON notification.notifications_sent
    USING brin (event_id uuid_minmax_multi_ops);

CREATE TABLE notification.notifications_sent_default
    PARTITION OF notification.notifications_sent DEFAULT;

CREATE INDEX notifications_sent_default_sweep_idx
    ON notification.notifications_sent_default (created_at);

-- All of them, whatever became of them.
CREATE VIEW notification.notifications AS
SELECT
    notification_id, event_id, user_id, type, channel, endpoint_id, aggregate_key, version,
    occurred_at, payload_json, traceparent, status, attempt_count,
    NULLIF(next_retry_at, 'infinity') AS next_retry_at, created_at, NULL::timestamptz AS sent_at,
    locked_by, locked_at, lease_until, last_error
FROM notification.notifications_live
UNION ALL
SELECT
    notification_id, event_id, user_id, type, channel, endpoint_id, aggregate_key, version,
    occurred_at, payload_json, traceparent, 'SENT', attempt_count, NULL, created_at, sent_at,
    NULL, NULL, NULL, NULL
FROM notification.notifications_sent;

-- The dead ones, by notification: at most one open letter each.
CREATE VIEW notification.notification_dlq AS
SELECT
    letter.letter_id AS dlq_id, letter.source_id AS notification_id, live.event_id,
    convert_from(letter.payload, 'UTF8')::jsonb AS payload_json, letter.error AS error_message,
    letter.attempt_count, letter.failed_at AS created_at
FROM notification.dead_letters AS letter
LEFT JOIN notification.notifications_live AS live ON live.notification_id = letter.source_id
WHERE letter.source = 'notifications_live'
    AND letter.redriven_at IS NULL AND letter.discarded_at IS NULL;

-- How far each user's inbox is numbered. Its row is locked while numbers are given, so that they
-- become visible in their order.
CREATE TABLE notification.inboxes (
    user_id text PRIMARY KEY,
    last_seq bigint NOT NULL
) WITH (fillfactor = 70);

-- The newest version of everything that a user was shown.
CREATE TABLE notification.shown (
    user_id text NOT NULL,
    aggregate_key text NOT NULL,
    version bigint NOT NULL,
    PRIMARY KEY (user_id, aggregate_key)
) WITH (fillfactor = 70);

-- Over which channels a user wants to be told of what; type '*' for everything else.
CREATE TABLE notification.preferences (
    user_id text NOT NULL,
    type text NOT NULL,
    channels text[] NOT NULL,
    updated_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (user_id, type)
);

-- Messages that the broker gave up, or that got lost between it and us. Numbers are used again
-- when a stream is made again, so when it was created is part of the key.
CREATE TABLE notification.notification_nats_dlq (
    stream text NOT NULL,
    stream_created_at timestamptz NOT NULL,
    stream_seq bigint NOT NULL,
    consumer text NOT NULL,
    message_id uuid,
    kind text NOT NULL CHECK (kind IN ('MAX_DELIVERIES', 'TERMINATED', 'MISSED')),
    reason text,
    deliveries bigint,
    created_at timestamptz NOT NULL DEFAULT now(),
    redriven_at timestamptz,
    discarded_at timestamptz,
    closed_by text,
    -- What went wrong when somebody tried again.
    last_error text,
    PRIMARY KEY (stream, stream_created_at, stream_seq)
);

CREATE INDEX notification_nats_dlq_open_idx ON notification.notification_nats_dlq (created_at)
    WHERE redriven_at IS NULL AND discarded_at IS NULL;

-- How far each stream was compared with what was processed.
CREATE TABLE notification.sweeps (
    stream text NOT NULL,
    consumer text NOT NULL,
    stream_created_at timestamptz NOT NULL,
    swept_seq bigint NOT NULL,
    swept_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (stream, consumer)
);
