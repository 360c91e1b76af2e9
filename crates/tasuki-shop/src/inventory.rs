//! Inventory: goods are set aside, taken off the shelf, or put back; and what nobody comes for goes
//! back by itself.
//!
//! Invariant: `0 <= reserved <= on_hand`, whatever happens side by side. The database checks it, too.
//! Rows of stock are locked in the order of their names, so that nobody waits in a circle.

use std::time::Duration;

use sqlx::PgConnection;
use tasuki::Clock;
use tasuki::outbox::Event;
use tasuki_contract::events::shop::EventType;
use tasuki_contract::ids::ReservationId;
use tasuki_contract::shop::OrderState;

use crate::domain::Setback;
use crate::error::Error;
use crate::orders::{self, Dossier};
use crate::store::stock::{self, Reservation, RunOut};

/// What became of a reservation.
enum Reserved {
    /// Everything is set aside.
    All,
    /// Nothing is, because there is not enough of this.
    Short(String),
    /// Nothing is: it was given up before it came.
    GivenUp,
}

/// Whether what was set aside is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Confirmed {
    Committed,
    /// It was not there any more.
    Gone,
}

/// Sets everything aside, or nothing, for `hold` at the most; and says why not, if not.
pub(crate) async fn reserve(
    tx: &mut PgConnection,
    dossier: &Dossier,
    hold: Duration,
    clock: &Clock,
) -> Result<(Vec<Event>, Option<Setback>), Error> {
    Ok(match set_aside(tx, dossier, hold).await? {
        Reserved::All => {
            let (state, what) = (OrderState::StockReserved, EventType::StockReserved);
            let told = orders::tell(tx, dossier, state, None, what, clock).await?;
            (told, None)
        }
        Reserved::Short(sku) => {
            let setback = Setback::OutOfStock(sku);
            let (state, what) = (OrderState::StockFailed, EventType::StockFailed);
            let told = orders::tell(tx, dossier, state, Some(&setback), what, clock).await?;
            (told, Some(setback))
        }
        Reserved::GivenUp => {
            // Told all the same: in the choreographed flow the refund waits for it.
            let setback = Setback::ReservationExpired;
            let (state, what) = (OrderState::Compensating, EventType::StockReleased);
            let told = orders::tell(tx, dossier, state, Some(&setback), what, clock).await?;
            (told, Some(setback))
        }
    })
}

async fn set_aside(
    tx: &mut PgConnection,
    dossier: &Dossier,
    hold: Duration,
) -> Result<Reserved, Error> {
    if !stock::open(tx, dossier.reservation, dossier.order, hold).await? {
        // Repeated, or late: what was decided stands.
        return Ok(match stock::lock(tx, dossier.reservation).await? {
            Some(Reservation::Held | Reservation::Committed) => Reserved::All,
            Some(Reservation::Released | Reservation::Expired) | None => Reserved::GivenUp,
        });
    }
    let (mut skus, mut quantities) = (Vec::new(), Vec::new());
    for item in &dossier.items {
        if !stock::set_aside(tx, dossier.reservation, &item.sku, item.quantity).await? {
            stock::forget(tx, dossier.reservation, &skus, &quantities).await?;
            return Ok(Reserved::Short(item.sku.clone()));
        }
        skus.push(item.sku.clone());
        quantities.push(item.quantity);
    }
    Ok(Reserved::All)
}

/// Puts back whatever is set aside. If nothing ever was, nothing ever will be.
pub(crate) async fn release(
    tx: &mut PgConnection,
    dossier: &Dossier,
    clock: &Clock,
) -> Result<Vec<Event>, Error> {
    let is_empty = stock::refuse(tx, dossier.reservation, dossier.order).await?;
    if !is_empty && stock::lock(tx, dossier.reservation).await? == Some(Reservation::Held) {
        stock::release(tx, dossier.reservation, false).await?;
    }
    let (state, what) = (OrderState::Compensating, EventType::StockReleased);
    orders::tell(tx, dossier, state, None, what, clock).await
}

/// Whether nobody came for what was set aside in time.
pub(crate) async fn has_expired(tx: &mut PgConnection, dossier: &Dossier) -> sqlx::Result<bool> {
    Ok(stock::lock(tx, dossier.reservation).await? == Some(Reservation::Expired))
}

/// Takes what is set aside off the shelf, for good.
pub(crate) async fn commit(tx: &mut PgConnection, dossier: &Dossier) -> Result<Confirmed, Error> {
    match stock::lock(tx, dossier.reservation).await? {
        Some(Reservation::Held) => {
            stock::commit(tx, dossier.reservation, dossier.order).await?;
            Ok(Confirmed::Committed)
        }
        Some(Reservation::Committed) => Ok(Confirmed::Committed),
        Some(Reservation::Released | Reservation::Expired) | None => Ok(Confirmed::Gone),
    }
}

/// Reservations that nobody came for in time behind `after`, at most `limit`; none of goods that are
/// known to be `held` by somebody.
pub(crate) async fn run_out(
    connection: &mut PgConnection,
    after: Option<RunOut>,
    held: &[String],
    limit: i64,
) -> sqlx::Result<Vec<RunOut>> {
    stock::run_out(connection, after, held, limit).await
}

/// What is reserved that somebody holds at this moment.
pub(crate) async fn held_by_others(
    tx: &mut PgConnection,
    reservation: ReservationId,
) -> sqlx::Result<Vec<String>> {
    stock::held_by_others(tx, reservation).await
}

/// Puts back one that nobody came for, unless somebody is at it; waits for `limit` at the most. In a
/// transaction of its own: with two in one, rows of stock would not be locked in the order of their
/// names. Says whether it was this one who did.
pub(crate) async fn expire(
    tx: &mut PgConnection,
    reservation: ReservationId,
    limit: Duration,
) -> sqlx::Result<bool> {
    stock::wait_at_most(tx, limit).await?;
    if !stock::lock_held(tx, reservation).await? {
        return Ok(false);
    }
    stock::release(tx, reservation, true).await?;
    Ok(true)
}
