-- Why:   work that was promised in a transaction is done after it commits, and only then.
-- Phase: expand. Nothing reads these tables yet.
-- Lock:  none on existing tables.
-- Undo:  DROP TABLE {schema}.job_schedules, {schema}.job_uniques, {schema}.jobs_done, {schema}.jobs;

-- Live rows only: waiting, claimed or dead. A finished row leaves, or moves to jobs_done where its
-- queue keeps the finished ones.
CREATE TABLE {schema}.jobs (
    job_id uuid PRIMARY KEY,
    queue text NOT NULL,
    -- 0 is served first.
    priority smallint NOT NULL DEFAULT 2 CHECK (priority BETWEEN 0 AND 3),
    kind text NOT NULL,
    payload jsonb NOT NULL,
    -- Set: job_uniques has a row that says which twin was turned away.
    unique_id text,
    traceparent text,
    status text NOT NULL DEFAULT 'PENDING' CHECK (status IN ('PENDING', 'PROCESSING', 'FAILED')),
    attempt_count integer NOT NULL DEFAULT 0,
    -- Claims that expired since an attempt last ended: their processes may have died of the job.
    lost_count integer NOT NULL DEFAULT 0,
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

-- No status in it: a claim changes it, and must not have to touch an index.
CREATE INDEX jobs_live_idx ON {schema}.jobs (queue, priority, next_retry_at);

CREATE TABLE {schema}.jobs_done (
    job_id uuid NOT NULL,
    queue text NOT NULL,
    kind text NOT NULL,
    payload jsonb NOT NULL,
    traceparent text,
    attempt_count integer NOT NULL,
    created_at timestamptz NOT NULL,
    locked_by text,
    started_at timestamptz,
    finished_at timestamptz NOT NULL DEFAULT now()
) PARTITION BY RANGE (finished_at);

-- Ids are ordered by time, and so are the rows: a block range index finds one for almost nothing.
CREATE INDEX jobs_done_job_id_idx ON {schema}.jobs_done USING brin (job_id uuid_minmax_multi_ops);

CREATE TABLE {schema}.jobs_done_default PARTITION OF {schema}.jobs_done DEFAULT;

CREATE INDEX jobs_done_default_finished_at_idx ON {schema}.jobs_done_default (finished_at);

-- One row per unique job that is waiting or running; it goes with the job, or is taken over after
-- its time.
CREATE TABLE {schema}.job_uniques (
    kind text NOT NULL,
    unique_id text NOT NULL,
    job_id uuid NOT NULL,
    unique_until timestamptz NOT NULL,
    PRIMARY KEY (kind, unique_id)
);

CREATE INDEX job_uniques_unique_until_idx ON {schema}.job_uniques (unique_until);

-- What repeats: when it is due next. The process that moves next_at on enqueues the job, in the
-- same transaction.
CREATE TABLE {schema}.job_schedules (
    name text PRIMARY KEY,
    expression text NOT NULL,
    next_at timestamptz NOT NULL,
    last_at timestamptz,
    updated_at timestamptz NOT NULL DEFAULT now()
);
