-- Why:   transactions over several databases end the same way in all of them, whoever dies meanwhile.
-- Phase: expand. Nothing reads these tables yet.
-- Lock:  none on existing tables.
-- Undo:  DROP TABLE {schema}.twopc_audit, {schema}.twopc_finished, {schema}.twopc_transactions,
--        {schema}.twopc_log; not while a participant has a transaction of this log prepared.

-- Which log this is. It is part of the name that a branch has in its participant, so that two logs in
-- schemas of one name never finish each other's.
CREATE TABLE {schema}.twopc_log (
    one boolean PRIMARY KEY DEFAULT TRUE CHECK (one),
    log_id uuid NOT NULL DEFAULT gen_random_uuid()
);

INSERT INTO {schema}.twopc_log DEFAULT VALUES;

-- Live rows only: from before the first participant prepares until the last one has confirmed.
CREATE TABLE {schema}.twopc_transactions (
    transaction_id uuid PRIMARY KEY,
    name text NOT NULL,
    -- NULL: not decided, and so to be aborted by whoever finds the coordinator gone. It is set once.
    decision text CHECK (decision IN ('COMMIT', 'ABORT')),
    decided_at timestamptz,
    -- By participant: its state, the name and number of its prepared transaction, tries, last error.
    branches jsonb NOT NULL,
    traceparent text,
    status text NOT NULL DEFAULT 'PENDING' CHECK (status IN ('PENDING', 'PROCESSING', 'FAILED')),
    attempt_count integer NOT NULL DEFAULT 0,
    next_retry_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    created_at timestamptz NOT NULL DEFAULT now(),
    locked_by text,
    locked_at timestamptz,
    lease_until timestamptz,
    claim_token uuid,
    last_error text
) WITH (
    -- Room for the decision and for claims on the same page, without touching an index.
    fillfactor = 40,
    autovacuum_vacuum_scale_factor = 0.01,
    autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_cost_delay = 0
);

-- No status in it: a claim changes it, and must not have to touch an index.
CREATE INDEX twopc_transactions_live_idx ON {schema}.twopc_transactions (next_retry_at);

-- What every participant has confirmed, or a person has written off.
CREATE TABLE {schema}.twopc_finished (
    transaction_id uuid PRIMARY KEY,
    name text NOT NULL,
    decision text NOT NULL CHECK (decision IN ('COMMIT', 'ABORT')),
    decided_at timestamptz,
    branches jsonb NOT NULL,
    attempt_count integer NOT NULL,
    last_error text,
    locked_by text,
    created_at timestamptz NOT NULL,
    finished_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- A participant that was written off may come back: only this row says how its branch must end.
    written_off boolean NOT NULL
);

CREATE INDEX twopc_finished_finished_at_idx ON {schema}.twopc_finished (finished_at);

-- Who did what about which transaction, and why. Outlives the transactions.
CREATE TABLE {schema}.twopc_audit (
    audit_id uuid PRIMARY KEY,
    transaction_id uuid NOT NULL,
    action text NOT NULL CHECK (action IN ('COMMIT', 'ABORT', 'WRITE_OFF')),
    participant text,
    actor text NOT NULL,
    reason text NOT NULL,
    acted_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

CREATE INDEX twopc_audit_transaction_id_idx ON {schema}.twopc_audit (transaction_id);
