-- Why:   a participant of a saga must know of each step whether it was done, undone, or undone before
--        it was ever done; and others must see what a saga holds.
-- Phase: expand. Nothing reads these tables yet.
-- Lock:  none on existing tables.
-- Undo:  DROP TABLE {schema}.semantic_locks, {schema}.barriers;

-- One row per step, whatever becomes of it: the key is what an action and its compensation meet at.
-- Ids of sagas are UUIDv7, so ranges of ids are ranges of time: old partitions are dropped whole.
CREATE TABLE {schema}.barriers (
    saga_id uuid NOT NULL,
    step text NOT NULL,
    -- EMPTY: compensated, and its action was never here. It never may be.
    state text NOT NULL CHECK (state IN ('ACTED', 'COMPENSATED', 'EMPTY')),
    changed_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (saga_id, step)
) PARTITION BY RANGE (saga_id);

CREATE TABLE {schema}.barriers_default PARTITION OF {schema}.barriers DEFAULT;

CREATE INDEX barriers_default_changed_at_idx ON {schema}.barriers_default (changed_at);

-- What sagas hold right now. Nothing removes a row by its age: only its owner, or a person.
CREATE TABLE {schema}.semantic_locks (
    resource text PRIMARY KEY,
    owner_id uuid NOT NULL,
    taken_at timestamptz NOT NULL DEFAULT now()
) WITH (
    autovacuum_vacuum_scale_factor = 0.01,
    autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_cost_delay = 0
);

CREATE INDEX semantic_locks_owner_id_idx ON {schema}.semantic_locks (owner_id);
CREATE INDEX semantic_locks_taken_at_idx ON {schema}.semantic_locks (taken_at);
