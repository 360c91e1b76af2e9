//! Fulfilment: what was bought becomes an entitlement, or is taken back.
//!
//! A grant that entitlement refuses, because the user owns the SKU already, is not this order's: it is
//! never taken back. When nobody knows how a grant ended, it is asked for once more with the same key,
//! which tells, and also takes the key from a request that is still on its way; only then is it undone.

use serde::{Deserialize, Serialize};
use tasuki::begin;
use tasuki::testing::crash_point;
use tasuki_contract::events::shop::EventType;
use tasuki_contract::shop::OrderState;

use crate::domain::{Item, Setback};
use crate::entitlement::Answer;
use crate::error::Error;
use crate::orders::{self, Dossier};
use crate::parts::Parts;
use crate::store::orders as store;

/// What was granted of an order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Grants {
    /// These SKUs, by this order.
    pub(crate) granted: Vec<String>,
    /// Why not all of them.
    pub(crate) setback: Option<Setback>,
}

/// Grants every item, until one is refused; records and tells what came of it.
pub(crate) async fn grant(parts: &Parts, dossier: &Dossier) -> Result<Grants, Error> {
    let mut grants = Grants {
        granted: Vec::with_capacity(dossier.items.len()),
        setback: None,
    };
    let mut refused = Vec::new();
    for item in &dossier.items {
        let answer = parts.entitlements.grant(dossier, item).await;
        let answer = answer.map_err(|error| Error::Unanswered(error.to_string()))?;
        crash_point("shop.granted_one");
        let sku = item.sku.clone();
        grants.setback = match answer {
            Answer::Done => {
                grants.granted.push(sku);
                continue;
            }
            Answer::Conflict(_) => Some(Setback::AlreadyOwned(sku)),
            Answer::Refused(why) => Some(Setback::GrantFailed { sku, why }),
        };
        refused.push(item.sku.clone());
        break;
    }
    let mut tx = begin(&parts.pool).await?;
    store::granted(&mut tx, dossier.order, &grants.granted, "GRANTED").await?;
    store::granted(&mut tx, dossier.order, &refused, "REFUSED").await?;
    let events = match &grants.setback {
        Some(why) => {
            store::fail(&mut tx, dossier.order, why).await?;
            Vec::new()
        }
        None => {
            let (state, what) = (OrderState::StockReserved, EventType::EntitlementsGranted);
            orders::tell(&mut tx, dossier, state, None, what, &parts.clock).await?
        }
    };
    parts.commit(tx, dossier.order, events).await?;
    Ok(grants)
}

/// Takes back what this order was granted: `granted`, or whatever it was if nobody knows.
pub(crate) async fn revoke(
    parts: &Parts,
    dossier: &Dossier,
    granted: Option<&[String]>,
) -> Result<(), Error> {
    let mut gone = Vec::new();
    for item in &dossier.items {
        let is_ours = match granted {
            Some(granted) => granted.contains(&item.sku),
            None => was_granted(parts, dossier, item).await?,
        };
        if !is_ours {
            continue;
        }
        let answer = parts.entitlements.take_back(dossier, item).await;
        let answer = answer.map_err(|error| Error::Unanswered(error.to_string()))?;
        crash_point("shop.revoked_one");
        match answer {
            Answer::Done => {}
            // Somebody else has taken it away meanwhile: that is what was wanted.
            Answer::Conflict(_) if !item.consumable => {}
            Answer::Conflict(why) | Answer::Refused(why) => {
                let sku = item.sku.clone();
                return Err(Setback::GrantFailed { sku, why }.into());
            }
        }
        gone.push(item.sku.clone());
    }
    let mut tx = begin(&parts.pool).await?;
    let found = store::find(&mut tx, dossier.order, true).await?;
    let is_cancelled = found.is_some_and(|found| found.cancel_requested_by.is_some());
    if granted.is_none() && !is_cancelled {
        store::fail(&mut tx, dossier.order, &Setback::GrantUnanswered).await?;
    }
    store::granted(&mut tx, dossier.order, &gone, "REVOKED").await?;
    let (state, what) = (OrderState::Compensating, EventType::EntitlementsRevoked);
    let events = orders::tell(&mut tx, dossier, state, None, what, &parts.clock).await?;
    parts.commit(tx, dossier.order, events).await
}

/// Whether this order's grant of an item has happened; from now on it has, or never will.
async fn was_granted(parts: &Parts, dossier: &Dossier, item: &Item) -> Result<bool, Error> {
    let answer = parts.entitlements.grant(dossier, item).await;
    let answer = answer.map_err(|error| Error::Unanswered(error.to_string()))?;
    Ok(answer == Answer::Done)
}
