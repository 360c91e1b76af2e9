//! What callers ask for: an order, its cancellation, goods that arrive. Each is one transaction with
//! whatever moves it on: the saga, or the first event.

use sqlx::{PgConnection, PgPool};
use tasuki::Clock;
use tasuki::idempotency::{Answer, Keys, Outcome, Reply, Request};
use tasuki::saga::{Definition, Sagas};
use tasuki::testing::crash_point;
use tasuki_contract::error::ErrorBody;
use tasuki_contract::ids::OrderId;
use tasuki_contract::shop::{
    CURRENCY_CONFLICT, Flow, OrderState, OrderTaken, PRODUCT_NOT_FOUND, QUANTITY_CONFLICT,
    ReceiptBody, Stock, Warehouse,
};

use crate::domain::{Basket, Unsellable, is_final};
use crate::error::Error;
use crate::orchestrated::Carried;
use crate::orders;
use crate::parts::Parts;
use crate::queries::Queries;
use crate::store::stock;

/// Does commands.
#[derive(Clone, Debug)]
pub(crate) struct Commands {
    pub(crate) pool: PgPool,
    pub(crate) keys: Keys,
    pub(crate) clock: Clock,
    pub(crate) parts: Parts,
    pub(crate) sagas: Sagas,
    pub(crate) definition: Definition<Carried>,
    pub(crate) queries: Queries,
}

impl Commands {
    /// Takes an order, once per key. It is durable when this returns, and goes on by itself.
    pub(crate) async fn place(&self, request: &Request, basket: Basket) -> Result<Outcome, Error> {
        let placing = self.keys.once(&self.pool, request, async |tx| {
            let taken = match self.take(tx, basket).await {
                Err(Error::Unsellable(why)) => return refused(why),
                taken => taken?,
            };
            crash_point("shop.order_taken");
            let reply = Reply::new(202, serde_json::to_vec(&taken)?);
            Ok::<_, Error>(Answer::Decided(reply))
        });
        let placed = placing.await?;
        self.sagas.ring();
        self.parts.outbox.ring();
        Ok(placed)
    }

    async fn take(&self, tx: &mut PgConnection, basket: Basket) -> Result<OrderTaken, Error> {
        let dossier = orders::take(tx, basket, &self.clock).await?;
        let order_id = dossier.order;
        match dossier.flow {
            Flow::Orchestrated => {
                let carried = Carried {
                    order_id,
                    payment_id: dossier.payment,
                    reservation_id: dossier.reservation,
                };
                let saga = order_id.as_uuid().into();
                self.sagas
                    .start_as(tx, saga, &self.definition, &carried)
                    .await?;
            }
            Flow::Choreographed => {
                let events = orders::create(tx, &dossier, &self.clock).await?;
                self.parts.tell(tx, order_id, events).await?;
            }
        }
        Ok(OrderTaken {
            order_id,
            saga_id: order_id,
            state: OrderState::Started,
        })
    }

    /// Wants an order undone. Says how far it is.
    pub(crate) async fn cancel(&self, order: OrderId, by: &str) -> Result<OrderTaken, Error> {
        let mut tx = tasuki::begin(&self.pool).await?;
        let found = orders::cancel(&mut tx, order, by).await?;
        // A saga that turns back before its first step undoes nothing, and nobody would end the order:
        // one that has not begun finds out by itself.
        let has_begun = found.state != OrderState::Started;
        if found.dossier.flow == Flow::Orchestrated && has_begun && !is_final(found.state) {
            let saga = order.as_uuid().into();
            self.sagas
                .cancel(&mut tx, saga, by, "the order was cancelled")
                .await?;
        }
        let state = self.queries.state(&mut tx, &found).await?;
        tx.commit().await?;
        self.sagas.ring();
        Ok(OrderTaken {
            order_id: order,
            saga_id: order,
            state,
        })
    }

    /// Goods arrive in the main warehouse, once per key.
    pub(crate) async fn receive(
        &self,
        request: &Request,
        body: &ReceiptBody,
    ) -> Result<Outcome, Error> {
        let receiving = self.keys.once(&self.pool, request, async |tx| {
            let sku = body.stock_keeping_unit.as_str();
            let (on_hand, reserved) = stock::add(tx, sku, body.quantity, ("RECEIPT", None)).await?;
            let stock = Stock {
                stock_keeping_unit: sku.to_owned(),
                warehouse: Warehouse::Main,
                on_hand,
                reserved,
            };
            let reply = Reply::new(200, serde_json::to_vec(&stock)?);
            Ok::<_, Error>(Answer::Decided(reply))
        });
        receiving.await
    }
}

/// What the catalogue does not allow is a decision, and kept like one: the prices of a later day would
/// give another.
fn refused(why: Unsellable) -> Result<Answer, Error> {
    let code = match &why {
        Unsellable::Unknown(_) => PRODUCT_NOT_FOUND,
        Unsellable::Currencies(..) => CURRENCY_CONFLICT,
        Unsellable::OnlyOne(_) => QUANTITY_CONFLICT,
        Unsellable::Free | Unsellable::TooMuch => return Err(why.into()),
    };
    let body = ErrorBody {
        code: code.into(),
        message: why.to_string(),
    };
    let reply = Reply::new(409, serde_json::to_vec(&body)?);
    Ok(Answer::Decided(reply))
}
