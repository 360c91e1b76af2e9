-- Why:   readers follow what was committed by one number without gaps, and miss nothing.
-- Phase: expand. Nothing reads these tables yet.
-- Lock:  none on existing tables.
-- Undo:  DROP TABLE {schema}.seqlog_audit, {schema}.seqlog_set_aside, {schema}.consumer_offsets,
--        {schema}.seqlog_entries, {schema}.seqlog_pending, {schema}.seqlogs;

-- One row for each log: how far it is numbered, and who numbers it.
CREATE TABLE {schema}.seqlogs (
    log text PRIMARY KEY,
    -- The highest number given.
    last_seq bigint NOT NULL DEFAULT 0,
    -- The highest number whose row retention has removed: everything above it is there.
    floor_seq bigint NOT NULL DEFAULT 0,
    numbered_at timestamptz,
    -- The sequencer that is active. Another one has another epoch, and this one changes nothing then.
    owner text,
    holder uuid,
    epoch bigint NOT NULL DEFAULT 0,
    lease_until timestamptz NOT NULL DEFAULT '-infinity'
) WITH (
    fillfactor = 10,
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 1000
);

-- What is appended and has no number yet. A sequencer moves committed rows from here into the log, so
-- that the log itself is only ever added to.
CREATE TABLE {schema}.seqlog_pending (
    -- The transaction: a sequencer looks only at those that had not ended when it last looked.
    append_tx bigint NOT NULL DEFAULT pg_current_xact_id()::text::bigint,
    append_id bigint GENERATED ALWAYS AS IDENTITY,
    appended_at timestamptz NOT NULL DEFAULT now(),
    kind text NOT NULL,
    key text,
    payload bytea NOT NULL,
    traceparent text,
    PRIMARY KEY (append_tx, append_id)
) WITH (
    autovacuum_vacuum_scale_factor = 0.01,
    autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_cost_delay = 0
);

-- The log. Partitions are dropped whole; the default one catches what no partition is made for.
CREATE TABLE {schema}.seqlog_entries (
    seq bigint NOT NULL,
    kind text NOT NULL,
    key text,
    payload bytea NOT NULL,
    traceparent text,
    appended_at timestamptz NOT NULL,
    numbered_at timestamptz NOT NULL DEFAULT now()
) PARTITION BY RANGE (numbered_at);

CREATE INDEX seqlog_entries_seq_idx ON {schema}.seqlog_entries (seq);

CREATE TABLE {schema}.seqlog_entries_default PARTITION OF {schema}.seqlog_entries DEFAULT;

CREATE INDEX seqlog_entries_default_numbered_at_idx
    ON {schema}.seqlog_entries_default (numbered_at);

-- How far each consumer has come, and which instance of it is active.
CREATE TABLE {schema}.consumer_offsets (
    consumer text PRIMARY KEY,
    log text NOT NULL,
    last_seq bigint NOT NULL DEFAULT 0,
    state text NOT NULL DEFAULT 'FOLLOWING'
        CHECK (state IN ('FOLLOWING', 'TOO_FAR_BEHIND', 'REBUILDING')),
    -- When the offset moved last.
    updated_at timestamptz NOT NULL DEFAULT now(),
    created_at timestamptz NOT NULL DEFAULT now(),
    rebuilt_at timestamptz,
    owner text,
    holder uuid,
    -- From the clock: one of this name that was forgotten has had lower ones.
    epoch bigint NOT NULL DEFAULT (extract(EPOCH FROM clock_timestamp()) * 1000)::bigint,
    lease_until timestamptz NOT NULL DEFAULT '-infinity',
    -- Instances in a row that went without a word before the offset moved: they may have died of a row.
    unclean integer NOT NULL DEFAULT 0,
    -- Up to here rows are handled one by one: one of them fails.
    careful_until bigint NOT NULL DEFAULT 0,
    -- The row that fails, or was begun alone: how often, what went wrong, when it is tried again.
    attempt_seq bigint,
    attempts integer NOT NULL DEFAULT 0,
    retry_at timestamptz,
    last_error text
) WITH (
    fillfactor = 30,
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 1000
);

-- Rows that a consumer could not handle. Each is FAILED and has a dead letter, or was redriven.
CREATE TABLE {schema}.seqlog_set_aside (
    set_aside_id uuid PRIMARY KEY,
    consumer text NOT NULL,
    log text NOT NULL,
    seq bigint NOT NULL,
    -- The row as it was: retention may remove it from the log. Not jsonb: what comes back is what was.
    entry json NOT NULL,
    status text NOT NULL DEFAULT 'FAILED' CHECK (status IN ('FAILED', 'PENDING')),
    attempt_count integer NOT NULL,
    next_retry_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    last_error text NOT NULL,
    set_aside_at timestamptz NOT NULL DEFAULT now(),
    UNIQUE (consumer, seq)
);

CREATE INDEX seqlog_set_aside_redriven_idx ON {schema}.seqlog_set_aside (consumer, seq)
    WHERE status = 'PENDING';

-- Who moved which consumer, and why.
CREATE TABLE {schema}.seqlog_audit (
    audit_id uuid PRIMARY KEY,
    consumer text NOT NULL,
    action text NOT NULL CHECK (action IN ('REPLAY', 'REBUILD', 'FORGET')),
    from_seq bigint NOT NULL,
    to_seq bigint,
    actor text NOT NULL,
    reason text NOT NULL,
    acted_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

CREATE INDEX seqlog_audit_consumer_idx ON {schema}.seqlog_audit (consumer, acted_at);
