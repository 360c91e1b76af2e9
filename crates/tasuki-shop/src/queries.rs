//! What can be read: an order with its story, stock, notices.

use sqlx::{PgConnection, PgPool};
use tasuki::saga::{Sagas, State};
use tasuki_contract::ids::OrderId;
use tasuki_contract::shop::{self as wire, Flow, OrderState, Warehouse};

use crate::domain::is_final;
use crate::error::Error;
use crate::parts::Notice;
use crate::store::orders::OrderRow;
use crate::store::{notices, orders, stock};

/// Reads, on connections of `pool`.
#[derive(Clone, Debug)]
pub(crate) struct Queries {
    pub(crate) pool: PgPool,
    pub(crate) sagas: Sagas,
    /// The database of the other warehouse.
    pub(crate) overflow: Option<PgPool>,
}

impl Queries {
    /// An order, its items and its history.
    pub(crate) async fn order(&self, order: OrderId) -> Result<Option<wire::Order>, Error> {
        let mut connection = self.pool.acquire().await?;
        let Some(row) = orders::find(&mut connection, order, false).await? else {
            return Ok(None);
        };
        let state = self.state(&mut connection, &row).await?;
        let items = orders::items(&mut connection, order).await?.into_iter();
        let items = items.map(|(item, granted)| wire::PricedItem {
            stock_keeping_unit: item.sku,
            quantity: item.quantity,
            price: item.price,
            granted,
        });
        let history = orders::history(&mut connection, order).await?.into_iter();
        let history = history.map(|past| wire::OrderChange {
            state: past.state,
            at: past.at,
            note: past.note,
        });
        let failure = row.failure;
        let dossier = row.dossier;
        Ok(Some(wire::Order {
            order_id: order,
            saga_id: order,
            user_id: dossier.user,
            state,
            flow: dossier.flow,
            amount: dossier.money.amount,
            currency: dossier.money.currency,
            payment_method: dossier.payment_method,
            payment_id: dossier.payment,
            reservation_id: dossier.reservation,
            items: items.collect(),
            failure: failure.map(|(code, message)| wire::OrderFailure { code, message }),
            history: history.collect(),
            created_at: row.created_at,
            updated_at: row.updated_at,
        }))
    }

    /// How far an order is. Whether a saga is stuck, the saga knows.
    pub(crate) async fn state(
        &self,
        connection: &mut PgConnection,
        row: &OrderRow,
    ) -> Result<OrderState, Error> {
        if row.dossier.flow == Flow::Choreographed || is_final(row.state) {
            return Ok(row.state);
        }
        let saga = self
            .sagas
            .get(connection, row.dossier.order.as_uuid().into())
            .await?;
        let is_stuck = saga.is_some_and(|saga| saga.state == State::NeedsAttention);
        Ok(if is_stuck {
            OrderState::NeedsAttention
        } else {
            row.state
        })
    }

    /// What is on hand of a SKU, in each warehouse that there is.
    pub(crate) async fn stock(&self, sku: &str) -> Result<Vec<wire::Stock>, Error> {
        let pools = [
            (Warehouse::Main, Some(&self.pool)),
            (Warehouse::Overflow, self.overflow.as_ref()),
        ];
        let mut found = Vec::new();
        for (warehouse, pool) in pools {
            let Some(pool) = pool else { continue };
            let mut connection = pool.acquire().await?;
            let (on_hand, reserved) = stock::read(&mut connection, sku).await?.unwrap_or_default();
            found.push(wire::Stock {
                stock_keeping_unit: sku.to_owned(),
                warehouse,
                on_hand,
                reserved,
            });
        }
        Ok(found)
    }

    /// What operators were told before the notice of this number, at most `limit`: of one kind, or all
    /// that somebody should do something about.
    pub(crate) async fn notices(
        &self,
        kind: Option<Notice>,
        before: i64,
        limit: u16,
    ) -> Result<wire::Notices, Error> {
        let text = |kind: Notice| kind.as_str().to_owned();
        let kinds = kind.map_or_else(|| Notice::urgent().map(text).collect(), |it| vec![text(it)]);
        let mut connection = self.pool.acquire().await?;
        let wanted = i64::from(limit);
        // One more than is shown: whether there are any more.
        let rows = notices::before(&mut connection, &kinds, before, wanted + 1).await?;
        let is_last = rows.len() <= usize::from(limit);
        let notices = rows
            .into_iter()
            .take(usize::from(limit))
            .map(|row| wire::Notice {
                notice_id: row.notice_id,
                kind: row.kind,
                payment_id: row.payment_id.into(),
                order_id: row.order_id.into(),
                message: row.message,
                at: row.told_at,
            });
        let notices: Vec<_> = notices.collect();
        let last = notices.last().map(|notice| notice.notice_id);
        Ok(wire::Notices {
            notices,
            next: last.filter(|_| !is_last),
        })
    }
}
