-- Why:   what will not be retried by itself waits here for a person.
-- Phase: expand. Nothing reads these tables yet.
-- Lock:  none on existing tables.
-- Undo:  DROP TABLE {schema}.dead_letter_audit, {schema}.dead_letters;
CREATE TABLE {schema}.dead_letters (
    letter_id uuid PRIMARY KEY,
    -- The table that the row died in, and its key there.
    source text NOT NULL,
    source_id uuid NOT NULL,
    -- The queue, or where the row was to go.
    queue text NOT NULL,
    -- The kind of job, or the type of event.
    kind text NOT NULL,
    payload bytea NOT NULL,
    error text NOT NULL,
    attempt_count integer NOT NULL,
    traceparent text,
    failed_at timestamptz NOT NULL DEFAULT now(),
    redriven_at timestamptz,
    discarded_at timestamptz,
    -- The transaction of the death. Times don't become visible in their order; with this, who
    -- compares two snapshots finds every letter that was committed in between, and no other.
    died_in xid8 NOT NULL DEFAULT pg_current_xact_id()
);

-- A row is dead once at a time; it may die again after it was redriven.
CREATE UNIQUE INDEX dead_letters_open_key ON {schema}.dead_letters (source, source_id)
    WHERE redriven_at IS NULL AND discarded_at IS NULL;
-- Pages of the list: what is open over all sources, or of one; what is closed; everything.
CREATE INDEX dead_letters_open_idx ON {schema}.dead_letters (failed_at, letter_id)
    WHERE redriven_at IS NULL AND discarded_at IS NULL;
CREATE INDEX dead_letters_open_source_idx ON {schema}.dead_letters (source, failed_at, letter_id)
    WHERE redriven_at IS NULL AND discarded_at IS NULL;
CREATE INDEX dead_letters_closed_idx ON {schema}.dead_letters (failed_at, letter_id)
    WHERE redriven_at IS NOT NULL OR discarded_at IS NOT NULL;
CREATE INDEX dead_letters_failed_at_idx ON {schema}.dead_letters (failed_at, letter_id);
CREATE INDEX dead_letters_died_in_idx ON {schema}.dead_letters (died_in);

-- Who did what to which letter, and why. Outlives the letters.
CREATE TABLE {schema}.dead_letter_audit (
    audit_id uuid PRIMARY KEY,
    letter_id uuid NOT NULL,
    source text NOT NULL,
    source_id uuid NOT NULL,
    action text NOT NULL CHECK (action IN ('REDRIVE', 'DISCARD')),
    actor text NOT NULL,
    reason text,
    acted_at timestamptz NOT NULL DEFAULT now()
);

-- By row, not by letter: the whole story of a row that died more than once.
CREATE INDEX dead_letter_audit_source_id_idx ON {schema}.dead_letter_audit (source_id);
