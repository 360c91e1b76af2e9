//! The order as one saga: create → charge → reserve → grant → confirm, and back.
//!
//! The confirmation is the pivot: before it everything can be undone, after it nothing is left to do.
//! A refusal of a step (no goods, owned already) is an answer: it is recorded with whatever was done
//! until then, and the step after it turns the saga back. So what a part did before it was refused is
//! undone, and the order shows why.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tasuki::jobs::BoxError;
use tasuki::retry::Policy;
use tasuki::saga::{
    Again, At, Definition, Fail, Invalid, Local, LocalUndo, Remote, RemoteUndo, Step, Tx, define,
};
use tasuki_contract::ids::{OrderId, PaymentId, ReservationId};
use tasuki_contract::shop::OrderState;
use tokio::time::timeout;

use crate::domain::Setback;
use crate::error::Error;
use crate::fulfilment::{self, Grants};
use crate::inventory;
use crate::orders::{self, Dossier};
use crate::parts::{Notice, Parts};
use crate::payments::{self, Charge, Refund};
use crate::store::orders as store;
use crate::store::payments as payment_store;

/// What a saga carries: the rest is the order's row.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Carried {
    pub(crate) order_id: OrderId,
    pub(crate) payment_id: PaymentId,
    pub(crate) reservation_id: ReservationId,
}

/// How patient it is.
#[derive(Clone, Debug)]
pub(crate) struct Patience {
    /// Calls to the payment provider and to entitlement.
    pub(crate) calls: Policy,
    /// The same on the way back: what fails for good needs a person.
    pub(crate) undo: Policy,
    /// One such call.
    pub(crate) call: Duration,
}

/// How long it may take to tell an operator that the time of an attempt was over.
const LAST_WORD: Duration = Duration::from_secs(5);

impl Patience {
    /// An attempt, in its time: one that takes longer fails like any other.
    async fn within(&self, undoing: impl Future<Output = Result<(), Error>>) -> Result<(), Error> {
        let limit = self.call;
        let undone = timeout(limit, undoing).await;
        undone.unwrap_or_else(|_| Err(Error::Unanswered(format!("timed out after {limit:?}"))))
    }

    /// What an attempt to undo came to. If there is no other, an operator is told.
    async fn judge(
        &self,
        parts: &Parts,
        notice: Notice,
        dossier: &Dossier,
        at: &At,
        undone: Result<(), Error>,
    ) -> Result<(), Again> {
        if let Err(error) = &undone
            && !error.is_away()
            && at.attempt() >= self.undo.max_attempts
        {
            stuck(parts, notice, dossier, &error.to_string()).await?;
        }
        Ok(undone?)
    }
}

struct CreateOrder(Parts);
struct ChargePayment(Parts, Patience);
struct ReserveStock(Parts);
struct GrantEntitlement(Parts, Patience);
struct Confirm(Parts);

/// What became of a reservation.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct SetAside {
    setback: Option<Setback>,
}

/// An order that can go on, unless a step before said otherwise.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Onward {
    order_id: OrderId,
    setback: Option<Setback>,
}

/// The saga.
pub(crate) fn definition(
    parts: &Parts,
    patience: &Patience,
) -> Result<Definition<Carried>, Invalid> {
    let of = |parts: &Parts| parts.clone();
    define::<Carried>("order", 1)
        .local(CreateOrder(of(parts)), |saga| Ok(saga.input().order_id))
        .remote(ChargePayment(of(parts), patience.clone()), |saga| {
            Ok(saga.input().order_id)
        })
        .local(ReserveStock(of(parts)), |saga| Ok(saga.input().order_id))
        .remote(GrantEntitlement(of(parts), patience.clone()), |saga| {
            onward(saga.input(), saga.output::<ReserveStock>()?.setback)
        })
        .pivot_local(Confirm(of(parts)), |saga| {
            onward(saga.input(), saga.output::<GrantEntitlement>()?.setback)
        })
        .build()
}

fn onward(carried: &Carried, setback: Option<Setback>) -> Result<Onward, BoxError> {
    Ok(Onward {
        order_id: carried.order_id,
        setback,
    })
}

impl Step for CreateOrder {
    const NAME: &'static str = "create_order";
    type Input = OrderId;
    type Output = ();
    type Failure = Fail<Error>;
}

impl Local for CreateOrder {
    async fn act(&self, tx: &mut Tx, order: &OrderId, _: &At) -> Result<(), Fail<Error>> {
        let db = tx.get().await?;
        let dossier = orders::load(db, *order).await?;
        let events = orders::create(db, &dossier, &self.0.clock).await?;
        payment_store::begin(db, &dossier).await?;
        store::advance(db, *order, OrderState::PaymentPending, None).await?;
        self.0.tell(db, *order, events).await?;
        Ok(())
    }
}

impl LocalUndo for CreateOrder {
    async fn undo(&self, tx: &mut Tx, order: &OrderId, (): &(), _: &At) -> Result<(), Again> {
        let db = tx.get().await?;
        let dossier = orders::load(db, *order).await?;
        let events = orders::undo(db, &dossier, &self.0.clock).await?;
        self.0.tell(db, *order, events).await?;
        Ok(())
    }
}

impl Step for ChargePayment {
    const NAME: &'static str = "charge_payment";
    type Input = OrderId;
    type Output = ();
    type Failure = Fail<Error>;

