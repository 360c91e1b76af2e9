-- Why:   people see the steps that a saga has still before it, and send it back to one, in a process
--        that has none of its code.
-- Phase: expand. Engines of the release before don't write it, and no saga runs by it.
-- Lock:  none on existing tables.
-- Undo:  DROP TABLE {schema}.saga_definitions;

-- What engines run, as data. One row for each version, for ever: histories name them.
CREATE TABLE {schema}.saga_definitions (
    definition text NOT NULL,
    version integer NOT NULL,
    -- Name, kind, role and stage of each step, in their order.
    steps json NOT NULL,
    -- The same in short, as stories have it.
    fingerprint text NOT NULL,
    -- How long a saga may take until its pivot.
    timeout_seconds double precision,
    -- When an engine that runs it was last started.
    started_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (definition, version)
);
