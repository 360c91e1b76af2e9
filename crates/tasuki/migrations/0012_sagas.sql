-- Why:   work of many steps ends whole or is undone, whichever process dies in between.
-- Phase: expand. Nothing reads these tables yet.
-- Lock:  none on existing tables.
-- Undo:  DROP TABLE {schema}.lease_owners, {schema}.saga_signals, {schema}.sagas_done, {schema}.sagas;

-- Live sagas only: running, waiting, or in need of a person. One that has ended moves to sagas_done.
-- A saga's whole story is in its row, so that a step forward is one update of one row.
CREATE TABLE {schema}.sagas (
    saga_id uuid PRIMARY KEY,
    definition text NOT NULL,
    version integer NOT NULL,
    -- What people see is the step while the state is STARTED and there is one.
    state text NOT NULL CHECK (state IN ('STARTED', 'COMPENSATING', 'NEEDS_ATTENTION')),
    step text,
    -- Input, steps with their inputs, outputs and errors, failure, notes of operators. Not jsonb:
    -- it is written for every step and read by few.
    story json NOT NULL,
    -- How often the story was written: a fence for each single write.
    moves integer NOT NULL DEFAULT 0,
    -- Signals that would end its wait.
    awaits text [],
    deadline_at timestamptz,
    traceparent text,
    status text NOT NULL DEFAULT 'PENDING' CHECK (status IN ('PENDING', 'PROCESSING', 'FAILED')),
    -- How often it was given back since it last moved, because something went wrong.
    attempt_count integer NOT NULL DEFAULT 0,
    -- Claims that expired since it last moved: their processes may have died of it.
    lost_count integer NOT NULL DEFAULT 0,
    -- 'infinity' for one that needs a person: claims never come past it. Far ahead for one that was
    -- born in the hands of a process.
    next_retry_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    locked_by text,
    locked_at timestamptz,
    lease_until timestamptz,
    claim_token uuid,
    last_error text
) WITH (
    -- Room for the next version of a row, which is larger, on the same page: no index is touched.
    fillfactor = 40,
    autovacuum_vacuum_scale_factor = 0.01,
    autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_cost_delay = 0
);

-- No column in either that a step changes.
CREATE INDEX sagas_next_retry_at_idx ON {schema}.sagas (next_retry_at);
CREATE INDEX sagas_state_idx ON {schema}.sagas (state, saga_id);

-- What has ended. Partitions are dropped whole; the default one catches what no partition is made for.
CREATE TABLE {schema}.sagas_done (
    saga_id uuid NOT NULL,
    definition text NOT NULL,
    version integer NOT NULL,
    state text NOT NULL CHECK (state IN ('COMPLETED', 'COMPENSATED')),
    story json NOT NULL,
    moves integer NOT NULL,
    traceparent text,
    created_at timestamptz NOT NULL,
    finished_at timestamptz NOT NULL DEFAULT now(),
    locked_by text
) PARTITION BY RANGE (finished_at);

CREATE INDEX sagas_done_saga_id_idx ON {schema}.sagas_done (saga_id);
-- The few among many that somebody asks for.
CREATE INDEX sagas_done_compensated_idx ON {schema}.sagas_done (saga_id)
WHERE state = 'COMPENSATED';

CREATE TABLE {schema}.sagas_done_default PARTITION OF {schema}.sagas_done DEFAULT;

CREATE INDEX sagas_done_default_finished_at_idx ON {schema}.sagas_done_default (finished_at);

-- What was said to a saga and waits to be heard: a table of its own, so that whoever speaks in a long
-- transaction locks nothing that the saga needs. Goes when it is heard, or with its saga.
CREATE TABLE {schema}.saga_signals (
    signal_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    saga_id uuid NOT NULL,
    name text NOT NULL,
    payload json NOT NULL,
    sent_at timestamptz NOT NULL DEFAULT now()
);

-- Of several that say the same the first counts.
CREATE UNIQUE INDEX saga_signals_saga_id_name_key ON {schema}.saga_signals (saga_id, name);
CREATE INDEX saga_signals_sent_at_idx ON {schema}.saga_signals (sent_at);

-- Processes that hold leases and, for as long as they live, the advisory lock of that number in a
-- session: who has died is known before its leases expire.
CREATE TABLE {schema}.lease_owners (
    owner text PRIMARY KEY,
    lock_key bigint NOT NULL,
    since timestamptz NOT NULL DEFAULT now()
);
