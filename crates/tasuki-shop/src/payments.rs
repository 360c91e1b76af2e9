//! Payments: money is taken once, or given back, whatever the provider answers and when.
//!
//! That a charge is wanted is durable before the provider is asked, and every call for it has the same
//! key. A call without an answer is repeated; when patience ends, the charge is given up, which is
//! durable before it is undone by its key, which also refuses one that is still on its way.
//!
//! | payment | when | becomes | tells |
//! | --- | --- | --- | --- |
//! | `PENDING` | the provider approves | `COMPLETED` | `PaymentCompleted` |
//! | `PENDING` | the provider declines | `FAILED` | `PaymentFailed` |
//! | `PENDING` | patience ends, it is cancelled, its errand dies | `REFUNDING` | |
//! | `PENDING` | the order ends, and nobody has asked the provider | `FAILED` | |
//! | `COMPLETED` | there are no goods, or they were put back | `REFUNDING` | |
//! | `REFUNDING` | the provider gives the money back | `REFUNDED` | `PaymentRefunded` |
//! | `REFUNDING` | the provider has none, and never will | `FAILED` | `PaymentFailed` |
//!
//! Each line is one transaction, which holds the order's row and names the state that it leaves. So a
//! call may be made twice, at any point and by two processes at once: forward ends at `COMPLETED`, the
//! way back begins at `REFUNDING`, and whoever comes second finds that it is not his turn. In the
//! choreographed flow the same transaction promises the errand that goes on; [`tasuki::barrier`] would
//! know less than the row: whether money was heard of, and that for longer than a month.

use sqlx::{PgConnection, Postgres, Transaction};
use tasuki::begin;
use tasuki::testing::crash_point;
use tasuki_contract::events::shop::EventType;
use tasuki_contract::ids::PaymentId;
use tasuki_contract::shop::OrderState;
use tokio::time::timeout;

use crate::domain::{Setback, is_final};
use crate::errands::{self, RefundErrand};
use crate::error::Error;
use crate::gateway::{ChargeError, Refunded};
use crate::orders::{self, Dossier};
use crate::parts::{Notice, Parts};
use crate::store::orders as order_store;
use crate::store::payments::{self as store, PaymentState};

/// What a charge came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Charge {
    Completed,
    /// There is no money and never will be.
    Failed(Setback),
    /// Nobody knows.
    Unanswered(String),
}

/// What a refund came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Refund {
    /// The shop has no money of this order, and will not get any.
    Done,
    /// Not yet.
    Open(String),
}

/// The key of a payment's charge, for ever.
pub(crate) fn charge_key(payment: PaymentId) -> String {
    format!("{payment}:charge")
}

/// Takes the money for an order, and records what came of it.
pub(crate) async fn charge(parts: &Parts, dossier: &Dossier) -> Result<Charge, Error> {
    match state(parts, dossier).await? {
        Some(PaymentState::Completed) => return Ok(Charge::Completed),
        Some(PaymentState::Refunding | PaymentState::Failed | PaymentState::Refunded) => {
            return Ok(given_up());
        }
        Some(PaymentState::Pending) | None => {}
    }
    let key = charge_key(dossier.payment);
    let asked = parts
        .gateway
        .charge(&key, &dossier.money, &dossier.payment_method);
    let Ok(answer) = timeout(parts.patience, asked).await else {
        let limit = parts.patience;
        return Ok(Charge::Unanswered(format!("no answer within {limit:?}")));
    };
    crash_point("shop.charge_answered");
    match answer {
        Ok(charged) => completed(parts, dossier, &charged.reference).await,
        // Whoever asked first has been charged, and that was us.
        Err(ChargeError::Duplicate { reference }) => completed(parts, dossier, &reference).await,
        Err(ChargeError::Declined(why)) => declined(parts, dossier, why).await,
        Err(ChargeError::Unanswered(why)) => Ok(Charge::Unanswered(why)),
    }
}

async fn completed(parts: &Parts, dossier: &Dossier, reference: &str) -> Result<Charge, Error> {
    let mut tx = begin(&parts.pool).await?;
    order_store::lock(&mut tx, dossier.order).await?;
    if !store::complete(&mut tx, dossier.payment, reference).await? {
        let state = store::state(&mut tx, dossier.payment).await?;
        return Ok(match state {
            Some(PaymentState::Completed) => Charge::Completed,
            // Whoever gave it up undoes it by its key, at the provider too.
            _ => given_up(),
        });
    }
    let (state, what) = (OrderState::PaymentCompleted, EventType::PaymentCompleted);
    let events = orders::tell(&mut tx, dossier, state, None, what, &parts.clock).await?;
    parts.commit(tx, dossier.order, events).await?;
    Ok(Charge::Completed)
}

