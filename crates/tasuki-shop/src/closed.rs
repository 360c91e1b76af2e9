//! Orders whose sagas a person has closed: nothing would move them any more, so they end as their
//! sagas did. Whether money and goods agree with that is for the comparison to say.

use tasuki::begin;
use tasuki_contract::events::shop::EventType;
use tasuki_contract::ids::OrderId;
use tasuki_contract::shop::OrderState;

use crate::error::Error;
use crate::events::event;
use crate::orders;
use crate::parts::Parts;
use crate::store::orders as store;

/// Orders at a time.
const AT_ONCE: i64 = 100;

/// What their history says.
const NOTE: &str = "closed by hand";

/// Ends them. Says how many they were.
pub(crate) async fn end(parts: &Parts) -> Result<usize, Error> {
    let closed = {
        let mut connection = parts.pool.acquire().await?;
        store::closed(&mut connection, AT_ONCE).await?
    };
    for (order, state) in &closed {
        end_one(parts, *order, *state).await?;
        tracing::info!(order.id = %order, "ended an order whose saga was closed");
    }
    Ok(closed.len())
}

async fn end_one(parts: &Parts, order: OrderId, state: OrderState) -> Result<(), Error> {
    let mut tx = begin(&parts.pool).await?;
    let dossier = orders::load(&mut tx, order).await?;
    let events = if state == OrderState::Completed {
        let moved = store::advance(&mut tx, order, state, Some(NOTE)).await?;
        let what = EventType::OrderCompleted;
        let told = moved.map(|moved| event(&dossier, moved, what, "", &parts.clock));
        told.transpose()?.into_iter().collect()
    } else {
        orders::undo(&mut tx, &dossier, &parts.clock).await?
    };
    parts.commit(tx, order, events).await
}
