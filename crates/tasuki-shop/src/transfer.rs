//! Goods move between two warehouses that live in two databases: all of them, or none.
//!
//! The reference use of two-phase commit. The shop's own database, where the decision is written, is
//! one of the two: what is done there commits with the decision and needs no preparing. The other one
//! prepares, and is told; if it is away just then, or we die, the recovery tells it.
//!
//! A transfer holds the rows of one SKU in both databases until it is decided. That fits here: it is
//! rare, quick, and a moment in which goods are nowhere, or in two places, may not be seen by whoever
//! counts.

use std::sync::Arc;
use std::time::Duration;

use sqlx::PgConnection;
use tasuki::idempotency::{Keys, Opened, Outcome, Reply, Request};
use tasuki::twopc::{Coordinator, Database, Transaction};
use tasuki_contract::error::ErrorBody;
use tasuki_contract::shop::{STOCK_INSUFFICIENT, Transfer, TransferBody, Warehouse};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::error::Error;
use crate::store::stock;

/// What a move is called, in the books and in the log.
const KIND: &str = "TRANSFER";
const NAME: &str = "stock-transfer";

/// Moves stock between the warehouses.
#[derive(Clone, Debug)]
pub(crate) struct Transfers {
    pub(crate) coordinator: Coordinator,
    pub(crate) overflow: Database,
    pub(crate) keys: Keys,
    /// For as many as may be made at the same time.
    pub(crate) room: Arc<Semaphore>,
    /// How long one waits for room, and then for each lock.
    pub(crate) patience: Duration,
}

impl Transfers {
    /// Moves what `body` says, once per key: the answer is kept in the transaction in which the
    /// transfer is decided.
    pub(crate) async fn run(
        &self,
        request: &Request,
        body: &TransferBody,
    ) -> Result<Outcome, Error> {
        let room = timeout(self.patience, self.room.acquire()).await;
        let Ok(Ok(_place)) = room else {
            return Err(Error::Busy);
        };
        let mut tx = self.coordinator.begin(NAME).await?;
        let here = tx.here().await?;
        stock::wait_at_most(here, self.patience).await?;
        let opened = self
            .keys
            .open_all(here, std::slice::from_ref(request))
            .await?;
        match opened.into_iter().next() {
            Some(Opened::Fresh) => {}
            Some(Opened::Stored(reply)) => {
                tx.abort().await;
                return Ok(Outcome::Replayed(reply));
            }
            Some(Opened::InProgress) => {
                tx.abort().await;
                return Err(tasuki::idempotency::Error::InProgress.into());
            }
            _ => {
                tx.abort().await;
                return Err(tasuki::idempotency::Error::Conflict.into());
            }
        }
        let reply = match self.make(&mut tx, body).await {
            Ok(reply) => reply,
            Err(error) => {
                tx.abort().await;
                return Err(error);
            }
        };
        let here = tx.here().await?;
        self.keys.store_all(here, &[(request, &reply)]).await?;
        tx.commit().await?;
        Ok(Outcome::Executed(reply))
    }

    async fn make(&self, tx: &mut Transaction, body: &TransferBody) -> Result<Reply, Error> {
        let id = tx.id();
        let (sku, quantity) = (body.stock_keeping_unit.as_str(), body.quantity);
        let why = (KIND, Some(id.as_uuid()));
        // The shop's own row first, whichever way the goods go: no server would notice two transfers
        // that wait for each other in two databases.
        let is_new = stock::hold(tx.here().await?, sku).await?;
        let from = self.warehouse(tx, body.from).await?;
        if !stock::take(from, sku, quantity, why).await? {
            if is_new {
                stock::let_go(tx.here().await?, sku).await?;
            }
            return refused(body);
        }
        let to = self.warehouse(tx, body.to).await?;
        stock::add(to, sku, quantity, why).await?;
        let made = Transfer {
            transfer_id: id.to_string(),
            stock_keeping_unit: sku.to_owned(),
            quantity,
            from: body.from,
            to: body.to,
        };
        Ok(Reply::new(200, serde_json::to_vec(&made)?))
    }

    async fn warehouse<'a>(
        &self,
        tx: &'a mut Transaction,
        warehouse: Warehouse,
    ) -> Result<&'a mut PgConnection, Error> {
        Ok(match warehouse {
            Warehouse::Main => tx.here().await?,
            Warehouse::Overflow => {
                let there = tx.on(&self.overflow).await?;
                stock::wait_at_most(there, self.patience).await?;
                there
            }
        })
    }
}

/// A decision, and kept like one.
fn refused(body: &TransferBody) -> Result<Reply, Error> {
    let body = ErrorBody {
        code: STOCK_INSUFFICIENT.into(),
        message: format!(
            "there are fewer than {} of {} to be had there",
            body.quantity, body.stock_keeping_unit
        ),
    };
    Ok(Reply::new(409, serde_json::to_vec(&body)?))
}
