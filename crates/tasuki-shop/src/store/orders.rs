//! Orders, their items and their history.

use sqlx::PgConnection;
use tasuki_contract::ids::{OrderId, PaymentId, ReservationId};
use tasuki_contract::shop::OrderState;
use time::OffsetDateTime;

use super::unknown;
use crate::domain::{Item, Money, Setback, flow_str, is_final, parse_flow, parse_state, state_str};
use crate::orders::Dossier;

/// An order as it is.
#[derive(Clone, Debug)]
pub(crate) struct OrderRow {
    pub(crate) dossier: Dossier,
    pub(crate) state: OrderState,
    pub(crate) failure: Option<(String, String)>,
    pub(crate) cancel_requested_by: Option<String>,
    pub(crate) created_at: OffsetDateTime,
    pub(crate) updated_at: OffsetDateTime,
}

/// How far entitlement is with an order. It moves as the table of [`crate::fulfilment`] says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fulfilment {
    Open,
    Granted,
    Revoking,
    Revoked,
}

impl Fulfilment {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Open => "OPEN",
            Self::Granted => "GRANTED",
            Self::Revoking => "REVOKING",
            Self::Revoked => "REVOKED",
        }
    }

    fn parse(text: &str) -> sqlx::Result<Self> {
        let mut all = [Self::Open, Self::Granted, Self::Revoking, Self::Revoked].into_iter();
        all.find(|it| it.as_str() == text)
            .ok_or_else(|| unknown("fulfilment"))
    }
}

/// What decides how an order may move.
#[derive(Clone, Debug)]
pub(crate) struct Standing {
    pub(crate) state: OrderState,
    pub(crate) fulfilment: Fulfilment,
    pub(crate) cancel_requested_by: Option<String>,
    /// So old that others may have forgotten what they answered: they keep keys for an hour at
    /// least.
    pub(crate) is_old: bool,
}

/// A change that was made: the number of its event, and its time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moved {
    pub(crate) version: i64,
    pub(crate) at: OffsetDateTime,
}

/// A change in the past.
#[derive(Clone, Debug)]
pub(crate) struct Past {
    pub(crate) state: OrderState,
    pub(crate) note: Option<String>,
    pub(crate) at: OffsetDateTime,
}

/// Writes a new order down, with its items and the first line of its history.
pub(crate) async fn insert(
    tx: &mut PgConnection,
    dossier: &Dossier,
    state: OrderState,
) -> sqlx::Result<Moved> {
    let row = sqlx::query!(
        r#"
        INSERT INTO shop.orders (
            order_id, user_id, flow, state, amount, currency, payment_method, payment_id,
            reservation_id
        )
        VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)
        RETURNING version, created_at
        "#,
        dossier.order.as_uuid(),
        dossier.user,
        flow_str(dossier.flow),
        state_str(state),
        dossier.money.amount,
        dossier.money.currency,
        dossier.payment_method,
        dossier.payment.as_uuid(),
        dossier.reservation.as_uuid(),
    )
    .fetch_one(&mut *tx)
    .await?;
    let skus: Vec<_> = dossier.items.iter().map(|item| item.sku.clone()).collect();
    let quantities: Vec<_> = dossier.items.iter().map(|item| item.quantity).collect();
    let prices: Vec<_> = dossier.items.iter().map(|item| item.price).collect();
    let consumables: Vec<_> = dossier.items.iter().map(|item| item.consumable).collect();
    sqlx::query!(
        r#"
        WITH history AS (
            INSERT INTO shop.order_history (order_id, version, state)
            VALUES ($1, $6, $7)
        )
        INSERT INTO shop.order_items (order_id, stock_keeping_unit, quantity, price, consumable)
        SELECT $1, item.sku, item.quantity, item.price, item.consumable
        FROM unnest($2::text[], $3::bigint[], $4::bigint[], $5::boolean[])
            AS item (sku, quantity, price, consumable)
        "#,
        dossier.order.as_uuid(),
        &skus,
        &quantities,
        &prices,
        &consumables,
        row.version,
        state_str(state),
    )
    .execute(tx)
    .await?;
    Ok(Moved {
        version: row.version,
        at: row.created_at,
    })
}