    fn retry(&self) -> Policy {
        self.1.calls.clone()
    }

    fn undo_retry(&self) -> Policy {
        self.1.undo.clone()
    }

    fn timeout(&self) -> Duration {
        self.1.call + LAST_WORD
    }
}

impl Remote for ChargePayment {
    async fn act(&self, order: &OrderId, at: &At) -> Result<(), Fail<Error>> {
        if at.attempt() == 1
            && let Some(by) = self.0.cancelled_by(*order).await?
        {
            return Err(Fail::abort(Setback::Cancelled(by)));
        }
        let dossier = self.0.dossier(*order).await?;
        match payments::charge(&self.0, &dossier).await? {
            Charge::Completed => Ok(()),
            Charge::Failed(setback) => Err(Fail::abort(setback)),
            Charge::Unanswered(why) => Err(Fail::unknown(Error::Unanswered(why))),
        }
    }
}

impl RemoteUndo for ChargePayment {
    async fn undo(&self, order: &OrderId, _: Option<&()>, at: &At) -> Result<(), Again> {
        let dossier = self.0.dossier(*order).await?;
        let refunding = async {
            match payments::refund(&self.0, &dossier).await? {
                Refund::Done => Ok(()),
                Refund::Open(why) => Err(Error::Unanswered(why)),
            }
        };
        let refunded = self.1.within(refunding).await;
        let notice = Notice::RefundFailed;
        self.1.judge(&self.0, notice, &dossier, at, refunded).await
    }
}

impl Step for ReserveStock {
    const NAME: &'static str = "reserve_stock";
    type Input = OrderId;
    type Output = SetAside;
    type Failure = Fail<Error>;
}

impl Local for ReserveStock {
    async fn act(&self, tx: &mut Tx, order: &OrderId, _: &At) -> Result<SetAside, Fail<Error>> {
        let db = tx.get().await?;
        let dossier = orders::load(db, *order).await?;
        let (hold, clock) = (self.0.hold, &self.0.clock);
        let (events, setback) = inventory::reserve(db, &dossier, hold, clock).await?;
        self.0.tell(db, *order, events).await?;
        Ok(SetAside { setback })
    }
}

impl LocalUndo for ReserveStock {
    async fn undo(
        &self,
        tx: &mut Tx,
        order: &OrderId,
        reserved: &SetAside,
        _: &At,
    ) -> Result<(), Again> {
        if reserved.setback.is_some() {
            return Ok(());
        }
        let db = tx.get().await?;
        let dossier = orders::load(db, *order).await?;
        let events = inventory::release(db, &dossier, &self.0.clock).await?;
        self.0.tell(db, *order, events).await?;
        Ok(())
    }
}

impl Step for GrantEntitlement {
    const NAME: &'static str = "grant_entitlement";
    type Input = Onward;
    type Output = Grants;
    type Failure = Fail<Error>;

    fn retry(&self) -> Policy {
        self.1.calls.clone()
    }

    fn undo_retry(&self) -> Policy {
        self.1.undo.clone()
    }

    fn timeout(&self) -> Duration {
        self.1.call + LAST_WORD
    }
}

impl Remote for GrantEntitlement {
    async fn act(&self, onward: &Onward, _: &At) -> Result<Grants, Fail<Error>> {
        if let Some(setback) = onward.setback.clone() {
            return Err(Fail::abort(setback));
        }
        let dossier = self.0.dossier(onward.order_id).await?;
        // Whatever goes wrong on the way: some of it may have been granted.
        Ok(fulfilment::grant(&self.0, &dossier).await?)
    }
}

impl RemoteUndo for GrantEntitlement {
    async fn undo(&self, onward: &Onward, _: Option<&Grants>, at: &At) -> Result<(), Again> {
        let dossier = self.0.dossier(onward.order_id).await?;
        let revoking = fulfilment::revoke(&self.0, &dossier);
        let revoked = self.1.within(revoking).await;
        let notice = Notice::RevocationFailed;
        self.1.judge(&self.0, notice, &dossier, at, revoked).await
    }
}

impl Step for Confirm {
    const NAME: &'static str = "confirm";
    type Input = Onward;
    type Output = ();
    type Failure = Fail<Error>;
}

impl Local for Confirm {
    async fn act(&self, tx: &mut Tx, onward: &Onward, _: &At) -> Result<(), Fail<Error>> {
        if let Some(setback) = onward.setback.clone() {
            return Err(Fail::abort(setback));
        }
        let db = tx.get().await?;
        let dossier = orders::load(db, onward.order_id).await?;
        match orders::confirm(db, &dossier, &self.0.clock).await? {
            Ok(events) => Ok(self.0.tell(db, onward.order_id, events).await?),
            Err(setback) => Err(Fail::abort(setback)),
        }
    }
}

/// Tells an operator that an order can't be undone by itself.
async fn stuck(parts: &Parts, notice: Notice, dossier: &Dossier, why: &str) -> Result<(), Error> {
    let mut tx = tasuki::begin(&parts.pool).await?;
    let told = format!("payment {} can't be undone: {why}", dossier.payment);
    parts.alert(&mut tx, notice, dossier, &told).await?;
    tx.commit().await?;
    Ok(())
}
