-- Why:   to compare money with goods, everything that ever was had to be read, each time. How far it was
--        compared is remembered, as are the sums of what moved.
-- Phase: expand. The previous release runs unchanged against this schema.
-- Lock:  SHARE ROW EXCLUSIVE on stock, for a moment: it is referred to.
-- Undo:  DROP TABLE shop.mismatches, shop.reconciliation, shop.stock_sums;

-- What the moves of a SKU come to that are older than up_to: who compares does not read all of
-- them again.
CREATE TABLE shop.stock_sums (
    stock_keeping_unit text PRIMARY KEY REFERENCES shop.stock (stock_keeping_unit),
    up_to timestamptz NOT NULL,
    quantity bigint NOT NULL
);

-- How far money and goods have been compared. Whoever holds the row compares.
CREATE TABLE shop.reconciliation (
    one boolean PRIMARY KEY DEFAULT TRUE CHECK (one),
    -- What ended before is compared, and is read again only if it did not match. NULL: nothing is.
    up_to timestamptz,
    compared_at timestamptz
);

INSERT INTO shop.reconciliation DEFAULT VALUES;

-- What did not match at the last comparison. It is looked at again until it does.
CREATE TABLE shop.mismatches (
    kind text NOT NULL,
    subject text NOT NULL,
    order_id uuid,
    found_at timestamptz NOT NULL,
    PRIMARY KEY (kind, subject)
);
