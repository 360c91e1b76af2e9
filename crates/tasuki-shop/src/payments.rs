//! Payments: money is taken once, or given back, whatever the provider answers and when.
//!
//! That a charge is wanted is durable before the provider is asked, and every call for it has the same
//! key. A call without an answer is repeated; when patience ends, the charge is undone by its key,
//! which also refuses one that is still on its way.

use tasuki::begin;
use tasuki::testing::crash_point;
use tasuki_contract::events::shop::EventType;
use tasuki_contract::ids::PaymentId;
use tasuki_contract::shop::OrderState;
use tokio::time::timeout;

use crate::domain::Setback;
use crate::error::Error;
use crate::gateway::{ChargeError, RefundError, Refunded};
use crate::orders::{self, Dossier};
use crate::parts::{Notice, Parts};
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
        Some(PaymentState::Failed | PaymentState::Refunded) => return Ok(given_up()),
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
    if !store::complete(&mut tx, dossier.payment, reference).await? {
        let state = store::state(&mut tx, dossier.payment).await?;
        return Ok(match state {
            Some(PaymentState::Completed) => Charge::Completed,
            // Whoever gave it up has undone it by its key, at the provider too.
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
    fail(parts, dossier, &setback, Notice::PaymentDeclined).await?;
    Ok(Charge::Failed(setback))
}

/// Records that there will be no money, tells, and tells an operator.
async fn fail(
    parts: &Parts,
    dossier: &Dossier,
    setback: &Setback,
    notice: Notice,
) -> Result<(), Error> {
    let mut tx = begin(&parts.pool).await?;
    let why = setback.to_string();
    if !store::fail(&mut tx, dossier.payment, &why).await? {
        return Ok(());
    }
    let (state, what) = (OrderState::PaymentFailed, EventType::PaymentFailed);
    let events = orders::tell(&mut tx, dossier, state, Some(setback), what, &parts.clock).await?;
    let told = format!("payment {} failed: {why}", dossier.payment);
    parts.alert(&mut tx, notice, dossier, &told).await?;
    parts.commit(tx, dossier.order, events).await
}

/// Gives the money back, or sees to it that none is taken.
pub(crate) async fn refund(parts: &Parts, dossier: &Dossier) -> Result<Refund, Error> {
    match state(parts, dossier).await? {
        Some(PaymentState::Failed | PaymentState::Refunded) => return Ok(Refund::Done),
        Some(PaymentState::Pending | PaymentState::Completed) | None => {}
    }
    let key = charge_key(dossier.payment);
    let Ok(answer) = timeout(parts.patience, parts.gateway.refund(&key)).await else {
        let limit = parts.patience;
        return Ok(Refund::Open(format!("no answer within {limit:?}")));
    };
    crash_point("shop.refund_answered");
    match answer {
        Ok(Refunded::Money) => {
            let mut tx = begin(&parts.pool).await?;
            if store::refund(&mut tx, dossier.payment).await? {
                let (state, what) = (OrderState::Compensating, EventType::PaymentRefunded);
                let clock = &parts.clock;
                let events = orders::tell(&mut tx, dossier, state, None, what, clock).await?;
                parts.commit(tx, dossier.order, events).await?;
            }
            Ok(Refund::Done)
        }
        Ok(Refunded::Nothing) => {
            let notice = Notice::PaymentUnanswered;
            fail(parts, dossier, &Setback::Unanswered, notice).await?;
            Ok(Refund::Done)
        }
        Err(RefundError::Refused(why) | RefundError::Unanswered(why)) => Ok(Refund::Open(why)),
    }
}

async fn state(parts: &Parts, dossier: &Dossier) -> Result<Option<PaymentState>, Error> {
    let mut connection = parts.pool.acquire().await?;
    Ok(store::state(&mut connection, dossier.payment).await?)
}

fn given_up() -> Charge {
    Charge::Failed(Setback::Undone("the payment was given up".to_owned()))
}
