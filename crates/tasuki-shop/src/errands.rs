//! What the choreographed flow asks elsewhere: jobs that are promised by the transaction that decides
//! on them.
//!
//! Each may run again at any time, also after it has ended: its keys are those of the order, and what
//! it comes to is one step of the tables in [`crate::payments`] and [`crate::fulfilment`], made once.
//! One that gives up on the way forward, or dies there for whatever reason, hands over to the one that
//! undoes it, in one transaction, and only if nothing has come of it. One that can't undo is dead,
//! needs a person, and can be redriven (`tasuki dlq`).

use std::time::Duration;

use serde::{Deserialize, Serialize};
use sqlx::{PgConnection, Postgres, Transaction};
use tasuki::begin;
use tasuki::jobs::{BoxError, Context, Failure, Handler, Job, Priority, Registry};
use tasuki::retry::{Backoff, Policy};
use tasuki::testing::crash_point;
use tasuki_contract::ids::OrderId;
use tasuki_contract::shop::{Flow, OrderState};

use crate::domain::Setback;
use crate::error::Error;
use crate::fulfilment;
use crate::orders::{self, Dossier};
use crate::parts::{Notice, Parts};
use crate::payments::{self, Charge, Refund};
use crate::store::orders::{self as store, Fulfilment};
use crate::store::payments::PaymentState;

/// Calls of the payment provider.
pub(crate) const PAYMENT: &str = "payment";
/// Calls of entitlement. A queue has slots of its own: one that is slow holds up nobody who needs the
/// other.
pub(crate) const ENTITLEMENT: &str = "entitlement";
/// Where the previous release has put both. Nothing is added there, except by processes of it that still
/// run, and by whoever redrives what has died there.
pub(crate) const BEFORE: &str = "orders";

/// How often calls are tried, as it was when they were promised.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Pace {
    /// On the way forward, at the least.
    pub(crate) tries: u32,
    /// And for how long at the least, in milliseconds.
    pub(crate) persist: u64,
    /// On the way back.
    pub(crate) undo_tries: u32,
    /// The first pause and the longest, in milliseconds.
    pub(crate) base: u64,
    pub(crate) most: u64,
    /// How long one attempt may take, in milliseconds.
    pub(crate) call: u64,
}

/// No call is tried more often, however short the pauses.
const MOST_TRIES: u32 = 100_000;

impl Pace {
    fn backoff(self) -> Backoff {
        let (base, most) = (
            Duration::from_millis(self.base),
            Duration::from_millis(self.most),
        );
        Backoff::exponential(base, most).jitter(0.5, 1.5)
    }

    /// Attempts on the way forward: so many that the pauses between them last for as long as they
    /// have to, whatever chance makes of them. An attempt that is refused at once costs no time, and an
    /// outage of seconds must not undo what was paid.
    pub(crate) fn tries(self) -> u32 {
        let (backoff, enough) = (self.backoff(), Duration::from_millis(self.persist));
        let (mut attempt, mut waited) = (1, Duration::ZERO);
        while waited < enough && attempt < MOST_TRIES {
            waited += backoff.delay(attempt, 0.0);
            attempt += 1;
        }
        attempt.max(self.tries)
    }

    /// The same for a saga's steps: forward, and back.
    pub(crate) fn policies(self) -> (Policy, Policy) {
        let forward = Policy::new(self.tries(), self.backoff());
        (forward, Policy::new(self.undo_tries, self.backoff()))
    }

    pub(crate) const fn call(self) -> Duration {
        Duration::from_millis(self.call)
    }
}

/// Takes the money for an order.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ChargeErrand {
    pub(crate) order: OrderId,
    pub(crate) pace: Pace,
}

/// Gives it back.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct RefundErrand {
    pub(crate) order: OrderId,
    pub(crate) pace: Pace,
}

/// Grants what was ordered.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct GrantErrand {
    pub(crate) order: OrderId,
    pub(crate) pace: Pace,
}

/// Takes it back.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct RevokeErrand {
    pub(crate) order: OrderId,
    pub(crate) pace: Pace,
}

