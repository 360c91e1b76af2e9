//! The order as a chain of events: payment, inventory, fulfilment and orders each react to what the
//! others tell, through inbox and outbox, and nobody conducts.
//!
//! | hears | who | does | tells |
//! | --- | --- | --- | --- |
//! | `OrderCreated` | payment | charges | `PaymentCompleted`, `PaymentFailed` |
//! | `PaymentCompleted` | inventory | sets aside | `StockReserved`, `StockFailed`; `StockReleased` if it was cancelled, or given up before it came |
//! | `StockReserved` | fulfilment | grants | `EntitlementsGranted`; `EntitlementsRevoked` if one is refused |
//! | `EntitlementsGranted` | orders | confirms | `OrderCompleted`, `ConfirmationFailed` |
//! | `ConfirmationFailed` | fulfilment | revokes | `EntitlementsRevoked` |
//! | `EntitlementsRevoked` | inventory | releases | `StockReleased` |
//! | `StockFailed`, `StockReleased` | payment | refunds | `PaymentRefunded` |
//! | `PaymentFailed`, `PaymentRefunded` | orders | ends the order | `OrderCancelled` |
//!
//! A reaction is one transaction. What must be asked elsewhere is a job that the reaction enqueues
//! ([`crate::errands`]); what the job comes to is recorded and told in one transaction as well. How a
//! payment and a grant may move, whoever moves them, say the tables in [`crate::payments`] and
//! [`crate::fulfilment`].

use sqlx::PgConnection;
use tasuki::bus::Delivery;
use tasuki::choreography::Reaction;
use tasuki::jobs::Failure;
use tasuki::outbox::Event;
use tasuki_contract::events::shop::EventType;
use tasuki_contract::shop::OrderState;

use crate::domain::{Setback, is_final};
use crate::errands::{ChargeErrand, GrantErrand};
use crate::error::Error;
use crate::events::{Heard, heard};
use crate::orders;
use crate::parts::Parts;
use crate::store::orders::{self as store, Fulfilment};
use crate::store::payments::{self as payment_store, PaymentState};
use crate::{fulfilment, inventory, payments};

/// One part of the shop, as somebody who hears.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    Payment,
    Inventory,
    Fulfilment,
    Orders,
}

impl Part {
    pub(crate) const ALL: [Self; 4] = [
        Self::Payment,
        Self::Inventory,
        Self::Fulfilment,
        Self::Orders,
    ];

    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Payment => "payment",
            Self::Inventory => "inventory",
            Self::Fulfilment => "fulfilment",
            Self::Orders => "orders",
        }
    }

    /// What it does something about.
    pub(crate) const fn hears(self, what: EventType) -> bool {
        use EventType as It;
        match self {
            Self::Payment => matches!(what, It::OrderCreated | It::StockFailed | It::StockReleased),
            Self::Inventory => matches!(what, It::PaymentCompleted | It::EntitlementsRevoked),
            Self::Fulfilment => matches!(what, It::StockReserved | It::ConfirmationFailed),
            Self::Orders => matches!(
                what,
                It::EntitlementsGranted | It::PaymentFailed | It::PaymentRefunded
            ),
        }
    }
}

/// What a part does when it hears of something.
#[derive(Clone, Debug)]
pub(crate) struct Dancer {
    pub(crate) part: Part,
    pub(crate) parts: Parts,
}

impl Reaction for Dancer {
    fn consumer(&self) -> &str {
        self.part.as_str()
    }

    fn wants(&self, delivery: &Delivery) -> bool {
        // What can't be read is told as such.
        heard(&delivery.payload).map_or(true, |heard| {
            heard.is_some_and(|heard| self.part.hears(heard.what))
        })
    }

    async fn react(
        &self,
        tx: &mut PgConnection,
        delivery: &Delivery,
    ) -> Result<Vec<Event>, Failure> {
        let Some(heard) = heard(&delivery.payload).map_err(Failure::reject)? else {
            return Ok(Vec::new());
        };
        // Also when there is no such order: another copy of the database may not have it yet.
        Ok(self.act(tx, heard).await?)
    }

