-- Why:   API keys and operator tokens that a service accepts; only a hash of each secret is kept.
-- Phase: expand. A new table; nothing else changes.
-- Lock:  none on existing tables.
-- Undo:  DROP TABLE {schema}.credentials;
CREATE TABLE {schema}.credentials (
    credential_id uuid        NOT NULL,
    kind          text        NOT NULL,
    name          text        NOT NULL,
    scopes        text[]      NOT NULL,
    secret_hash   bytea       NOT NULL,
    created_at    timestamptz NOT NULL DEFAULT now(),
    expires_at    timestamptz,
    revoked_at    timestamptz,
    CONSTRAINT credentials_pkey PRIMARY KEY (credential_id),
    CONSTRAINT credentials_kind_check CHECK (kind IN ('api-key', 'operator')),
    CONSTRAINT credentials_name_check CHECK (char_length(name) BETWEEN 1 AND 100),
    -- An API key can do what its scopes say; an operator has none, because nothing is closed to one.
    CONSTRAINT credentials_scopes_check CHECK ((kind = 'api-key') = (cardinality(scopes) > 0)),
    CONSTRAINT credentials_secret_hash_check CHECK (octet_length(secret_hash) = 32)
);
