//! The rules: what a grant, a revocation, a consumption and the passing of time do to one
//! entitlement. Pure: no database, no clock.
//!
//! `(none) → ACTIVE` by grant, `(none) → REVOKED` by revocation, `ACTIVE ⇄ REVOKED`. Every
//! change makes the next version, the first is 1. What is consumed has a quantity: granting
//! more adds to it, consuming takes all that was asked for or nothing.
//!
//! An ACTIVE entitlement that has run out is revoked before anything else is decided, as a
//! change of its own, so that nobody acts on what is over, whether or not the sweep came first.

use time::OffsetDateTime;

use tasuki_contract::names::{PurchaseId, Reason, Sku, UserId};

/// The reason of a revocation that nobody asked for.
pub(crate) const EXPIRED: &str = "expired";

/// Whether something is owned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Status {
    Active,
    Revoked,
}

impl Status {
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Active => "ACTIVE",
            Self::Revoked => "REVOKED",
        }
    }

    pub(crate) fn parse(text: &str) -> Option<Self> {
        [Self::Active, Self::Revoked]
            .into_iter()
            .find(|status| status.as_str() == text)
    }
}

/// What somebody asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    Grant {
        quantity: Option<i64>,
        expires_at: Option<OffsetDateTime>,
    },
    Revoke {
        /// Only if it was granted for this purchase.
        granted_for: Option<PurchaseId>,
    },
    Consume {
        quantity: i64,
    },
    /// Nobody asks: time passes.
    Expire,
}

/// What was done, for the audit and the event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Grant,
    Revoke,
    Consume,
    Expire,
}

impl Action {
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Grant => "GRANT",
            Self::Revoke => "REVOKE",
            Self::Consume => "CONSUME",
            Self::Expire => "EXPIRE",
        }
    }
}

/// One entitlement that somebody wants changed, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Order {
    pub(crate) user: UserId,
    pub(crate) sku: Sku,
    pub(crate) operation: Operation,
    pub(crate) reason: Reason,
    pub(crate) purchase: PurchaseId,
}

/// How an entitlement is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Holding {
    pub(crate) status: Status,
    pub(crate) version: i64,
    pub(crate) quantity: Option<i64>,
    pub(crate) expires_at: Option<OffsetDateTime>,
    pub(crate) granted_at: Option<OffsetDateTime>,
    pub(crate) revoked_at: Option<OffsetDateTime>,
    pub(crate) source: String,
    pub(crate) source_id: String,
    pub(crate) updated_at: OffsetDateTime,
}

/// One version that was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Change {
    pub(crate) action: Action,
    pub(crate) holding: Holding,
}

/// Why nothing was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Refusal {
    #[error("already ACTIVE")]
    AlreadyActive,
    #[error("already REVOKED")]
    AlreadyRevoked,
    #[error("it is not ACTIVE by this purchase alone")]
    OfAnotherPurchase,
    #[error("not ACTIVE, there is nothing to consume")]
    NothingToConsume,
    #[error("it has no quantity, so it can't be consumed")]
    NotConsumable,
    #[error("only {left} left")]
    Insufficient { left: i64 },
    #[error("the quantity would be too large")]
    TooMany,
    #[error("expires_at must be in the future")]
    ExpiresInThePast,
}

/// What an order comes to. There can be a change also when it was refused: the entitlement
/// had run out before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Decision {
    pub(crate) changes: Vec<Change>,
    pub(crate) answer: Result<Holding, Refusal>,
}

impl Holding {
    /// Whether it may be used at `now`.
    pub(crate) fn allows(&self, now: OffsetDateTime) -> bool {
        self.status == Status::Active
            && !self.has_run_out(now)
            && self.quantity.is_none_or(|left| left > 0)
    }

    fn has_run_out(&self, now: OffsetDateTime) -> bool {
        self.status == Status::Active && self.expires_at.is_some_and(|at| at <= now)
    }