async fn declined(parts: &Parts, dossier: &Dossier, why: String) -> Result<Charge, Error> {
    let setback = Setback::Declined(why);
    let mut tx = begin(&parts.pool).await?;
    order_store::lock(&mut tx, dossier.order).await?;
    let (payment, why) = (dossier.payment, setback.to_string());
    if store::fail(&mut tx, payment, PaymentState::Pending, &why).await? {
        let told = format!("payment {payment} failed: {why}");
        let notice = Notice::PaymentDeclined;
        parts.alert(&mut tx, notice, dossier, &told).await?;
        failed(parts, tx, dossier, &setback).await?;
    }
    Ok(Charge::Failed(setback))
}

/// Tells that there will be no money, and commits.
async fn failed(
    parts: &Parts,
    mut tx: Transaction<'static, Postgres>,
    dossier: &Dossier,
    setback: &Setback,
) -> Result<(), Error> {
    let (state, what) = (OrderState::PaymentFailed, EventType::PaymentFailed);
    let events = orders::tell(&mut tx, dossier, state, Some(setback), what, &parts.clock).await?;
    parts.commit(tx, dossier.order, events).await
}

/// Decides that a payment which is `from` goes back: from here on no answer of the provider completes
/// it, and somebody has promised to undo it. Says whether that is decided by this.
pub(crate) async fn give_up(
    parts: &Parts,
    tx: &mut PgConnection,
    dossier: &Dossier,
    from: PaymentState,
) -> Result<bool, Error> {
    let standing = order_store::lock(tx, dossier.order).await?;
    let standing = standing.ok_or(Error::NoOrder)?;
    let payment = dossier.payment;
    if is_final(standing.state) || !store::give_up(tx, payment, from).await? {
        return Ok(false);
    }
    if from == PaymentState::Pending {
        let why = unpaid(standing.cancel_requested_by);
        order_store::fail(tx, dossier.order, &why).await?;
        if why == Setback::Unanswered {
            let told = format!("payment {payment} failed: {why}");
            let notice = Notice::PaymentUnanswered;
            parts.alert(tx, notice, dossier, &told).await?;
        }
    }
    errands::promise(parts, tx, dossier, &RefundErrand::of(parts, dossier)).await?;
    Ok(true)
}

/// Why there is no payment that nobody has declined.
fn unpaid(cancelled_by: Option<String>) -> Setback {
    cancelled_by.map_or(Setback::Unanswered, Setback::Cancelled)
}

/// Gives the money back, or sees to it that none is taken. Gives the payment up, if nobody has.
pub(crate) async fn refund(parts: &Parts, dossier: &Dossier) -> Result<Refund, Error> {
    match state(parts, dossier).await? {
        Some(PaymentState::Failed | PaymentState::Refunded) => return Ok(Refund::Done),
        Some(PaymentState::Refunding) => {}
        Some(from @ (PaymentState::Pending | PaymentState::Completed)) => {
            let mut tx = begin(&parts.pool).await?;
            if !give_up(parts, &mut tx, dossier, from).await? {
                return Ok(Refund::Open(format!("it was {from:?} and is no more")));
            }
            tx.commit().await?;
            crash_point("shop.payment_given_up");
        }
        None => return Ok(Refund::Done),
    }
    let key = charge_key(dossier.payment);
    let Ok(answer) = timeout(parts.patience, parts.gateway.refund(&key)).await else {
        let limit = parts.patience;
        return Ok(Refund::Open(format!("no answer within {limit:?}")));
    };
    crash_point("shop.refund_answered");
    match answer {
        Ok(refunded) => {
            refunds(parts, dossier, refunded).await?;
            Ok(Refund::Done)
        }
        Err(refused) => Ok(Refund::Open(refused.to_string())),
    }
}

/// Records and tells what the provider gave back.
async fn refunds(parts: &Parts, dossier: &Dossier, refunded: Refunded) -> Result<(), Error> {
    let mut tx = begin(&parts.pool).await?;
    let standing = order_store::lock(&mut tx, dossier.order).await?;
    let payment = dossier.payment;
    match refunded {
        Refunded::Money => {
            if store::refund(&mut tx, payment).await? {
                let (state, what) = (OrderState::Compensating, EventType::PaymentRefunded);
                let clock = &parts.clock;
                let events = orders::tell(&mut tx, dossier, state, None, what, clock).await?;
                parts.commit(tx, dossier.order, events).await?;
            }
        }
        Refunded::Nothing => {
            let why = unpaid(standing.and_then(|it| it.cancel_requested_by));
            let from = PaymentState::Refunding;
            if store::fail(&mut tx, payment, from, &why.to_string()).await? {
                failed(parts, tx, dossier, &why).await?;
            }
        }
    }
    Ok(())
}

/// Whether money that is to go back is still there.
pub(crate) async fn is_open(tx: &mut PgConnection, dossier: &Dossier) -> Result<bool, Error> {
    let state = store::state(tx, dossier.payment).await?;
    Ok(state == Some(PaymentState::Refunding))
}

async fn state(parts: &Parts, dossier: &Dossier) -> Result<Option<PaymentState>, Error> {
    let mut connection = parts.pool.acquire().await?;
    Ok(store::state(&mut connection, dossier.payment).await?)
}

fn given_up() -> Charge {
    Charge::Failed(Setback::Undone("the payment was given up".to_owned()))
}
