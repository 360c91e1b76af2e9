-- Why:   events of a Nostr relay, what is known of those that are gone, and the log that follows them.
-- Phase: expand. Nothing reads these tables yet.
-- Lock:  none on existing tables.
-- Undo:  DROP SCHEMA cn_relay CASCADE;

-- Events that are kept for a while: regular ones. Partitions are days, dropped whole.
CREATE TABLE cn_relay.events (
    event_id bytea NOT NULL,
    ingested_at timestamptz NOT NULL,
    pubkey bytea NOT NULL,
    created_at bigint NOT NULL,
    kind integer NOT NULL,
    topics text[] NOT NULL,
    -- NIP-40: nobody sees it from then on.
    expires_at bigint,
    -- Deleted, or at its end; why is what the log says of it.
    hidden_at timestamptz,
    -- The event as it is given out.
    body text NOT NULL,
    PRIMARY KEY (event_id, ingested_at)
) PARTITION BY RANGE (ingested_at);

CREATE INDEX events_created_idx ON cn_relay.events (created_at DESC, event_id);
CREATE INDEX events_author_idx ON cn_relay.events (pubkey, created_at DESC, event_id);
CREATE INDEX events_kind_idx ON cn_relay.events (kind, created_at DESC, event_id);
CREATE INDEX events_expiring_idx ON cn_relay.events (expires_at)
    WHERE expires_at IS NOT NULL AND hidden_at IS NULL;
CREATE INDEX events_age_idx ON cn_relay.events (ingested_at) WHERE hidden_at IS NULL;

CREATE TABLE cn_relay.events_default PARTITION OF cn_relay.events DEFAULT;

-- Upkeep sweeps it row by row, and wants them in order.
CREATE INDEX events_default_age_idx ON cn_relay.events_default (ingested_at);

-- What can be looked for in them: tags with a name of one letter, by a hash of name and value, which is
-- of a fixed size whatever the value is.
CREATE TABLE cn_relay.event_tags (
    tag_key uuid NOT NULL,
    created_at bigint NOT NULL,
    event_id bytea NOT NULL,
    ingested_at timestamptz NOT NULL
) PARTITION BY RANGE (ingested_at);

CREATE INDEX event_tags_key_idx ON cn_relay.event_tags (tag_key, created_at DESC, event_id);

CREATE TABLE cn_relay.event_tags_default PARTITION OF cn_relay.event_tags DEFAULT;

CREATE INDEX event_tags_default_age_idx ON cn_relay.event_tags_default (ingested_at);

-- Events that no age removes: the current version of what is replaced, and deletions, which are kept as
-- long as the tombstones that they have set.
CREATE TABLE cn_relay.kept_events (
    event_id bytea PRIMARY KEY,
    -- A hash of what all its versions have in common; NULL for deletions.
    version_key uuid UNIQUE,
    -- The same in words: `<kind>:<pubkey>:<d>`.
    effective_key text,
    ingested_at timestamptz NOT NULL,
    pubkey bytea NOT NULL,
    created_at bigint NOT NULL,
    kind integer NOT NULL,
    topics text[] NOT NULL,
    expires_at bigint,
    hidden_at timestamptz,
    body text NOT NULL
);

CREATE INDEX kept_events_created_idx ON cn_relay.kept_events (created_at DESC, event_id);
CREATE INDEX kept_events_author_idx ON cn_relay.kept_events (pubkey, created_at DESC, event_id);
CREATE INDEX kept_events_kind_idx ON cn_relay.kept_events (kind, created_at DESC, event_id);
CREATE INDEX kept_events_expiring_idx ON cn_relay.kept_events (expires_at)
    WHERE expires_at IS NOT NULL AND hidden_at IS NULL;
CREATE INDEX kept_events_hidden_idx ON cn_relay.kept_events (hidden_at)
    WHERE hidden_at IS NOT NULL;
CREATE INDEX kept_events_deletions_idx ON cn_relay.kept_events (ingested_at)
    WHERE version_key IS NULL;

CREATE TABLE cn_relay.kept_tags (
    tag_key uuid NOT NULL,
    created_at bigint NOT NULL,
    event_id bytea NOT NULL REFERENCES cn_relay.kept_events ON DELETE CASCADE
);

