-- Why:   two indexes on the same columns would be written for every grant. And the room that was left
--        on each page was for changes that touch no index: with this one, all do.
-- Phase: contract. The previous release finds its rows by either index.
-- Lock:  ACCESS EXCLUSIVE, for as long as it takes to change the catalogue: the index exists.
-- Undo:  CREATE UNIQUE INDEX CONCURRENTLY entitlements_plain_idx
--            ON entitlement.entitlements (user_id, stock_keeping_unit);
--        ALTER TABLE entitlement.entitlements
--            DROP CONSTRAINT entitlements_pkey,
--            ADD CONSTRAINT entitlements_pkey PRIMARY KEY USING INDEX entitlements_plain_idx,
--            SET (fillfactor = 85);
ALTER TABLE entitlement.entitlements
    DROP CONSTRAINT entitlements_pkey,
    ADD CONSTRAINT entitlements_pkey PRIMARY KEY USING INDEX entitlements_read_idx,
    RESET (fillfactor);
