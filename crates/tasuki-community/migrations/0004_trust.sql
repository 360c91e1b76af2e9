-- Why:   who is reported by whom, who talks with whom, and what the node says of both.
-- Phase: expand. Nothing reads these tables yet.
-- Lock:  none on existing tables.
-- Undo:  DROP TABLE cn_relay.trust_assertions, cn_relay.trust_contacts, cn_relay.trust_reports;

-- Every report that was made: a history, which outlives the reports themselves, and rebuilds.
CREATE TABLE cn_relay.trust_reports (
    -- A hash of the event's id, or of what the versions of an addressable report have in common.
    report_key uuid PRIMARY KEY,
    event_id bytea NOT NULL,
    -- A key in hexadecimal, or what somebody is called who reports through the node.
    reporter text NOT NULL,
    -- `event:<id>`, `pubkey:<key>`, `address:<kind:pubkey:d>` or `identifier:<text>`.
    target text NOT NULL,
    -- The key of whoever made the target, in hexadecimal; NULL while nobody knows.
    author text,
    reason text NOT NULL,
    -- As the event says, in seconds.
    reported_at bigint NOT NULL,
    CONSTRAINT trust_reports_event_id_key UNIQUE (event_id)
);

CREATE INDEX trust_reports_target_idx ON cn_relay.trust_reports (target, reporter, reported_at);
CREATE INDEX trust_reports_author_idx ON cn_relay.trust_reports (author, reporter, reported_at);
CREATE INDEX trust_reports_unknown_idx ON cn_relay.trust_reports (target) WHERE author IS NULL;

-- Who has said something to whom, as far as it can be seen: a row for each key and each event that an
-- event names. A rebuild fills another table beside it, which then takes its place and its name.
CREATE TABLE cn_relay.trust_contacts (
    event_id bytea NOT NULL,
    -- A key, or the id of the event that is answered.
    reference bytea NOT NULL,
    from_key bytea NOT NULL,
    -- NULL while nobody knows who made the event that is answered.
    to_key bytea,
    said_at bigint NOT NULL,
    PRIMARY KEY (event_id, reference)
);

CREATE INDEX trust_contacts_pair_idx ON cn_relay.trust_contacts (from_key, to_key, said_at);
CREATE INDEX trust_contacts_unknown_idx ON cn_relay.trust_contacts (reference) WHERE to_key IS NULL;

-- Of whom something is to be said, when next, and what was said last.
CREATE TABLE cn_relay.trust_assertions (
    subject text NOT NULL,
    algorithm text NOT NULL CHECK (algorithm IN ('risk', 'density')),
    -- When it is to be looked at again: something has changed, fades, or ends.
    due_at timestamptz NOT NULL,
    -- NULL until something is said.
    value smallint,
    counted integer,
    event_id bytea,
    published_at timestamptz,
    expires_at timestamptz,
    PRIMARY KEY (subject, algorithm)
) WITH (
    autovacuum_vacuum_scale_factor = 0.01,
    autovacuum_vacuum_threshold = 1000
);

CREATE INDEX trust_assertions_due_idx ON cn_relay.trust_assertions (due_at);
