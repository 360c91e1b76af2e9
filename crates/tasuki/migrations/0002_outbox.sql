-- Why:   events leave this database if, and only if, the transaction that wrote them commits.
-- Phase: expand. Nothing reads these tables yet.
-- Lock:  none on existing tables.
-- Undo:  DROP TABLE {schema}.outbox_published, {schema}.outbox_events;

-- Live rows only: waiting, claimed or dead. A published row moves to outbox_published in the
-- transaction that settles it, so that a claim costs the same beside ten million old ones.
CREATE TABLE {schema}.outbox_events (
    event_id uuid PRIMARY KEY,
    seq bigint GENERATED ALWAYS AS IDENTITY,
    event_type text NOT NULL,
    aggregate_key text NOT NULL,
    -- Events with the same key are published in the order of seq; NULL: in any order.
    ordering_key text,
    payload bytea NOT NULL,
    traceparent text,
    occurred_at timestamptz NOT NULL DEFAULT now(),
    status text NOT NULL DEFAULT 'PENDING' CHECK (status IN ('PENDING', 'IN_FLIGHT', 'FAILED')),
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
    fillfactor = 70,
    autovacuum_vacuum_scale_factor = 0.01,
    autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_cost_delay = 0
);

-- No status in either: a claim changes it, and must not have to touch an index.
CREATE INDEX outbox_events_unordered_idx ON {schema}.outbox_events (next_retry_at, seq)
    WHERE ordering_key IS NULL;
-- Dead rows are not in it: they don't stand in the way of their successors.
CREATE INDEX outbox_events_ordered_idx ON {schema}.outbox_events (ordering_key, seq)
    WHERE ordering_key IS NOT NULL AND next_retry_at < 'infinity';
-- The dead ones, for those who count them.
CREATE INDEX outbox_events_dead_idx ON {schema}.outbox_events (event_id)
    WHERE next_retry_at = 'infinity';

-- What the broker has acknowledged, and where it said that it is: kept for as long as the broker
-- may lose it. Partitions are dropped whole; the default one catches what no partition is made for.
CREATE TABLE {schema}.outbox_published (
    event_id uuid NOT NULL,
    seq bigint NOT NULL,
    event_type text NOT NULL,
    aggregate_key text NOT NULL,
    ordering_key text,
    payload bytea NOT NULL,
    traceparent text,
    occurred_at timestamptz NOT NULL,
    attempt_count integer NOT NULL,
    created_at timestamptz NOT NULL,
    published_at timestamptz NOT NULL DEFAULT now(),
    stream text NOT NULL,
    stream_created_at timestamptz NOT NULL,
    stream_seq bigint NOT NULL
) PARTITION BY RANGE (published_at);

CREATE INDEX outbox_published_stream_idx ON {schema}.outbox_published
    (stream, stream_created_at, stream_seq);
-- Ids are ordered by time, and so are the rows: a block range index finds one for almost nothing.
CREATE INDEX outbox_published_event_id_idx ON {schema}.outbox_published
    USING brin (event_id uuid_minmax_multi_ops);

CREATE TABLE {schema}.outbox_published_default PARTITION OF {schema}.outbox_published DEFAULT;

CREATE INDEX outbox_published_default_published_at_idx
    ON {schema}.outbox_published_default (published_at);
