//! Fulfilment: what was bought becomes an entitlement, or is taken back.
//!
//! | fulfilment of the order | when | becomes | tells |
//! | --- | --- | --- | --- |
//! | `OPEN` | everything is granted | `GRANTED` | `EntitlementsGranted` |
//! | `OPEN` | one is refused | `REVOKING` | |
//! | `OPEN` | patience ends, it is cancelled, its errand dies | `REVOKING` | |
//! | `GRANTED` | it can't be confirmed, or is cancelled before | `REVOKING` | `ConfirmationFailed` (choreographed) |
//! | `REVOKING` | everything is taken back | `REVOKED` | `EntitlementsRevoked` |
//!
//! Each line is one transaction, which holds the order's row and names the state that it leaves; in the
//! choreographed flow it promises the errand that goes on, too. An order is confirmed only while it is
//! `GRANTED`, so nothing is taken back of a completed one, and nothing that is to be taken back is
//! granted again: whoever comes second finds that it is not his turn. Nothing moves once the order has
//! ended.
//!
//! What is taken back is this order's: a grant that entitlement refuses, because the user owns the SKU
//! already, is not, and entitlement itself says whose an entitlement is ([`crate::entitlement`]). When
//! nobody knows how a grant ended, its key is taken first, so that one that is still on its way is
//! refused.

use serde::{Deserialize, Serialize};
use sqlx::PgConnection;
use tasuki::begin;
use tasuki::testing::crash_point;
use tasuki_contract::events::shop::EventType;
use tasuki_contract::shop::OrderState;

use crate::domain::{Item, Setback, is_final};
use crate::entitlement::{Answer, Unanswered};
use crate::errands::{self, RevokeErrand};
use crate::error::Error;
use crate::orders::{self, Dossier};
use crate::parts::Parts;
use crate::store::orders::{self as store, Fulfilment};

/// What came of granting an order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Grants {
    /// Why not all of it.
    pub(crate) setback: Option<Setback>,
}

/// What entitlement said, item by item.
#[derive(Debug, Default)]
struct Said {
    granted: Vec<String>,
    refused: Vec<String>,
    setback: Option<Setback>,
}

/// Grants every item, until one is refused; records and tells what came of it.
pub(crate) async fn grant(parts: &Parts, dossier: &Dossier) -> Result<Grants, Error> {
    let standing = parts.standing(dossier.order).await?;
    if is_final(standing.state) {
        return Ok(given_up());
    }
    if let Some(grants) = decided(standing.fulfilment) {
        return Ok(grants);
    }
    let mut said = Said::default();
    for item in &dossier.items {
        let answer = ask(parts, dossier, item, standing.is_old).await;
        let answer = answer.map_err(unanswered)?;
        crash_point("shop.granted_one");
        let sku = item.sku.clone();
        said.setback = match answer {
            Answer::Done => {
                said.granted.push(sku);
                continue;
            }
            // Of what is used up one can always own more: there are too many of it.
            Answer::Conflict(why) if item.consumable => Some(Setback::GrantFailed { sku, why }),
            Answer::Conflict(_) => Some(Setback::AlreadyOwned(sku)),
            Answer::NotOurs(why) | Answer::KeyTaken(why) | Answer::Refused(why) => {
                Some(Setback::GrantFailed { sku, why })
            }
        };
        said.refused.push(item.sku.clone());
        break;
    }
    record(parts, dossier, said).await
}

/// Asks for a grant. An old order may have been granted under a key that nobody remembers: what is
/// used up would be granted twice.
async fn ask(
    parts: &Parts,
    dossier: &Dossier,
    item: &Item,
    is_old: bool,
) -> Result<Answer, Unanswered> {
    if is_old && parts.entitlements.past(dossier, item).await?.is_held() {
        return Ok(Answer::Done);
    }
    parts.entitlements.grant(dossier, item).await
}

/// Records what entitlement said, unless somebody was faster: then that stands.
async fn record(parts: &Parts, dossier: &Dossier, said: Said) -> Result<Grants, Error> {
    let order = dossier.order;
    let mut tx = begin(&parts.pool).await?;
    let standing = store::lock(&mut tx, order).await?.ok_or(Error::NoOrder)?;
    let to = match said.setback {
        Some(_) => Fulfilment::Revoking,
        None => Fulfilment::Granted,
    };
    if !store::fulfil(&mut tx, order, Fulfilment::Open, to).await? {
        return Ok(decided(standing.fulfilment).unwrap_or_else(given_up));
    }
    store::granted(&mut tx, order, &said.granted, "GRANTED").await?;
    store::granted(&mut tx, order, &said.refused, "REFUSED").await?;
    let events = match &said.setback {
        Some(why) => {
            store::fail(&mut tx, order, why).await?;
            errands::promise(parts, &mut tx, dossier, &RevokeErrand::of(parts, dossier)).await?;
            Vec::new()
        }
        None => {
            let (state, what) = (OrderState::StockReserved, EventType::EntitlementsGranted);
            orders::tell(&mut tx, dossier, state, None, what, &parts.clock).await?
        }
    };
    parts.commit(tx, order, events).await?;
    Ok(Grants {
        setback: said.setback,
    })
}

