-- Why:   the status page lists every process of a service and how its workers are.
-- Phase: expand.
-- Lock:  none on existing tables.
-- Undo:  DROP TABLE {schema}.instances;
--
-- Unlogged: a report is worth seconds. After a crash of the database the table is empty, and
-- full again with the next heartbeat.
CREATE UNLOGGED TABLE {schema}.instances (
    instance_id uuid PRIMARY KEY,
    process     text        NOT NULL,
    version     text        NOT NULL,
    started_at  timestamptz NOT NULL,
    seen_at     timestamptz NOT NULL,
    workers     jsonb       NOT NULL
);