    /// Whether an ACTIVE one was granted for `purchase`, and nothing of it for another. Without a
    /// quantity nothing but its grant can have been its last change.
    fn is_all_of(&self, purchase: &PurchaseId) -> bool {
        self.quantity.is_none() && self.source_id == purchase.as_str()
    }

    fn is_active(&self) -> bool {
        self.status == Status::Active
    }
}

/// Decides `order` on an entitlement that is as `current` says, at `now`.
pub(crate) fn decide(current: Option<&Holding>, order: &Order, now: OffsetDateTime) -> Decision {
    let mut changes = Vec::new();
    let expired = current
        .filter(|holding| holding.has_run_out(now))
        .map(|holding| expire(holding, now));
    if let Some(expired) = &expired {
        changes.push(Change {
            action: Action::Expire,
            holding: expired.clone(),
        });
    }
    let current = expired.as_ref().or(current);
    let decided = match &order.operation {
        Operation::Grant {
            quantity,
            expires_at,
        } => grant(current, order, now, *quantity, *expires_at),
        Operation::Revoke { granted_for } => revoke(current, order, now, granted_for.as_ref()),
        Operation::Consume { quantity } => consume(current, order, now, *quantity),
        Operation::Expire => match &expired {
            Some(expired) => {
                let answer = Ok(expired.clone());
                return Decision { changes, answer };
            }
            None => Err(Refusal::AlreadyRevoked),
        },
    };
    let answer = decided.map(|change| {
        let holding = change.holding.clone();
        changes.push(change);
        holding
    });
    Decision { changes, answer }
}

fn grant(
    current: Option<&Holding>,
    order: &Order,
    now: OffsetDateTime,
    quantity: Option<i64>,
    expires_at: Option<OffsetDateTime>,
) -> Result<Change, Refusal> {
    if expires_at.is_some_and(|at| at <= now) {
        return Err(Refusal::ExpiresInThePast);
    }
    let active = current.filter(|holding| holding.is_active());
    let (quantity, expires_at) = match active {
        None => (quantity, expires_at),
        Some(held) => {
            let (left, more) = held.quantity.zip(quantity).ok_or(Refusal::AlreadyActive)?;
            // More of what is consumed: it adds up, and the later end counts. No end is later.
            let sum = left.checked_add(more).ok_or(Refusal::TooMany)?;
            let end = held.expires_at.zip(expires_at);
            (Some(sum), end.map(|(held, new)| held.max(new)))
        }
    };
    let mut holding = next(current, order, now, Status::Active);
    holding.quantity = quantity;
    holding.expires_at = expires_at;
    holding.granted_at = Some(holding.updated_at);
    Ok(Change {
        action: Action::Grant,
        holding,
    })
}

fn revoke(
    current: Option<&Holding>,
    order: &Order,
    now: OffsetDateTime,
    granted_for: Option<&PurchaseId>,
) -> Result<Change, Refusal> {
    if current.is_some_and(|holding| !holding.is_active()) {
        return Err(Refusal::AlreadyRevoked);
    }
    if let Some(purchase) = granted_for
        && !current.is_some_and(|holding| holding.is_all_of(purchase))
    {
        return Err(Refusal::OfAnotherPurchase);
    }
    Ok(Change {
        action: Action::Revoke,
        holding: ended(next(current, order, now, Status::Revoked)),
    })
}

fn consume(
    current: Option<&Holding>,
    order: &Order,
    now: OffsetDateTime,
    wanted: i64,
) -> Result<Change, Refusal> {
    let held = current.filter(|holding| holding.is_active());
    let held = held.ok_or(Refusal::NothingToConsume)?;
    let left = held.quantity.ok_or(Refusal::NotConsumable)?;
    let rest = left.checked_sub(wanted).filter(|rest| *rest >= 0);
    let rest = rest.ok_or(Refusal::Insufficient { left })?;
    let mut holding = next(current, order, now, Status::Active);
    holding.quantity = Some(rest);
    Ok(Change {
        action: Action::Consume,
        holding,
    })
}