/// An order, as it is now; `lock` keeps it so until the transaction ends.
pub(crate) async fn find(
    connection: &mut PgConnection,
    order: OrderId,
    lock: bool,
) -> sqlx::Result<Option<OrderRow>> {
    if lock {
        sqlx::query!(
            "SELECT order_id FROM shop.orders WHERE order_id = $1 FOR NO KEY UPDATE",
            order.as_uuid(),
        )
        .fetch_optional(&mut *connection)
        .await?;
    }
    let row = sqlx::query!(
        r#"
        SELECT
            user_id, flow, state, amount, currency, payment_method, payment_id, reservation_id,
            failure_code, failure_message, cancel_requested_by, created_at, updated_at
        FROM shop.orders
        WHERE order_id = $1
        "#,
        order.as_uuid(),
    )
    .fetch_optional(&mut *connection)
    .await?;
    let Some(row) = row else {
        return Ok(None);
    };
    let items = items(connection, order).await?;
    Ok(Some(OrderRow {
        dossier: Dossier {
            order,
            user: row.user_id,
            items: items.into_iter().map(|(item, _)| item).collect(),
            money: Money {
                amount: row.amount,
                currency: row.currency,
            },
            payment_method: row.payment_method,
            payment: PaymentId::from(row.payment_id),
            reservation: ReservationId::from(row.reservation_id),
            flow: parse_flow(&row.flow).ok_or_else(|| unknown("flow"))?,
        },
        state: parse_state(&row.state).ok_or_else(|| unknown("state"))?,
        failure: row.failure_code.zip(row.failure_message),
        cancel_requested_by: row.cancel_requested_by,
        created_at: row.created_at,
        updated_at: row.updated_at,
    }))
}

/// How an order stands, and will until the transaction ends. Whoever moves an order, its payment or
/// what is granted of it has this lock first, so that nobody waits in a circle.
pub(crate) async fn lock(tx: &mut PgConnection, order: OrderId) -> sqlx::Result<Option<Standing>> {
    let row = sqlx::query!(
        r#"
        SELECT
            state, fulfilment, cancel_requested_by,
            created_at < now() - INTERVAL '30 minutes' AS "is_old!"
        FROM shop.orders
        WHERE order_id = $1
        FOR NO KEY UPDATE
        "#,
        order.as_uuid(),
    )
    .fetch_optional(tx)
    .await?;
    let standing = row.map(|row| {
        Ok(Standing {
            state: parse_state(&row.state).ok_or_else(|| unknown("state"))?,
            fulfilment: Fulfilment::parse(&row.fulfilment)?,
            cancel_requested_by: row.cancel_requested_by,
            is_old: row.is_old,
        })
    });
    standing.transpose()
}

/// What entitlement has come to, of an order that has not ended: says whether it was `from` until
/// now.
pub(crate) async fn fulfil(
    tx: &mut PgConnection,
    order: OrderId,
    from: Fulfilment,
    to: Fulfilment,
) -> sqlx::Result<bool> {
    let done = sqlx::query!(
        r#"
        UPDATE shop.orders
        SET fulfilment = $3
        WHERE order_id = $1 AND fulfilment = $2 AND ended_at IS NULL
        "#,
        order.as_uuid(),
        from.as_str(),
        to.as_str(),
    )
    .execute(tx)
    .await?;
    Ok(done.rows_affected() == 1)
}

/// The items of an order, in the order of their names, and what entitlement said of each.
pub(crate) async fn items(
    connection: &mut PgConnection,
    order: OrderId,
) -> sqlx::Result<Vec<(Item, Option<String>)>> {
    let rows = sqlx::query!(
        r#"
        SELECT stock_keeping_unit, quantity, price, consumable, grant_state
        FROM shop.order_items
        WHERE order_id = $1
        ORDER BY stock_keeping_unit COLLATE "C"
        "#,
        order.as_uuid(),
    )
    .fetch_all(connection)
    .await?;
    let items = rows.into_iter().map(|row| {
        let item = Item {
            sku: row.stock_keeping_unit,
            quantity: row.quantity,
            price: row.price,
            consumable: row.consumable,
        };
        (item, row.grant_state)
    });
    Ok(items.collect())
}

