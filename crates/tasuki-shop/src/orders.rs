//! Orders: taken, moved on, confirmed, undone.
//!
//! Every function here joins its caller's transaction. Most answer with the event that tells of what
//! they did, and whoever opened the transaction sees to it that the event is in it.

use serde::{Deserialize, Serialize};
use sqlx::PgConnection;
use tasuki::Clock;
use tasuki::outbox::Event;
use tasuki_contract::events::shop::EventType;
use tasuki_contract::ids::{OrderId, PaymentId, ReservationId};
use tasuki_contract::shop::{Flow, OrderState};

use crate::domain::{Basket, Item, Money, Setback, is_final, price, state_str};
use crate::error::Error;
use crate::events::event;
use crate::inventory::{self, Confirmed};
use crate::store::catalogue;
use crate::store::orders::{self as store, Fulfilment, OrderRow};
use crate::store::payments::{self, PaymentState};

/// What every step of an order needs to know: fixed when the order is taken.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Dossier {
    pub(crate) order: OrderId,
    pub(crate) payment: PaymentId,
    pub(crate) reservation: ReservationId,
    pub(crate) user: String,
    pub(crate) items: Vec<Item>,
    pub(crate) money: Money,
    pub(crate) payment_method: String,
    pub(crate) flow: Flow,
}

/// Takes an order: its prices are fixed here.
pub(crate) async fn take(
    tx: &mut PgConnection,
    basket: Basket,
    clock: &Clock,
) -> Result<Dossier, Error> {
    let skus: Vec<_> = basket
        .items
        .iter()
        .map(|item| item.sku.to_string())
        .collect();
    let prices = catalogue::prices(tx, &skus).await?;
    let (items, money) = price(&basket, &prices)?;
    let dossier = Dossier {
        order: OrderId::new(clock),
        payment: PaymentId::new(clock),
        reservation: ReservationId::new(clock),
        user: basket.user.into(),
        items,
        money,
        payment_method: basket.payment_method,
        flow: basket.flow,
    };
    store::insert(tx, &dossier, OrderState::Started).await?;
    Ok(dossier)
}

/// Writes down that an order has begun.
pub(crate) async fn create(
    tx: &mut PgConnection,
    dossier: &Dossier,
    clock: &Clock,
) -> Result<Vec<Event>, Error> {
    let what = EventType::OrderCreated;
    tell(tx, dossier, OrderState::OrderCreated, None, what, clock).await
}

/// Moves an order to `state` and tells `what`; nothing, when it has ended.
pub(crate) async fn tell(
    tx: &mut PgConnection,
    dossier: &Dossier,
    state: OrderState,
    why: Option<&Setback>,
    what: EventType,
    clock: &Clock,
) -> Result<Vec<Event>, Error> {
    if let Some(why) = why {
        store::fail(tx, dossier.order, why).await?;
    }
    let note = why.map(ToString::to_string);
    let note = note.as_deref().or_else(|| remark(what));
    let moved = store::advance(tx, dossier.order, state, note).await?;
    let reason = why.map_or("", Setback::code);
    let events = moved.map(|moved| event(dossier, moved, what, reason, clock));
    Ok(events.transpose()?.into_iter().collect())
}

/// What the history says of a change that its state does not tell.
const fn remark(what: EventType) -> Option<&'static str> {
    match what {
        EventType::EntitlementsGranted => Some("granted"),
        EventType::EntitlementsRevoked => Some("revoked"),
        EventType::StockReleased => Some("released"),
        EventType::PaymentRefunded => Some("refunded"),
        _ => None,
    }
}

/// An order by its id.
pub(crate) async fn load(connection: &mut PgConnection, order: OrderId) -> Result<Dossier, Error> {
    let found = store::find(connection, order, false).await?;
    Ok(found.ok_or(Error::NoOrder)?.dossier)
}

/// An order that can go on, or why it can't. It can while it is paid, granted and set aside, and nobody
/// has begun to undo any of that.
pub(crate) async fn confirm(
    tx: &mut PgConnection,
    dossier: &Dossier,
    clock: &Clock,
) -> Result<Result<Vec<Event>, Setback>, Error> {
    let standing = store::lock(tx, dossier.order).await?;
    let standing = standing.ok_or(Error::NoOrder)?;
    if is_final(standing.state) {
        return Ok(Ok(Vec::new()));
    }
    if let Some(by) = standing.cancel_requested_by {
        return Ok(Err(Setback::Cancelled(by)));
    }
    if standing.fulfilment != Fulfilment::Granted {
        let why = "what was granted is taken back".to_owned();
        return Ok(Err(Setback::Undone(why)));
    }
    if payments::state(tx, dossier.payment).await? != Some(PaymentState::Completed) {
        let why = "the payment was given up".to_owned();
        return Ok(Err(Setback::Undone(why)));
    }
    match inventory::commit(tx, dossier).await? {
        Confirmed::Committed => {}
        Confirmed::Gone => return Ok(Err(Setback::ReservationExpired)),
    }
    let what = EventType::OrderCompleted;
    let told = tell(tx, dossier, OrderState::Completed, None, what, clock).await?;
    Ok(Ok(told))
}

/// The end of an order that did not complete: nobody owes anybody anything.
pub(crate) async fn undo(
    tx: &mut PgConnection,
    dossier: &Dossier,
    clock: &Clock,
) -> Result<Vec<Event>, Error> {
    let found = store::find(tx, dossier.order, true).await?;
    let OrderRow {
        failure,
        cancel_requested_by,
        ..
    } = found.ok_or(Error::NoOrder)?;
    let why = match (&failure, cancel_requested_by) {
        (Some(_), _) => None,
        (None, Some(by)) => Some(Setback::Cancelled(by)),
        (None, None) if inventory::has_expired(tx, dossier).await? => {
            Some(Setback::ReservationExpired)
        }
        (None, None) => Some(Setback::Undone("it was given up".to_owned())),
    };
    if let Some(why) = &why {
        store::fail(tx, dossier.order, why).await?;
    }
    // One that was never asked for: it never will be.
    let (payment, from) = (dossier.payment, PaymentState::Pending);
    payments::fail(tx, payment, from, "the order was given up").await?;
    let note = why.as_ref().map(ToString::to_string);
    let moved = store::advance(tx, dossier.order, OrderState::Compensated, note.as_deref());
    let Some(moved) = moved.await? else {
        return Ok(Vec::new());
    };
    let reason = match (&failure, &why) {
        (Some((code, _)), _) => code,
        (None, Some(why)) => why.code(),
        (None, None) => "",
    };
    let what = EventType::OrderCancelled;
    Ok(vec![event(dossier, moved, what, reason, clock)?])
}

/// Wants an order undone. An order that is on its way back, or back, is what was wanted.
pub(crate) async fn cancel(
    tx: &mut PgConnection,
    order: OrderId,
    by: &str,
) -> Result<OrderRow, Error> {
    let found = store::find(tx, order, true).await?.ok_or(Error::NoOrder)?;
    if found.state == OrderState::Completed {
        return Err(Error::TooLate(state_str(found.state)));
    }
    if !is_final(found.state) {
        store::request_cancel(tx, order, by).await?;
    }
    Ok(found)
}
