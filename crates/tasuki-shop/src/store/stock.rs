//! What is on the shelf, and what is set aside. The same tables are in the database of every
//! warehouse; orders are served from the shop's own.

use std::time::Duration;

use sqlx::PgConnection;
use tasuki_contract::ids::{OrderId, ReservationId};
use time::OffsetDateTime;
use uuid::Uuid;

use super::{interval, unknown};

/// How a reservation is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reservation {
    Held,
    Committed,
    Released,
    Expired,
}

impl Reservation {
    fn parse(text: &str) -> sqlx::Result<Self> {
        Ok(match text {
            "HELD" => Self::Held,
            "COMMITTED" => Self::Committed,
            "RELEASED" => Self::Released,
            "EXPIRED" => Self::Expired,
            _ => return Err(unknown("state of a reservation")),
        })
    }
}

/// What is on hand, and how much of it is set aside; nothing of what was never here.
pub(crate) async fn read(
    connection: &mut PgConnection,
    sku: &str,
) -> sqlx::Result<Option<(i64, i64)>> {
    let row = sqlx::query!(
        "SELECT on_hand, reserved FROM shop.stock WHERE stock_keeping_unit = $1",
        sku,
    )
    .fetch_optional(connection)
    .await?;
    Ok(row.map(|row| (row.on_hand, row.reserved)))
}

/// Adds to what is on hand; answers what there is then, and what is set aside.
pub(crate) async fn add(
    tx: &mut PgConnection,
    sku: &str,
    quantity: i64,
    (kind, cause): (&str, Option<Uuid>),
) -> sqlx::Result<(i64, i64)> {
    let row = sqlx::query!(
        r#"
        WITH moved AS (
            INSERT INTO shop.stock_moves (stock_keeping_unit, quantity, kind, cause)
            VALUES ($1, $2, $3, $4)
        )
        INSERT INTO shop.stock AS held (stock_keeping_unit, on_hand)
        VALUES ($1, $2)
        ON CONFLICT (stock_keeping_unit) DO UPDATE
        SET on_hand = held.on_hand + excluded.on_hand, updated_at = clock_timestamp()
        RETURNING on_hand, reserved
        "#,
        sku,
        quantity,
        kind,
        cause,
    )
    .fetch_one(tx)
    .await?;
    Ok((row.on_hand, row.reserved))
}

/// Lets this transaction wait for nothing longer than `limit`.
pub(crate) async fn wait_at_most(tx: &mut PgConnection, limit: Duration) -> sqlx::Result<()> {
    let millis = limit.as_millis().to_string();
    sqlx::query!(
        r#"
        SELECT
            set_config('lock_timeout', $1, TRUE) AS "lock!",
            set_config('statement_timeout', $1, TRUE) AS "statement!"
        "#,
        millis,
    )
    .fetch_one(tx)
    .await?;
    Ok(())
}

/// Holds a SKU's row until the transaction ends. Says whether there was none.
pub(crate) async fn hold(tx: &mut PgConnection, sku: &str) -> sqlx::Result<bool> {
    sqlx::query_scalar!(
        r#"
        INSERT INTO shop.stock (stock_keeping_unit, on_hand)
        VALUES ($1, 0)
        ON CONFLICT (stock_keeping_unit) DO UPDATE
        SET updated_at = clock_timestamp()
        RETURNING xmax = 0 AS "is_new!"
        "#,
        sku,
    )
    .fetch_one(tx)
    .await
}

/// Takes back a row that [`hold`] has made in this transaction.
pub(crate) async fn let_go(tx: &mut PgConnection, sku: &str) -> sqlx::Result<()> {
    sqlx::query!("DELETE FROM shop.stock WHERE stock_keeping_unit = $1", sku)
        .execute(tx)
        .await?;
    Ok(())
}

/// Takes from what is on hand and not set aside: all of `quantity`, or nothing.
pub(crate) async fn take(
    tx: &mut PgConnection,
    sku: &str,
    quantity: i64,
    (kind, cause): (&str, Option<Uuid>),
) -> sqlx::Result<bool> {
    let done = sqlx::query!(
        r#"
        WITH taken AS (
            UPDATE shop.stock
            SET on_hand = on_hand - $2, updated_at = clock_timestamp()
            WHERE stock_keeping_unit = $1 AND on_hand - reserved >= $2
            RETURNING stock_keeping_unit
        )
        INSERT INTO shop.stock_moves (stock_keeping_unit, quantity, kind, cause)
        SELECT stock_keeping_unit, -$2, $3, $4
        FROM taken
        "#,
        sku,
        quantity,
        kind,
        cause,
    )
    .execute(tx)
    .await?;
    Ok(done.rows_affected() == 1)
}

