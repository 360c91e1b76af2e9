-- Why:   orders that are paid, reserved and granted, or undone without a trace.
-- Phase: expand. Nothing reads these tables yet.
-- Lock:  none on existing tables.
-- Undo:  DROP TABLE shop.simulated_charges, shop.operator_notices, shop.payments,
--        shop.reservation_items, shop.reservations, shop.stock_moves, shop.stock,
--        shop.order_history, shop.order_items, shop.orders, shop.products;

CREATE TABLE shop.products (
    stock_keeping_unit text PRIMARY KEY,
    -- Of one, in minor units.
    price bigint NOT NULL CHECK (price >= 0),
    currency text NOT NULL CHECK (currency ~ '^[A-Z]{3}$'),
    -- Whether it is used up: then the quantity is granted.
    consumable boolean NOT NULL DEFAULT FALSE,
    updated_at timestamptz NOT NULL DEFAULT now()
);

-- The id of an order is also that of its saga, and the correlation id of its story. Payment and
-- reservation have their ids from the start, so that every step has its key before it is taken.
CREATE TABLE shop.orders (
    order_id uuid PRIMARY KEY,
    user_id text NOT NULL,
    flow text NOT NULL CHECK (flow IN ('orchestrated', 'choreographed')),
    state text NOT NULL CHECK (state IN (
        'STARTED', 'ORDER_CREATED', 'PAYMENT_PENDING', 'PAYMENT_COMPLETED', 'PAYMENT_FAILED',
        'STOCK_RESERVED', 'STOCK_FAILED', 'COMPLETED', 'COMPENSATING', 'COMPENSATED',
        'NEEDS_ATTENTION'
    )),
    -- One more with every change: the number of the event that tells of it.
    version bigint NOT NULL DEFAULT 1,
    -- Minor units, fixed when the order is taken.
    amount bigint NOT NULL CHECK (amount >= 1),
    currency text NOT NULL,
    payment_method text NOT NULL,
    payment_id uuid NOT NULL UNIQUE,
    reservation_id uuid NOT NULL UNIQUE,
    failure_code text,
    failure_message text,
    -- Somebody wants it undone: seen wherever it could go on.
    cancel_requested_by text,
    -- How far entitlement is: never granted again once it is to be taken back.
    fulfilment text NOT NULL DEFAULT 'OPEN'
        CHECK (fulfilment IN ('OPEN', 'GRANTED', 'REVOKING', 'REVOKED')),
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now()
) WITH (
    -- Every order changes state half a dozen times, and no index has that.
    fillfactor = 70
);

-- What is on its way, for who looks for what is stuck. An order enters once and leaves once.
CREATE INDEX orders_unfinished_idx ON shop.orders (created_at)
    WHERE state NOT IN ('COMPLETED', 'COMPENSATED');

CREATE TABLE shop.order_items (
    order_id uuid NOT NULL,
    stock_keeping_unit text NOT NULL,
    quantity bigint NOT NULL CHECK (quantity >= 1),
    price bigint NOT NULL CHECK (price >= 0),
    consumable boolean NOT NULL,
    -- What entitlement said; NULL until it was asked.
    grant_state text CHECK (grant_state IN ('GRANTED', 'REFUSED', 'REVOKED')),
    PRIMARY KEY (order_id, stock_keeping_unit)
);

CREATE TABLE shop.order_history (
    order_id uuid NOT NULL,
    version bigint NOT NULL,
    state text NOT NULL,
    note text,
    changed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (order_id, version)
);

-- What is on the shelf. Both checks hold whatever the code does.
CREATE TABLE shop.stock (
    stock_keeping_unit text PRIMARY KEY,
    on_hand bigint NOT NULL CHECK (on_hand >= 0),
    reserved bigint NOT NULL DEFAULT 0 CHECK (reserved >= 0 AND reserved <= on_hand),
    updated_at timestamptz NOT NULL DEFAULT now()
) WITH (fillfactor = 50);

-- Everything that came and went: the sum of it is what is on hand.
CREATE TABLE shop.stock_moves (
    move_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    stock_keeping_unit text NOT NULL,
    quantity bigint NOT NULL CHECK (quantity <> 0),
    kind text NOT NULL CHECK (kind IN ('RECEIPT', 'SALE', 'TRANSFER')),
    -- The order, or the transfer.
    cause uuid,
    moved_at timestamptz NOT NULL DEFAULT now()
);

CREATE INDEX stock_moves_stock_keeping_unit_idx ON shop.stock_moves (stock_keeping_unit);

-- What is set aside. RELEASED may stand here before there was anything: then the late reservation
-- finds it, and is refused.
CREATE TABLE shop.reservations (
    reservation_id uuid PRIMARY KEY,
    order_id uuid NOT NULL UNIQUE,
    state text NOT NULL CHECK (state IN ('HELD', 'COMMITTED', 'RELEASED', 'EXPIRED')),
    expires_at timestamptz NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now()
);

CREATE INDEX reservations_held_idx ON shop.reservations (expires_at) WHERE state = 'HELD';

CREATE TABLE shop.reservation_items (
    reservation_id uuid NOT NULL,
    stock_keeping_unit text NOT NULL,
    quantity bigint NOT NULL CHECK (quantity >= 1),
    PRIMARY KEY (reservation_id, stock_keeping_unit)
);

CREATE TABLE shop.payments (
    payment_id uuid PRIMARY KEY,
    order_id uuid NOT NULL UNIQUE,
    -- REFUNDING: given up, whatever the provider says of the charge from now on.
    state text NOT NULL
        CHECK (state IN ('PENDING', 'COMPLETED', 'REFUNDING', 'FAILED', 'REFUNDED')),
    amount bigint NOT NULL CHECK (amount >= 1),
    currency text NOT NULL,
    payment_method text NOT NULL,
    -- What the provider calls it.
    reference text,
    reason text,
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now()
);

-- What somebody who runs the shop must know of.
CREATE TABLE shop.operator_notices (
    notice_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    kind text NOT NULL,
    payment_id uuid NOT NULL,
    order_id uuid NOT NULL,
    message text NOT NULL,
    told_at timestamptz NOT NULL DEFAULT now(),
    -- However often it happens, it is told once.
    UNIQUE (payment_id, kind)
);

-- The books of the simulated payment provider. Another company's: no transaction of the shop
-- writes here.
CREATE TABLE shop.simulated_charges (
    idem_key text PRIMARY KEY,
    outcome text NOT NULL CHECK (outcome IN ('APPROVED', 'DECLINED', 'VOIDED')),
    amount bigint NOT NULL CHECK (amount >= 0),
    currency text NOT NULL,
    payment_method text NOT NULL,
    refunded bigint NOT NULL DEFAULT 0 CHECK (refunded >= 0 AND refunded <= amount),
    -- Refunds of it are refused, for as long as this is so.
    refuses_refund boolean NOT NULL DEFAULT FALSE,
    -- How often it was asked for.
    calls integer NOT NULL DEFAULT 1,
    created_at timestamptz NOT NULL DEFAULT now()
);