    fn committed(&self) {
        self.parts.jobs.ring();
    }
}

impl Dancer {
    /// Does what is to be done about `heard`, and says what happened.
    pub(crate) async fn act(
        &self,
        tx: &mut PgConnection,
        heard: Heard,
    ) -> Result<Vec<Event>, Error> {
        match self.part {
            Part::Payment => self.payment(tx, heard).await,
            Part::Inventory => self.inventory(tx, heard).await,
            Part::Fulfilment => self.fulfilment(tx, heard).await,
            Part::Orders => self.orders(tx, heard).await,
        }
    }

    async fn payment(&self, tx: &mut PgConnection, heard: Heard) -> Result<Vec<Event>, Error> {
        let Heard { what, order } = heard;
        match what {
            EventType::OrderCreated => {
                let dossier = orders::load(tx, order).await?;
                store::advance(tx, order, OrderState::PaymentPending, None).await?;
                payment_store::begin(tx, &dossier).await?;
                let charge = ChargeErrand::of(&self.parts, &dossier);
                self.parts.jobs.enqueue(tx, &charge).await?;
            }
            EventType::StockFailed | EventType::StockReleased => {
                let dossier = orders::load(tx, order).await?;
                payments::give_up(&self.parts, tx, &dossier, PaymentState::Completed).await?;
            }
            _ => {}
        }
        Ok(Vec::new())
    }

    async fn inventory(&self, tx: &mut PgConnection, heard: Heard) -> Result<Vec<Event>, Error> {
        let clock = &self.parts.clock;
        match heard.what {
            EventType::PaymentCompleted => {
                let dossier = orders::load(tx, heard.order).await?;
                let standing = store::lock(tx, heard.order).await?;
                let standing = standing.ok_or(Error::NoOrder)?;
                if is_final(standing.state) {
                    return Ok(Vec::new());
                }
                if let Some(by) = standing.cancel_requested_by {
                    store::fail(tx, heard.order, &Setback::Cancelled(by)).await?;
                    return inventory::release(tx, &dossier, clock).await;
                }
                let reserved = inventory::reserve(tx, &dossier, self.parts.hold, clock);
                Ok(reserved.await?.0)
            }
            EventType::EntitlementsRevoked => {
                let dossier = orders::load(tx, heard.order).await?;
                inventory::release(tx, &dossier, clock).await
            }
            _ => Ok(Vec::new()),
        }
    }

    async fn fulfilment(&self, tx: &mut PgConnection, heard: Heard) -> Result<Vec<Event>, Error> {
        let (parts, jobs) = (&self.parts, &self.parts.jobs);
        match heard.what {
            EventType::StockReserved => {
                let dossier = orders::load(tx, heard.order).await?;
                jobs.enqueue(tx, &GrantErrand::of(parts, &dossier)).await?;
            }
            EventType::ConfirmationFailed => {
                let dossier = orders::load(tx, heard.order).await?;
                fulfilment::give_up(parts, tx, &dossier, Fulfilment::Granted).await?;
            }
            _ => {}
        }
        Ok(Vec::new())
    }

    async fn orders(&self, tx: &mut PgConnection, heard: Heard) -> Result<Vec<Event>, Error> {
        let clock = &self.parts.clock;
        match heard.what {
            EventType::EntitlementsGranted => {
                let dossier = orders::load(tx, heard.order).await?;
                match orders::confirm(tx, &dossier, clock).await? {
                    Ok(events) => Ok(events),
                    Err(setback) => {
                        let (state, what) =
                            (OrderState::Compensating, EventType::ConfirmationFailed);
                        let why = Some(&setback);
                        orders::tell(tx, &dossier, state, why, what, clock).await
                    }
                }
            }
            EventType::PaymentFailed | EventType::PaymentRefunded => {
                let dossier = orders::load(tx, heard.order).await?;
                orders::undo(tx, &dossier, clock).await
            }
            _ => Ok(Vec::new()),
        }
    }
}
