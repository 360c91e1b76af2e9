-- Why:   content is labelled, by rules and by people, and people report it.
-- Phase: expand. Nothing reads these tables yet.
-- Lock:  none on existing tables.
-- Undo:  DROP TABLE cn_relay.moderation_rules, cn_relay.labels, cn_relay.reports, cn_relay.members,
--        cn_relay.moderation_audit;

-- What is labelled by itself. A version never changes: a change closes one and opens another, and each
-- is for the events that were accepted while it was open.
CREATE TABLE cn_relay.moderation_rules (
    rule_id uuid NOT NULL,
    version integer NOT NULL,
    -- Conditions and label, as JSON.
    definition text NOT NULL,
    active_from timestamptz NOT NULL,
    -- NULL: open.
    active_until timestamptz,
    PRIMARY KEY (rule_id, version)
);

CREATE UNIQUE INDEX moderation_rules_open_idx ON cn_relay.moderation_rules (rule_id)
    WHERE active_until IS NULL;

-- Every label that was ever published: it lapses or is withdrawn, and stays here.
CREATE TABLE cn_relay.labels (
    label_id uuid NOT NULL,
    -- `event:<id>`, `pubkey:<key>`, `address:<kind:pubkey:d>`, `identifier:<NIP-73>`
    target text NOT NULL,
    label text NOT NULL,
    origin text NOT NULL CHECK (origin IN ('rule', 'operator')),
    -- A person may label again what has lapsed; rules say a thing once.
    round integer NOT NULL,
    rule_id uuid,
    rule_version integer,
    -- Who is labelled, or made what is.
    author bytea,
    confidence double precision NOT NULL CHECK (confidence BETWEEN 0 AND 1),
    issued_at timestamptz NOT NULL,
    expires_at timestamptz NOT NULL,
    policy_url text,
    policy_ref text,
    -- Where it was published.
    topics text[] NOT NULL,
    node_event_id bytea NOT NULL,
    -- Whether it was there before its target: then rules have that much less room.
    is_before_target boolean NOT NULL,
    actor text,
    reason text,
    withdrawn_at timestamptz,
    PRIMARY KEY (label_id),
    CONSTRAINT labels_target_label_origin_round_key UNIQUE (target, label, origin, round)
);

CREATE INDEX labels_issued_idx ON cn_relay.labels (issued_at DESC, label_id DESC);
CREATE INDEX labels_target_idx ON cn_relay.labels (target, issued_at DESC, label_id DESC);
CREATE INDEX labels_author_idx ON cn_relay.labels (author, issued_at DESC, label_id DESC);
CREATE INDEX labels_label_idx ON cn_relay.labels (label, issued_at DESC, label_id DESC);

-- Each report once, whatever has become of its event.
CREATE TABLE cn_relay.reports (
    event_id bytea PRIMARY KEY,
    -- A public key, or who reported by HTTP.
    reporter text NOT NULL,
    target text NOT NULL,
    reason text NOT NULL,
    ingested_at timestamptz NOT NULL
);

CREATE INDEX reports_target_idx ON cn_relay.reports (target, ingested_at);
CREATE INDEX reports_ingested_idx ON cn_relay.reports (ingested_at);

-- Under which id the platform knows the owner of a key.
CREATE TABLE cn_relay.members (
    pubkey bytea PRIMARY KEY,
    user_id text NOT NULL,
    actor text NOT NULL,
    changed_at timestamptz NOT NULL DEFAULT now()
);

-- Who has changed what, and why.
CREATE TABLE cn_relay.moderation_audit (
    audit_id uuid PRIMARY KEY,
    action text NOT NULL CHECK (action IN (
        'RULE_ADDED', 'RULE_CHANGED', 'RULE_CLOSED', 'LABEL_ADDED', 'LABEL_WITHDRAWN', 'MEMBER_LINKED',
        'MEMBER_UNLINKED'
    )),
    subject text NOT NULL,
    -- What it is now, as JSON.
    detail text NOT NULL,
    actor text NOT NULL,
    reason text NOT NULL,
    changed_at timestamptz NOT NULL DEFAULT now()
);

CREATE INDEX moderation_audit_changed_idx
    ON cn_relay.moderation_audit (changed_at DESC, audit_id DESC);