fn expire(holding: &Holding, now: OffsetDateTime) -> Holding {
    ended(Holding {
        status: Status::Revoked,
        version: holding.version + 1,
        updated_at: holding.updated_at.max(now),
        source: EXPIRED.to_owned(),
        ..holding.clone()
    })
}

/// The next version, before what is special about it.
fn next(current: Option<&Holding>, order: &Order, now: OffsetDateTime, status: Status) -> Holding {
    Holding {
        status,
        version: current.map_or(1, |holding| holding.version + 1),
        quantity: current.and_then(|holding| holding.quantity),
        expires_at: current.and_then(|holding| holding.expires_at),
        granted_at: current.and_then(|holding| holding.granted_at),
        revoked_at: current.and_then(|holding| holding.revoked_at),
        source: order.reason.as_str().to_owned(),
        source_id: order.purchase.as_str().to_owned(),
        // Two versions never go back in time, whatever the clock does.
        updated_at: current.map_or(now, |holding| holding.updated_at.max(now)),
    }
}

/// What is over has neither an end nor a rest.
fn ended(mut holding: Holding) -> Holding {
    holding.revoked_at = Some(holding.updated_at);
    holding.expires_at = None;
    holding.quantity = None;
    holding
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use time::macros::datetime;

    use super::*;

    const NOW: OffsetDateTime = datetime!(2026-11-16 9:00 UTC);
    const DAY: Duration = Duration::from_secs(86_400);

    fn order(operation: Operation) -> Order {
        Order {
            user: "u1".to_owned().try_into().unwrap(),
            sku: "sword".to_owned().try_into().unwrap(),
            operation,
            reason: "purchase".to_owned().try_into().unwrap(),
            purchase: "p1".to_owned().try_into().unwrap(),
        }
    }

    const GRANT: Operation = Operation::Grant {
        quantity: None,
        expires_at: None,
    };
    const REVOKE: Operation = Operation::Revoke { granted_for: None };

    fn some(quantity: i64) -> Operation {
        Operation::Grant {
            quantity: Some(quantity),
            expires_at: None,
        }
    }

    fn until(at: OffsetDateTime) -> Operation {
        Operation::Grant {
            quantity: None,
            expires_at: Some(at),
        }
    }

    /// What a series of orders leaves behind, each at the time given with it.
    fn after(
        orders: &[(Operation, OffsetDateTime)],
    ) -> (Option<Holding>, Vec<Change>, Vec<String>) {
        let (mut holding, mut changes, mut refused) = (None, Vec::new(), Vec::new());
        for (operation, now) in orders {
            let decision = decide(holding.as_ref(), &order(operation.clone()), *now);
            if let Some(last) = decision.changes.last() {
                holding = Some(last.holding.clone());
            }
            changes.extend(decision.changes);
            refused.extend(decision.answer.err().map(|why| why.to_string()));
        }
        (holding, changes, refused)
    }

    fn now(operations: &[Operation]) -> (Option<Holding>, Vec<Change>, Vec<String>) {
        let orders: Vec<_> = operations.iter().map(|it| (it.clone(), NOW)).collect();
        after(&orders)
    }

    #[test]
    fn the_four_transitions_make_versions_without_a_gap() {
        let (holding, changes, refused) = now(&[GRANT, REVOKE, GRANT]);
        assert_eq!(refused, [""; 0]);
        let versions: Vec<_> = changes
            .iter()
            .map(|change| change.holding.version)
            .collect();
        assert_eq!(versions, [1, 2, 3]);
        assert_eq!(holding.unwrap().status, Status::Active);

        let (holding, _, _) = now(&[REVOKE]);
        let holding = holding.unwrap();
        assert_eq!((holding.status, holding.version), (Status::Revoked, 1));
        assert_eq!(holding.granted_at, None);
    }

    #[test]
    fn the_same_state_again_is_refused_and_changes_nothing() {
        let (holding, changes, refused) = now(&[GRANT, GRANT]);
        assert_eq!(refused, ["already ACTIVE"]);
        assert_eq!((holding.unwrap().version, changes.len()), (1, 1));
        let (_, _, refused) = now(&[REVOKE, REVOKE]);
        assert_eq!(refused, ["already REVOKED"]);
    }

    #[test]
    fn a_revocation_for_one_purchase_takes_nothing_away_that_another_gave() {
        let of = |purchase: &str| Operation::Revoke {
            granted_for: Some(purchase.to_owned().try_into().unwrap()),
        };
        let other = "it is not ACTIVE by this purchase alone";
        for (before, purchase, refused) in [
            (vec![GRANT], "p1", None),
            (vec![GRANT], "p2", Some(other)),
            (vec![], "p1", Some(other)),
            (vec![some(3)], "p1", Some(other)),
            (vec![GRANT, REVOKE], "p1", Some("already REVOKED")),
        ] {
            let (was, _, _) = now(&before);
            let orders: Vec<_> = before.into_iter().chain([of(purchase)]).collect();
            let (holding, _, told) = now(&orders);
            assert_eq!(told.first().map(String::as_str), refused, "{orders:?}");
            assert_eq!(holding == was, refused.is_some(), "{orders:?}");
        }
    }

    #[test]
    fn quantities_add_up_and_are_consumed_whole_or_not_at_all() {
        let take = |quantity| Operation::Consume { quantity };
        let (holding, _, refused) = now(&[some(3), some(2), take(4), take(2), take(1), take(1)]);
        assert_eq!(refused, ["only 1 left", "only 0 left"]);
        let holding = holding.unwrap();
        assert_eq!((holding.quantity, holding.version), (Some(0), 4));
        assert!(!holding.allows(NOW), "nothing is left");

        let (_, _, refused) = now(&[take(1), GRANT, take(1), some(1), REVOKE, take(1)]);
        assert_eq!(
            refused,
            [
                "not ACTIVE, there is nothing to consume",
                "it has no quantity, so it can't be consumed",
                "already ACTIVE",
                "not ACTIVE, there is nothing to consume",
            ]
        );
        let (_, _, refused) = now(&[some(i64::MAX), some(1)]);
        assert_eq!(refused, ["the quantity would be too large"]);
    }

    #[test]
    fn what_has_run_out_is_revoked_before_anything_else_happens_to_it() {
        let (holding, changes, refused) = after(&[
            (until(NOW + DAY), NOW),
            (Operation::Expire, NOW),
            (GRANT, NOW + DAY),
        ]);
        assert_eq!(refused, ["already REVOKED"], "too early to expire");
        let actions: Vec<_> = changes.iter().map(|change| change.action).collect();
        assert_eq!(actions, [Action::Grant, Action::Expire, Action::Grant]);
        assert_eq!(changes[1].holding.source, EXPIRED);
        assert_eq!(changes[1].holding.source_id, "p1");
        let holding = holding.unwrap();
        assert_eq!((holding.version, holding.expires_at), (3, None));

        let (_, changes, refused) = after(&[(until(NOW + DAY), NOW), (REVOKE, NOW + 2 * DAY)]);
        assert_eq!(refused, ["already REVOKED"]);
        assert_eq!(changes.len(), 2, "the refused order still finds it expired");
    }

    #[test]
    fn an_end_in_the_past_is_refused_and_one_that_has_come_allows_nothing() {
        let (_, changes, refused) = now(&[until(NOW)]);
        assert_eq!(refused, ["expires_at must be in the future"]);
        assert!(changes.is_empty());
        let (holding, _, _) = now(&[until(NOW + DAY)]);
        let holding = holding.unwrap();
        assert!(holding.allows(NOW) && !holding.allows(NOW + DAY));
    }

    #[test]
    fn time_never_goes_back_between_two_versions() {
        let (holding, _, _) = after(&[(GRANT, NOW + DAY), (REVOKE, NOW)]);
        assert_eq!(holding.unwrap().updated_at, NOW + DAY);
    }
}