/// Opens a reservation. False: there is one, or it was released before it ever was.
pub(crate) async fn open(
    tx: &mut PgConnection,
    reservation: ReservationId,
    order: OrderId,
    hold: Duration,
) -> sqlx::Result<bool> {
    let done = sqlx::query!(
        r#"
        INSERT INTO shop.reservations (reservation_id, order_id, state, expires_at)
        VALUES ($1, $2, 'HELD', clock_timestamp() + $3)
        ON CONFLICT DO NOTHING
        "#,
        reservation.as_uuid(),
        order.as_uuid(),
        interval(hold),
    )
    .execute(tx)
    .await?;
    Ok(done.rows_affected() == 1)
}

/// Takes back a reservation that was opened in this transaction, and could not be filled.
pub(crate) async fn forget(
    tx: &mut PgConnection,
    reservation: ReservationId,
    skus: &[String],
    quantities: &[i64],
) -> sqlx::Result<()> {
    sqlx::query!(
        r#"
        WITH gone AS (
            DELETE FROM shop.reservation_items
            WHERE reservation_id = $1
        ), closed AS (
            UPDATE shop.reservations
            SET state = 'RELEASED', updated_at = clock_timestamp()
            WHERE reservation_id = $1
        )
        UPDATE shop.stock AS held
        SET reserved = held.reserved - item.quantity, updated_at = clock_timestamp()
        FROM unnest($2::text[], $3::bigint[]) AS item (sku, quantity)
        WHERE held.stock_keeping_unit = item.sku
        "#,
        reservation.as_uuid(),
        skus,
        quantities,
    )
    .execute(tx)
    .await?;
    Ok(())
}

/// Sets `quantity` of `sku` aside: all of it, or nothing.
pub(crate) async fn set_aside(
    tx: &mut PgConnection,
    reservation: ReservationId,
    sku: &str,
    quantity: i64,
) -> sqlx::Result<bool> {
    let done = sqlx::query!(
        r#"
        WITH held AS (
            UPDATE shop.stock
            SET reserved = reserved + $3, updated_at = clock_timestamp()
            WHERE stock_keeping_unit = $2 AND on_hand - reserved >= $3
            RETURNING stock_keeping_unit
        )
        INSERT INTO shop.reservation_items (reservation_id, stock_keeping_unit, quantity)
        SELECT $1, stock_keeping_unit, $3
        FROM held
        "#,
        reservation.as_uuid(),
        sku,
        quantity,
    )
    .execute(tx)
    .await?;
    Ok(done.rows_affected() == 1)
}

/// How a reservation is, locked until the transaction ends.
pub(crate) async fn lock(
    tx: &mut PgConnection,
    reservation: ReservationId,
) -> sqlx::Result<Option<Reservation>> {
    let state = sqlx::query_scalar!(
        "SELECT state FROM shop.reservations WHERE reservation_id = $1 FOR NO KEY UPDATE",
        reservation.as_uuid(),
    )
    .fetch_optional(tx)
    .await?;
    state.as_deref().map(Reservation::parse).transpose()
}

/// Says that there is nothing to release and never will be: a late reservation finds this.
pub(crate) async fn refuse(
    tx: &mut PgConnection,
    reservation: ReservationId,
    order: OrderId,
) -> sqlx::Result<bool> {
    let done = sqlx::query!(
        r#"
        INSERT INTO shop.reservations (reservation_id, order_id, state, expires_at)
        VALUES ($1, $2, 'RELEASED', clock_timestamp())
        ON CONFLICT DO NOTHING
        "#,
        reservation.as_uuid(),
        order.as_uuid(),
    )
    .execute(tx)
    .await?;
    Ok(done.rows_affected() == 1)
}

/// Locks what is reserved of these, in the order of names: whoever changes several rows of stock
/// does so in this order.
async fn lock_items(tx: &mut PgConnection, reservation: ReservationId) -> sqlx::Result<()> {
    sqlx::query!(
        r#"
        SELECT held.stock_keeping_unit
        FROM shop.stock AS held
        JOIN shop.reservation_items AS item USING (stock_keeping_unit)
        WHERE item.reservation_id = $1
        ORDER BY held.stock_keeping_unit COLLATE "C"
        FOR NO KEY UPDATE OF held
        "#,
        reservation.as_uuid(),
    )
    .fetch_all(tx)
    .await?;
    Ok(())
}