/// What happened to an order, the first first.
pub(crate) async fn history(
    connection: &mut PgConnection,
    order: OrderId,
) -> sqlx::Result<Vec<Past>> {
    let rows = sqlx::query!(
        r#"
        SELECT state, note, changed_at
        FROM shop.order_history
        WHERE order_id = $1
        ORDER BY version
        "#,
        order.as_uuid(),
    )
    .fetch_all(connection)
    .await?;
    let past = rows.into_iter().map(|row| {
        Ok(Past {
            state: parse_state(&row.state).ok_or_else(|| unknown("state"))?,
            note: row.note,
            at: row.changed_at,
        })
    });
    past.collect()
}

/// Moves an order on, unless it has ended: then nothing moves it any more.
pub(crate) async fn advance(
    tx: &mut PgConnection,
    order: OrderId,
    state: OrderState,
    note: Option<&str>,
) -> sqlx::Result<Option<Moved>> {
    let row = sqlx::query!(
        r#"
        WITH moved AS (
            UPDATE shop.orders
            SET state = $2,
                version = version + 1,
                updated_at = clock_timestamp(),
                ended_at = CASE WHEN $4 THEN clock_timestamp() END
            WHERE order_id = $1 AND ended_at IS NULL
            RETURNING version, updated_at
        ), history AS (
            INSERT INTO shop.order_history (order_id, version, state, note, changed_at)
            SELECT $1, version, $2, $3, updated_at
            FROM moved
        )
        SELECT version, updated_at
        FROM moved
        "#,
        order.as_uuid(),
        state_str(state),
        note,
        is_final(state),
    )
    .fetch_optional(tx)
    .await?;
    Ok(row.map(|row| Moved {
        version: row.version,
        at: row.updated_at,
    }))
}

/// Says why an order does not complete. What was said first stays.
pub(crate) async fn fail(tx: &mut PgConnection, order: OrderId, why: &Setback) -> sqlx::Result<()> {
    sqlx::query!(
        r#"
        UPDATE shop.orders
        SET failure_code = $2, failure_message = $3
        WHERE order_id = $1 AND failure_code IS NULL
        "#,
        order.as_uuid(),
        why.code(),
        why.to_string(),
    )
    .execute(tx)
    .await?;
    Ok(())
}

/// Says that somebody wants an order undone.
pub(crate) async fn request_cancel(
    tx: &mut PgConnection,
    order: OrderId,
    by: &str,
) -> sqlx::Result<()> {
    sqlx::query!(
        r#"
        UPDATE shop.orders
        SET cancel_requested_by = coalesce(cancel_requested_by, $2)
        WHERE order_id = $1
        "#,
        order.as_uuid(),
        by,
    )
    .execute(tx)
    .await?;
    Ok(())
}

/// Records what entitlement said of these items. What was taken back stays so, however late an
/// earlier answer comes.
pub(crate) async fn granted(
    tx: &mut PgConnection,
    order: OrderId,
    skus: &[String],
    state: &str,
) -> sqlx::Result<()> {
    sqlx::query!(
        r#"
        UPDATE shop.order_items
        SET grant_state = $3
        WHERE order_id = $1
            AND stock_keeping_unit = ANY ($2)
            AND (grant_state IS NULL OR $3 = 'REVOKED')
        "#,
        order.as_uuid(),
        skus,
        state,
    )
    .execute(tx)
    .await?;
    Ok(())
}

/// Orders whose sagas have ended without them, because a person has closed them; and how.
pub(crate) async fn closed(
    connection: &mut PgConnection,
    limit: i64,
) -> sqlx::Result<Vec<(OrderId, OrderState)>> {
    let rows = sqlx::query!(
        r#"
        SELECT orders.order_id, done.state
        FROM shop.orders AS orders
        JOIN shop.sagas_done AS done ON orders.order_id = done.saga_id
        WHERE orders.ended_at IS NULL
            AND NOT EXISTS (SELECT FROM shop.sagas AS live WHERE live.saga_id = orders.order_id)
        LIMIT $1
        "#,
        limit,
    )
    .fetch_all(connection)
    .await?;
    let closed = rows.into_iter().map(|row| {
        let state = parse_state(&row.state).ok_or_else(|| unknown("state"))?;
        Ok((OrderId::from(row.order_id), state))
    });
    closed.collect()
}