macro_rules! errands {
    ($($errand:ident: $kind:literal in $queue:ident, $priority:ident, $tries:expr;)+) => {$(
        impl $errand {
            /// The one of an order.
            pub(crate) const fn of(parts: &Parts, dossier: &Dossier) -> Self {
                Self {
                    order: dossier.order,
                    pace: parts.pace,
                }
            }
        }

        impl Job for $errand {
            const KIND: &'static str = $kind;
            const QUEUE: &'static str = $queue;

            fn priority(&self) -> Priority {
                Priority::$priority
            }

            fn tries(&self) -> u32 {
                let tries: fn(Pace) -> u32 = $tries;
                tries(self.pace)
            }

            fn timeout(&self) -> Duration {
                self.pace.call()
            }

            fn backoff(&self) -> Backoff {
                self.pace.backoff()
            }

            fn unique_id(&self) -> Option<String> {
                Some(self.order.to_string())
            }
        }
    )+};
}

// What is owed to somebody goes before what is new.
errands! {
    ChargeErrand: "shop.charge" in PAYMENT, Normal, Pace::tries;
    RefundErrand: "shop.refund" in PAYMENT, High, |pace| pace.undo_tries;
    GrantErrand: "shop.grant" in ENTITLEMENT, Normal, Pace::tries;
    RevokeErrand: "shop.revoke" in ENTITLEMENT, High, |pace| pace.undo_tries;
}

/// Who runs them.
pub(crate) fn registry(parts: &Parts) -> Registry {
    Registry::new()
        .on::<ChargeErrand, _>(Runs(parts.clone()))
        .on::<RefundErrand, _>(Runs(parts.clone()))
        .on::<GrantErrand, _>(Runs(parts.clone()))
        .on::<RevokeErrand, _>(Runs(parts.clone()))
}

/// Promises `errand` in the transaction that decides on it, in the choreographed flow; a saga knows by
/// itself what comes next.
pub(crate) async fn promise<J: Job>(
    parts: &Parts,
    tx: &mut PgConnection,
    dossier: &Dossier,
    errand: &J,
) -> Result<(), Error> {
    if dossier.flow == Flow::Choreographed {
        parts.jobs.enqueue(tx, errand).await?;
    }
    Ok(())
}

struct Runs(Parts);

impl Runs {
    /// Whether nothing is to be tried again: this was the last attempt, or the order is cancelled.
    async fn gives_up(&self, order: OrderId, context: &Context) -> Result<bool, Error> {
        Ok(context.is_last_attempt() || self.0.cancelled_by(order).await?.is_some())
    }

    /// Ends an attempt that came to nothing: it is tried again, or the charge is given up.
    async fn uncharged(
        &self,
        dossier: &Dossier,
        context: &Context,
        why: Error,
    ) -> Result<(), Failure> {
        if why.is_away() || !self.gives_up(dossier.order, context).await? {
            return Err(why.into());
        }
        let mut tx = begin(&self.0.pool).await?;
        payments::give_up(&self.0, &mut tx, dossier, PaymentState::Pending).await?;
        Ok(self.handed_over(tx).await?)
    }

    /// The same of a grant.
    async fn ungranted(
        &self,
        dossier: &Dossier,
        context: &Context,
        why: Error,
    ) -> Result<(), Failure> {
        if why.is_away() || !self.gives_up(dossier.order, context).await? {
            return Err(why.into());
        }
        let mut tx = begin(&self.0.pool).await?;
        fulfilment::give_up(&self.0, &mut tx, dossier, Fulfilment::Open).await?;
        Ok(self.handed_over(tx).await?)
    }

    async fn handed_over(&self, tx: Transaction<'static, Postgres>) -> Result<(), Error> {
        tx.commit().await?;
        crash_point("shop.handed_over");
        self.0.jobs.ring();
        Ok(())
    }

    /// Shows that an order can't be undone by itself, and tells an operator.
    async fn stuck(
        &self,
        tx: &mut PgConnection,
        dossier: &Dossier,
        notice: Notice,
        why: &str,
    ) -> Result<(), BoxError> {
        store::advance(tx, dossier.order, OrderState::NeedsAttention, Some(why)).await?;
        let told = format!("payment {} can't be undone: {why}", dossier.payment);
        self.0.alert(tx, notice, dossier, &told).await?;
        Ok(())
    }
}