CREATE INDEX kept_tags_key_idx ON cn_relay.kept_tags (tag_key, created_at DESC, event_id);
CREATE INDEX kept_tags_event_idx ON cn_relay.kept_tags (event_id);

-- Every event that was ever accepted, for longer than it is kept. That an id is in here once is held
-- by a lock on the id: a unique key can't span partitions.
CREATE TABLE cn_relay.event_dedupe (
    event_id bytea NOT NULL,
    ingested_at timestamptz NOT NULL,
    PRIMARY KEY (event_id, ingested_at)
) PARTITION BY RANGE (ingested_at);

CREATE TABLE cn_relay.event_dedupe_default PARTITION OF cn_relay.event_dedupe DEFAULT;

CREATE INDEX event_dedupe_default_age_idx ON cn_relay.event_dedupe_default (ingested_at);

-- What authors have deleted: also what arrives after its deletion stays away.
CREATE TABLE cn_relay.tombstones (
    -- The hash of an event's id, or of what versions have in common.
    target uuid NOT NULL,
    -- Only the author of an event can delete it.
    author bytea NOT NULL,
    -- Versions up to this time are deleted; NULL for one event, whenever it is from.
    until bigint,
    deletion_id bytea NOT NULL,
    recorded_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (target, author)
);

CREATE INDEX tombstones_recorded_at_idx ON cn_relay.tombstones (recorded_at);

-- The log: what became visible, and what no longer is. One row per event and topic.
CREATE TABLE cn_relay.events_outbox_pending (
    append_tx bigint NOT NULL DEFAULT pg_current_xact_id()::text::bigint,
    append_id bigint GENERATED ALWAYS AS IDENTITY,
    appended_at timestamptz NOT NULL DEFAULT now(),
    op text NOT NULL CHECK (op IN ('upsert', 'delete')),
    event_id text NOT NULL,
    topic_id text NOT NULL,
    kind integer NOT NULL,
    created_at integer NOT NULL,
    ingested_at timestamptz NOT NULL,
    effective_key text,
    reason text,
    logged_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (append_tx, append_id)
) WITH (
    autovacuum_vacuum_scale_factor = 0.01,
    autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_cost_delay = 0
);

CREATE TABLE cn_relay.events_outbox (
    seq bigint NOT NULL,
    op text NOT NULL,
    event_id text NOT NULL,
    topic_id text NOT NULL,
    kind integer NOT NULL,
    -- As the event says; an event from after 2038 is refused until then.
    created_at integer NOT NULL,
    -- When the event was accepted.
    ingested_at timestamptz NOT NULL,
    effective_key text,
    reason text,
    -- When this row was written: its age, which is not that of the event.
    logged_at timestamptz NOT NULL
) PARTITION BY RANGE (logged_at);

CREATE INDEX events_outbox_seq_idx ON cn_relay.events_outbox (seq);

CREATE TABLE cn_relay.events_outbox_default PARTITION OF cn_relay.events_outbox DEFAULT;

CREATE INDEX events_outbox_default_logged_at_idx ON cn_relay.events_outbox_default (logged_at);

-- What operators have said of topics; those that are not here are enabled.
CREATE TABLE cn_relay.topics (
    topic_id text PRIMARY KEY,
    is_enabled boolean NOT NULL,
    actor text NOT NULL,
    reason text NOT NULL,
    changed_at timestamptz NOT NULL DEFAULT now()
);

-- Who may not publish, or not even come.
CREATE TABLE cn_relay.bans (
    kind text NOT NULL CHECK (kind IN ('key', 'address')),
    subject text NOT NULL,
    -- NULL: for good.
    until timestamptz,
    actor text NOT NULL,
    reason text NOT NULL,
    changed_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (kind, subject)
);

-- Who has changed which of them, and why.
CREATE TABLE cn_relay.rules_audit (
    audit_id uuid PRIMARY KEY,
    action text NOT NULL CHECK (action IN ('ENABLE', 'DISABLE', 'BAN', 'UNBAN')),
    subject text NOT NULL,
    actor text NOT NULL,
    reason text NOT NULL,
    changed_at timestamptz NOT NULL DEFAULT now()
);
