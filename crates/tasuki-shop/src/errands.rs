//! What the choreographed flow asks elsewhere: jobs that a reaction has promised.
//!
//! Each may run again at any time: its keys are those of the order, and what it comes to is recorded
//! once. One that gives up on the way forward hands over to the one that undoes it; one that can't
//! undo is dead, needs a person, and can be redriven (`tasuki dlq`).

use std::time::Duration;

use serde::{Deserialize, Serialize};
use sqlx::PgConnection;
use tasuki::begin;
use tasuki::jobs::{BoxError, Context, Failure, Handler, Job, Registry};
use tasuki::retry::{Backoff, Policy};
use tasuki_contract::ids::OrderId;
use tasuki_contract::shop::OrderState;

use crate::error::Error;
use crate::fulfilment;
use crate::orders;
use crate::parts::{Notice, Parts};
use crate::payments::{self, Charge, Refund};
use crate::store::orders as store;

/// The queue of these jobs.
pub(crate) const QUEUE: &str = "orders";

/// How often calls are tried, as it was when they were promised.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Pace {
    /// On the way forward.
    pub(crate) tries: u32,
    /// On the way back.
    pub(crate) undo_tries: u32,
    /// The first pause and the longest, in milliseconds.
    pub(crate) base: u64,
    pub(crate) most: u64,
    /// How long one attempt may take, in milliseconds.
    pub(crate) call: u64,
}

impl Pace {
    fn backoff(self) -> Backoff {
        let (base, most) = (
            Duration::from_millis(self.base),
            Duration::from_millis(self.most),
        );
        Backoff::exponential(base, most).jitter(0.5, 1.5)
    }

    /// The same for a saga's steps: forward, and back.
    pub(crate) fn policies(self) -> (Policy, Policy) {
        let forward = Policy::new(self.tries, self.backoff());
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

/// Takes it back: these SKUs, or whatever was granted if nobody knows.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct RevokeErrand {
    pub(crate) order: OrderId,
    pub(crate) granted: Option<Vec<String>>,
    pub(crate) pace: Pace,
}

macro_rules! errands {
    ($($errand:ident: $kind:literal, $tries:expr;)+) => {$(
        impl Job for $errand {
            const KIND: &'static str = $kind;
            const QUEUE: &'static str = QUEUE;

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

errands! {
    ChargeErrand: "shop.charge", |pace| pace.tries;
    RefundErrand: "shop.refund", |pace| pace.undo_tries;
    GrantErrand: "shop.grant", |pace| pace.tries;
    RevokeErrand: "shop.revoke", |pace| pace.undo_tries;
}

/// Who runs them.
pub(crate) fn registry(parts: &Parts) -> Registry {
    Registry::new()
        .on::<ChargeErrand, _>(Runs(parts.clone()))
        .on::<RefundErrand, _>(Runs(parts.clone()))
        .on::<GrantErrand, _>(Runs(parts.clone()))
        .on::<RevokeErrand, _>(Runs(parts.clone()))
}

struct Runs(Parts);

impl Runs {
    /// Promises `job` instead of the one that runs.
    async fn hand_over<J: Job>(&self, job: &J) -> Result<(), Error> {
        let mut tx = begin(&self.0.pool).await?;
        self.0.jobs.enqueue(&mut tx, job).await?;
        tx.commit().await?;
        self.0.jobs.ring();
        Ok(())
    }

    /// Whether nothing is to be tried again: this was the last attempt, or the order is cancelled.
    async fn gives_up(&self, order: OrderId, context: &Context) -> Result<bool, Error> {
        Ok(context.is_last_attempt() || self.0.cancelled_by(order).await?.is_some())
    }

    /// Shows that an order can't be undone by itself, and tells an operator.
    async fn stuck(
        &self,
        tx: &mut PgConnection,
        order: OrderId,
        notice: Notice,
        why: &str,
    ) -> Result<(), BoxError> {
        let dossier = orders::load(tx, order).await?;
        store::advance(tx, order, OrderState::NeedsAttention, Some(why)).await?;
        let told = format!("payment {} can't be undone: {why}", dossier.payment);
        self.0.alert(tx, notice, &dossier, &told).await?;
        Ok(())
    }
}

impl Handler<ChargeErrand> for Runs {
    async fn run(&self, errand: ChargeErrand, context: Context) -> Result<(), Failure> {
        let ChargeErrand { order, pace } = errand;
        let dossier = self.0.dossier(order).await?;
        match payments::charge(&self.0, &dossier).await? {
            Charge::Completed | Charge::Failed(_) => Ok(()),
            Charge::Unanswered(why) => {
                if !self.gives_up(order, &context).await? {
                    return Err(Error::Unanswered(why).into());
                }
                Ok(self.hand_over(&RefundErrand { order, pace }).await?)
            }
        }
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
        connection: &mut PgConnection,
        errand: &RefundErrand,
        error: &str,
    ) -> Result<(), BoxError> {
        let notice = Notice::RefundFailed;
        self.stuck(connection, errand.order, notice, error).await
    }
}

impl Handler<GrantErrand> for Runs {
    async fn run(&self, errand: GrantErrand, context: Context) -> Result<(), Failure> {
        let GrantErrand { order, pace } = errand;
        let dossier = self.0.dossier(order).await?;
        let granted = match fulfilment::grant(&self.0, &dossier).await {
            Ok(grants) if grants.setback.is_none() => return Ok(()),
            Ok(grants) => Some(grants.granted),
            Err(error) => {
                if !self.gives_up(order, &context).await? {
                    return Err(error.into());
                }
                None
            }
        };
        let revoke = RevokeErrand {
            order,
            granted,
            pace,
        };
        Ok(self.hand_over(&revoke).await?)
    }
}

impl Handler<RevokeErrand> for Runs {
    async fn run(&self, errand: RevokeErrand, _: Context) -> Result<(), Failure> {
        let dossier = self.0.dossier(errand.order).await?;
        Ok(fulfilment::revoke(&self.0, &dossier, errand.granted.as_deref()).await?)
    }

    async fn failed(
        &self,
        connection: &mut PgConnection,
        errand: &RevokeErrand,
        error: &str,
    ) -> Result<(), BoxError> {
        let notice = Notice::RevocationFailed;
        self.stuck(connection, errand.order, notice, error).await
    }
}