/// What was decided before, if anything was.
fn decided(fulfilment: Fulfilment) -> Option<Grants> {
    match fulfilment {
        Fulfilment::Open => None,
        Fulfilment::Granted => Some(Grants { setback: None }),
        Fulfilment::Revoking | Fulfilment::Revoked => Some(given_up()),
    }
}

fn given_up() -> Grants {
    let why = "what was granted is taken back".to_owned();
    Grants {
        setback: Some(Setback::Undone(why)),
    }
}

/// Decides that what was granted, or may have been, is taken back: from here on nothing is granted,
/// and somebody has promised to undo it. Says whether that is decided by this: not when everything was
/// granted and `from` is [`Fulfilment::Open`], because then the order goes on.
pub(crate) async fn give_up(
    parts: &Parts,
    tx: &mut PgConnection,
    dossier: &Dossier,
    from: Fulfilment,
) -> Result<bool, Error> {
    let order = dossier.order;
    let standing = store::lock(tx, order).await?.ok_or(Error::NoOrder)?;
    if !store::fulfil(tx, order, from, Fulfilment::Revoking).await? {
        return Ok(false);
    }
    if from == Fulfilment::Open {
        let why = standing.cancel_requested_by;
        let why = why.map_or(Setback::GrantUnanswered, Setback::Cancelled);
        store::fail(tx, order, &why).await?;
    }
    errands::promise(parts, tx, dossier, &RevokeErrand::of(parts, dossier)).await?;
    Ok(true)
}

/// Takes back what this order was granted. Gives the grant up, if nobody has.
pub(crate) async fn revoke(parts: &Parts, dossier: &Dossier) -> Result<(), Error> {
    let order = dossier.order;
    match parts.standing(order).await?.fulfilment {
        Fulfilment::Revoked => return Ok(()),
        Fulfilment::Revoking => {}
        from @ (Fulfilment::Open | Fulfilment::Granted) => {
            let mut tx = begin(&parts.pool).await?;
            if !give_up(parts, &mut tx, dossier, from).await? {
                return Err(Error::Unanswered(format!("it was {from:?} and is no more")));
            }
            tx.commit().await?;
            crash_point("shop.grant_given_up");
        }
    }
    let mut gone = Vec::new();
    for (item, said) in parts.items(order).await? {
        let was_granted = match said.as_deref() {
            Some("REFUSED" | "REVOKED") => continue,
            said => said.is_some(),
        };
        let is_gone = take_back(parts, dossier, &item, was_granted).await?;
        crash_point("shop.revoked_one");
        if is_gone || was_granted {
            gone.push(item.sku);
        }
    }
    let mut tx = begin(&parts.pool).await?;
    let (from, to) = (Fulfilment::Revoking, Fulfilment::Revoked);
    store::lock(&mut tx, order).await?;
    if !store::fulfil(&mut tx, order, from, to).await? {
        return Ok(());
    }
    store::granted(&mut tx, order, &gone, "REVOKED").await?;
    let (state, what) = (OrderState::Compensating, EventType::EntitlementsRevoked);
    let events = orders::tell(&mut tx, dossier, state, None, what, &parts.clock).await?;
    parts.commit(tx, order, events).await
}

/// Takes an item back, if it is this order's, and says whether it was. From now on it never will be.
async fn take_back(
    parts: &Parts,
    dossier: &Dossier,
    item: &Item,
    was_granted: bool,
) -> Result<bool, Error> {
    let entitlements = &parts.entitlements;
    if !was_granted {
        let closed = entitlements
            .close(dossier, item)
            .await
            .map_err(unanswered)?;
        match closed {
            Answer::Done => return Ok(true),
            // A grant has its key, or the key is forgotten: it may have happened.
            Answer::KeyTaken(_) => {}
            Answer::NotOurs(_) | Answer::Conflict(_) if item.consumable => {}
            Answer::NotOurs(_) | Answer::Conflict(_) => return Ok(false),
            Answer::Refused(why) => return Err(stuck(item, why)),
        }
    }
    if item.consumable {
        let past = entitlements.past(dossier, item).await.map_err(unanswered)?;
        if !past.is_held() {
            return Ok(past.granted);
        }
    }
    let taken = entitlements.take_back(dossier, item).await;
    match taken.map_err(unanswered)? {
        Answer::Done => Ok(true),
        // Somebody has taken it away, or given it anew, meanwhile: what was this order's is gone.
        Answer::NotOurs(_) | Answer::Conflict(_) if !item.consumable => Ok(false),
        Answer::NotOurs(why)
        | Answer::Conflict(why)
        | Answer::KeyTaken(why)
        | Answer::Refused(why) => Err(stuck(item, why)),
    }
}

/// Whether what is to be taken back is still there.
pub(crate) async fn is_open(tx: &mut PgConnection, dossier: &Dossier) -> Result<bool, Error> {
    let standing = store::lock(tx, dossier.order).await?;
    Ok(standing.is_some_and(|it| it.fulfilment == Fulfilment::Revoking))
}

fn stuck(item: &Item, why: String) -> Error {
    let sku = item.sku.clone();
    Setback::GrantFailed { sku, why }.into()
}

#[expect(clippy::needless_pass_by_value, reason = "it maps an error")]
fn unanswered(error: Unanswered) -> Error {
    Error::Unanswered(error.to_string())
}
