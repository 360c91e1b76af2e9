-- Why:   a request that is sent twice is answered twice and done once.
-- Phase: expand. Nothing reads this table yet.
-- Lock:  none on existing tables.
-- Undo:  DROP TABLE {schema}.idempotency_keys;
CREATE TABLE {schema}.idempotency_keys (
    caller text NOT NULL,
    idem_key text NOT NULL,
    request_hash bytea NOT NULL,
    status text NOT NULL CHECK (status IN ('completed', 'failed')),
    response_code smallint NOT NULL,
    response_headers jsonb,
    -- Bytes: an answer is repeated as it was, to the last space.
    response_body bytea NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    expires_at timestamptz NOT NULL,
    PRIMARY KEY (caller, idem_key)
);

CREATE INDEX idempotency_keys_expires_at_idx ON {schema}.idempotency_keys (expires_at);
