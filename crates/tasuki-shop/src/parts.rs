//! What the parts of the shop share: payment, inventory, fulfilment and orders do the same in both
//! flows, and differ only in who tells them to.

use std::sync::Arc;
use std::time::Duration;

use sqlx::{PgConnection, PgPool, Postgres, Transaction};
use tasuki::Clock;
use tasuki::choreography::Choreography;
use tasuki::jobs::Jobs;
use tasuki::outbox::{Event, Outbox};
use tasuki::testing::crash_point;
use tasuki_contract::ids::OrderId;

use crate::domain::Item;
use crate::entitlement::Entitlements;
use crate::errands::Pace;
use crate::error::Error;
use crate::gateway::Gateway;
use crate::orders::{self, Dossier};
use crate::store::notices;
use crate::store::orders::{self as store, Standing};

/// Operators' notices by kind.
const NOTICES_TOTAL: &str = "tasuki_shop_operator_notices_total";

/// Everything that a part needs. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Parts {
    pub(crate) pool: PgPool,
    pub(crate) clock: Clock,
    pub(crate) outbox: Outbox,
    pub(crate) story: Choreography,
    pub(crate) jobs: Jobs,
    pub(crate) gateway: Arc<dyn Gateway>,
    pub(crate) entitlements: Entitlements,
    /// How long the payment provider may take to answer.
    pub(crate) patience: Duration,
    /// How long goods are set aside for an order.
    pub(crate) hold: Duration,
    /// How often calls elsewhere are tried.
    pub(crate) pace: Pace,
}

/// What an operator is told of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Notice {
    PaymentDeclined,
    PaymentUnanswered,
    RefundFailed,
    RevocationFailed,
}

impl Notice {
    const ALL: [Self; 4] = [
        Self::PaymentDeclined,
        Self::PaymentUnanswered,
        Self::RefundFailed,
        Self::RevocationFailed,
    ];

    /// Reads [`as_str`](Self::as_str).
    pub(crate) fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == text)
    }

    /// Those that somebody should do something about. A card that is declined is between the customer
    /// and the bank.
    pub(crate) fn urgent() -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().filter(|kind| kind.is_urgent())
    }

    const fn is_urgent(self) -> bool {
        !matches!(self, Self::PaymentDeclined)
    }

    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::PaymentDeclined => "PAYMENT_DECLINED",
            Self::PaymentUnanswered => "PAYMENT_UNANSWERED",
            Self::RefundFailed => "REFUND_FAILED",
            Self::RevocationFailed => "REVOCATION_FAILED",
        }
    }
}

impl Parts {
    /// An order by its id.
    pub(crate) async fn dossier(&self, order: OrderId) -> Result<Dossier, Error> {
        let mut connection = self.pool.acquire().await?;
        orders::load(&mut connection, order).await
    }

    /// How an order stands at this moment.
    pub(crate) async fn standing(&self, order: OrderId) -> Result<Standing, Error> {
        let mut connection = self.pool.acquire().await?;
        let standing = store::lock(&mut connection, order).await?;
        standing.ok_or(Error::NoOrder)
    }

    /// Who wants an order undone, if anybody does.
    pub(crate) async fn cancelled_by(&self, order: OrderId) -> Result<Option<String>, Error> {
        Ok(self.standing(order).await?.cancel_requested_by)
    }

    /// The items of an order, and what entitlement said of each.
    pub(crate) async fn items(&self, order: OrderId) -> Result<Vec<(Item, Option<String>)>, Error> {
        let mut connection = self.pool.acquire().await?;
        Ok(store::items(&mut connection, order).await?)
    }

    /// Writes `events` into the transaction, as the part of the order's story that they are.
    pub(crate) async fn tell(
        &self,
        tx: &mut PgConnection,
        order: OrderId,
        events: Vec<Event>,
    ) -> Result<(), Error> {
        if !events.is_empty() {
            self.story.begin(tx, &order.to_string(), events).await?;
        }
        Ok(())
    }

    /// Commits what an outside call came to, with the events that tell of it.
    pub(crate) async fn commit(
        &self,
        mut tx: Transaction<'static, Postgres>,
        order: OrderId,
        events: Vec<Event>,
    ) -> Result<(), Error> {
        self.tell(&mut tx, order, events).await?;
        crash_point("shop.before_commit");
        tx.commit().await?;
        crash_point("shop.committed");
        self.outbox.ring();
        self.jobs.ring();
        Ok(())
    }

    /// Tells an operator, once: a row that is shown, a line in the log, a number for an alert. What
    /// happens every day, and is nobody's fault, is told more quietly.
    pub(crate) async fn alert(
        &self,
        tx: &mut PgConnection,
        notice: Notice,
        dossier: &Dossier,
        message: &str,
    ) -> Result<(), Error> {
        let (kind, payment) = (notice.as_str(), dossier.payment);
        let order = dossier.order;
        if notices::tell(tx, kind, payment.as_uuid(), order.as_uuid(), message).await? {
            metrics::counter!(NOTICES_TOTAL, "kind" => kind).increment(1);
            if notice.is_urgent() {
                tracing::error!(
                    payment.id = %payment,
                    order.id = %order,
                    kind,
                    why = message,
                    "an operator must know of a payment",
                );
            } else {
                tracing::info!(
                    payment.id = %payment,
                    order.id = %order,
                    kind,
                    why = message,
                    "a payment failed",
                );
            }
        }
        Ok(())
    }
}
