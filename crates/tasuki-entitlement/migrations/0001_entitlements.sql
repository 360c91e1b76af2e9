-- Why:   who owns what, and how it came to be.
-- Phase: expand. Nothing reads these tables yet.
-- Lock:  none on existing tables.
-- Undo:  DROP TABLE entitlement.entitlement_audit, entitlement.entitlements;

CREATE TABLE entitlement.entitlements (
    user_id text NOT NULL,
    stock_keeping_unit text NOT NULL,
    status text NOT NULL CHECK (status IN ('ACTIVE', 'REVOKED')),
    -- 1 for the first change, and one more for each further one.
    version bigint NOT NULL CHECK (version >= 1),
    -- How many are left, for what is consumed; NULL for what is owned or not.
    quantity bigint CHECK (quantity >= 0),
    -- When it runs out. NULL once it is revoked: there is nothing left to run out.
    expires_at timestamptz CHECK (expires_at IS NULL OR status = 'ACTIVE'),
    granted_at timestamptz,
    revoked_at timestamptz,
    source text NOT NULL,
    source_id text NOT NULL,
    updated_at timestamptz NOT NULL,
    PRIMARY KEY (user_id, stock_keeping_unit)
) WITH (
    -- Room for the next version of a row on the same page: most changes touch no index.
    fillfactor = 85
);

-- No status in it, or every change would have to touch it.
CREATE INDEX entitlements_expires_at_idx ON entitlement.entitlements (expires_at)
    WHERE expires_at IS NOT NULL;

-- Every accepted change. The id is that of the event that tells of it. Partitions are months,
-- dropped whole; the default one catches what no partition is made for.
CREATE TABLE entitlement.entitlement_audit (
    audit_id uuid NOT NULL,
    occurred_at timestamptz NOT NULL,
    user_id text NOT NULL,
    stock_keeping_unit text NOT NULL,
    version bigint NOT NULL,
    action text NOT NULL CHECK (action IN ('GRANT', 'REVOKE', 'CONSUME', 'EXPIRE')),
    source text NOT NULL,
    source_id text NOT NULL,
    -- Who asked, and under which idempotency key; NULL for what happened by itself.
    caller text NOT NULL,
    request_id text,
    detail jsonb,
    -- A partition key must be in it. It is also how the history of one entitlement is read.
    PRIMARY KEY (user_id, stock_keeping_unit, version, occurred_at)
) PARTITION BY RANGE (occurred_at);

-- Ids and times are ordered as the rows are: block ranges find one for almost nothing.
CREATE INDEX entitlement_audit_audit_id_idx ON entitlement.entitlement_audit
    USING brin (audit_id uuid_minmax_multi_ops);
CREATE INDEX entitlement_audit_occurred_at_idx ON entitlement.entitlement_audit
    USING brin (occurred_at);

CREATE TABLE entitlement.entitlement_audit_default
    PARTITION OF entitlement.entitlement_audit DEFAULT;

-- Upkeep sweeps it row by row, and wants them in order.
CREATE INDEX entitlement_audit_default_sweep_idx
    ON entitlement.entitlement_audit_default (occurred_at);