/// Puts what is set aside back on the shelf. The reservation must be locked, and held.
pub(crate) async fn release(
    tx: &mut PgConnection,
    reservation: ReservationId,
    as_expired: bool,
) -> sqlx::Result<()> {
    lock_items(tx, reservation).await?;
    let state = if as_expired { "EXPIRED" } else { "RELEASED" };
    sqlx::query!(
        r#"
        WITH closed AS (
            UPDATE shop.reservations
            SET state = $2, updated_at = clock_timestamp()
            WHERE reservation_id = $1
        )
        UPDATE shop.stock AS held
        SET reserved = held.reserved - item.quantity, updated_at = clock_timestamp()
        FROM shop.reservation_items AS item
        WHERE item.reservation_id = $1 AND held.stock_keeping_unit = item.stock_keeping_unit
        "#,
        reservation.as_uuid(),
        state,
    )
    .execute(tx)
    .await?;
    Ok(())
}

/// Takes what is set aside off the shelf, for good. The reservation must be locked, and held.
pub(crate) async fn commit(
    tx: &mut PgConnection,
    reservation: ReservationId,
    order: OrderId,
) -> sqlx::Result<()> {
    lock_items(tx, reservation).await?;
    sqlx::query!(
        r#"
        WITH closed AS (
            UPDATE shop.reservations
            SET state = 'COMMITTED', updated_at = clock_timestamp()
            WHERE reservation_id = $1
        ), moved AS (
            INSERT INTO shop.stock_moves (stock_keeping_unit, quantity, kind, cause)
            SELECT stock_keeping_unit, -quantity, 'SALE', $2
            FROM shop.reservation_items
            WHERE reservation_id = $1
        )
        UPDATE shop.stock AS held
        SET on_hand = held.on_hand - item.quantity,
            reserved = held.reserved - item.quantity,
            updated_at = clock_timestamp()
        FROM shop.reservation_items AS item
        WHERE item.reservation_id = $1 AND held.stock_keeping_unit = item.stock_keeping_unit
        "#,
        reservation.as_uuid(),
        order.as_uuid(),
    )
    .execute(tx)
    .await?;
    Ok(())
}

/// A reservation that has run out, in the order in which they do.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RunOut {
    pub(crate) reservation: ReservationId,
    pub(crate) at: OffsetDateTime,
}

/// Reservations that have run out behind `after`, those first that did first; none of goods that are
/// known to be `held` by somebody.
pub(crate) async fn run_out(
    connection: &mut PgConnection,
    after: Option<RunOut>,
    held: &[String],
    limit: i64,
) -> sqlx::Result<Vec<RunOut>> {
    let rows = sqlx::query!(
        r#"
        SELECT reservation_id, expires_at
        FROM shop.reservations AS reservations
        WHERE state = 'HELD' AND expires_at <= clock_timestamp()
            AND (expires_at, reservation_id) > (coalesce($1::timestamptz, '-infinity'), $2)
            AND NOT EXISTS (
                SELECT FROM shop.reservation_items AS items
                WHERE items.reservation_id = reservations.reservation_id
                    AND items.stock_keeping_unit = ANY ($3)
            )
        ORDER BY expires_at, reservation_id
        LIMIT $4
        "#,
        after.map(|it| it.at),
        after.map_or(Uuid::nil(), |it| it.reservation.as_uuid()),
        held,
        limit,
    )
    .fetch_all(connection)
    .await?;
    let run_out = rows.into_iter().map(|row| RunOut {
        reservation: row.reservation_id.into(),
        at: row.expires_at,
    });
    Ok(run_out.collect())
}

/// What is reserved that somebody holds at this moment.
pub(crate) async fn held_by_others(
    tx: &mut PgConnection,
    reservation: ReservationId,
) -> sqlx::Result<Vec<String>> {
    sqlx::query_scalar!(
        r#"
        WITH free AS (
            SELECT held.stock_keeping_unit
            FROM shop.stock AS held
            JOIN shop.reservation_items AS item USING (stock_keeping_unit)
            WHERE item.reservation_id = $1
            FOR NO KEY UPDATE OF held SKIP LOCKED
        )
        SELECT item.stock_keeping_unit
        FROM shop.reservation_items AS item
        WHERE item.reservation_id = $1
            AND NOT EXISTS (
                SELECT FROM free WHERE free.stock_keeping_unit = item.stock_keeping_unit
            )
        "#,
        reservation.as_uuid(),
    )
    .fetch_all(tx)
    .await
}

/// Locks a reservation if it is held and nobody is at it.
pub(crate) async fn lock_held(
    tx: &mut PgConnection,
    reservation: ReservationId,
) -> sqlx::Result<bool> {
    let found = sqlx::query_scalar!(
        r#"
        SELECT reservation_id
        FROM shop.reservations
        WHERE reservation_id = $1 AND state = 'HELD'
        FOR NO KEY UPDATE SKIP LOCKED
        "#,
        reservation.as_uuid(),
    )
    .fetch_optional(tx)
    .await?;
    Ok(found.is_some())
}