impl Handler<ChargeErrand> for Runs {
    async fn run(&self, errand: ChargeErrand, context: Context) -> Result<(), Failure> {
        let dossier = self.0.dossier(errand.order).await?;
        if let Some(by) = self.0.cancelled_by(errand.order).await? {
            let why = Setback::Cancelled(by).into();
            return self.uncharged(&dossier, &context, why).await;
        }
        match payments::charge(&self.0, &dossier).await {
            Ok(Charge::Completed | Charge::Failed(_)) => Ok(()),
            Ok(Charge::Unanswered(why)) => {
                let why = Error::Unanswered(why);
                self.uncharged(&dossier, &context, why).await
            }
            Err(error) => self.uncharged(&dossier, &context, error).await,
        }
    }

    /// It may have charged: whatever it died of, that is undone.
    async fn failed(
        &self,
        tx: &mut PgConnection,
        errand: &ChargeErrand,
        _error: &str,
    ) -> Result<(), BoxError> {
        let dossier = orders::load(tx, errand.order).await?;
        payments::give_up(&self.0, tx, &dossier, PaymentState::Pending).await?;
        Ok(())
    }
}

impl Handler<RefundErrand> for Runs {
    async fn run(&self, errand: RefundErrand, _: Context) -> Result<(), Failure> {
        let dossier = self.0.dossier(errand.order).await?;
        match payments::refund(&self.0, &dossier).await? {
            Refund::Done => Ok(()),
            Refund::Open(why) => Err(Error::Unanswered(why).into()),
        }
    }

    async fn failed(
        &self,
        tx: &mut PgConnection,
        errand: &RefundErrand,
        error: &str,
    ) -> Result<(), BoxError> {
        let dossier = orders::load(tx, errand.order).await?;
        store::lock(tx, errand.order).await?;
        if payments::is_open(tx, &dossier).await? {
            let notice = Notice::RefundFailed;
            self.stuck(tx, &dossier, notice, error).await?;
        }
        Ok(())
    }
}

impl Handler<GrantErrand> for Runs {
    async fn run(&self, errand: GrantErrand, context: Context) -> Result<(), Failure> {
        let dossier = self.0.dossier(errand.order).await?;
        if let Some(by) = self.0.cancelled_by(errand.order).await? {
            let why = Setback::Cancelled(by).into();
            return self.ungranted(&dossier, &context, why).await;
        }
        match fulfilment::grant(&self.0, &dossier).await {
            // Also when one was refused: then its undoing is promised.
            Ok(_) => Ok(()),
            Err(error) => self.ungranted(&dossier, &context, error).await,
        }
    }

    /// It may have granted: whatever it died of, that is taken back.
    async fn failed(
        &self,
        tx: &mut PgConnection,
        errand: &GrantErrand,
        _error: &str,
    ) -> Result<(), BoxError> {
        let dossier = orders::load(tx, errand.order).await?;
        fulfilment::give_up(&self.0, tx, &dossier, Fulfilment::Open).await?;
        Ok(())
    }
}

impl Handler<RevokeErrand> for Runs {
    async fn run(&self, errand: RevokeErrand, _: Context) -> Result<(), Failure> {
        let dossier = self.0.dossier(errand.order).await?;
        Ok(fulfilment::revoke(&self.0, &dossier).await?)
    }

    async fn failed(
        &self,
        tx: &mut PgConnection,
        errand: &RevokeErrand,
        error: &str,
    ) -> Result<(), BoxError> {
        let dossier = orders::load(tx, errand.order).await?;
        if fulfilment::is_open(tx, &dossier).await? {
            let notice = Notice::RevocationFailed;
            self.stuck(tx, &dossier, notice, error).await?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attempts_last_as_long_as_they_have_to_whatever_the_pauses() {
        let pace = Pace {
            tries: 5,
            persist: 60_000,
            undo_tries: 20,
            base: 200,
            most: 30_000,
            call: 1000,
        };
        let least = |tries: u32| -> Duration {
            let waits = 1..tries;
            waits
                .map(|attempt| pace.backoff().delay(attempt, 0.0))
                .sum()
        };
        assert!(least(pace.tries()) >= Duration::from_secs(60));
        assert!(least(pace.tries() - 1) < Duration::from_secs(60));
        let brief = Pace { persist: 0, ..pace };
        assert_eq!(brief.tries(), 5);
        let tight = Pace {
            most: 1,
            base: 1,
            persist: u64::MAX,
            ..pace
        };
        assert_eq!(tight.tries(), MOST_TRIES);
    }
}
