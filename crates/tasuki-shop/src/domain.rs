//! The rules of an order: what it costs, how far it may go, what may be undone. Pure: no database,
//! no clock.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use tasuki_contract::names::{Sku, UserId};
use tasuki_contract::shop::{Flow, OrderState};

/// The most items of an order.
pub(crate) const MAX_ITEMS: usize = 50;
/// The most pieces of one item.
pub(crate) const MAX_QUANTITY: i64 = 1000;

/// So many of one SKU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Wanted {
    pub(crate) sku: Sku,
    pub(crate) quantity: i64,
}

/// What somebody wants to buy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Basket {
    pub(crate) user: UserId,
    pub(crate) items: Vec<Wanted>,
    pub(crate) payment_method: String,
    pub(crate) flow: Flow,
}

/// What a SKU costs, and how it is granted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Price {
    pub(crate) sku: String,
    pub(crate) price: i64,
    pub(crate) currency: String,
    pub(crate) consumable: bool,
}

/// An item with its price.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Item {
    pub(crate) sku: String,
    pub(crate) quantity: i64,
    pub(crate) price: i64,
    pub(crate) consumable: bool,
}

/// A sum of money.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Money {
    /// Minor units.
    pub(crate) amount: i64,
    /// ISO 4217.
    pub(crate) currency: String,
}

/// Why a basket can't be an order.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Unsellable {
    #[error("the shop does not sell {0}")]
    Unknown(String),
    #[error("the items have prices in {0} and in {1}")]
    Currencies(String, String),
    #[error("{0} can be owned only once: order one of it")]
    OnlyOne(String),
    #[error("the items cost nothing")]
    Free,
    #[error("the sum is too large")]
    TooMuch,
}

/// What an order would be: its items with prices, in the order of their names, and the sum.
///
/// The order of the names is also that in which stock is locked: two orders never wait for each
/// other.
pub(crate) fn price(basket: &Basket, prices: &[Price]) -> Result<(Vec<Item>, Money), Unsellable> {
    let mut items = Vec::with_capacity(basket.items.len());
    let mut total: Option<Money> = None;
    for wanted in &basket.items {
        let price = prices.iter().find(|price| price.sku == wanted.sku.as_str());
        let price = price.ok_or_else(|| Unsellable::Unknown(wanted.sku.to_string()))?;
        // It would be paid as often as ordered, and granted once.
        if !price.consumable && wanted.quantity > 1 {
            return Err(Unsellable::OnlyOne(price.sku.clone()));
        }
        let sum = price.price.checked_mul(wanted.quantity);
        let before = match &total {
            Some(total) if total.currency != price.currency => {
                let (one, other) = (total.currency.clone(), price.currency.clone());
                return Err(Unsellable::Currencies(one, other));
            }
            Some(total) => total.amount,
            None => 0,
        };
        let amount = sum.and_then(|sum| sum.checked_add(before));
        total = Some(Money {
            amount: amount.ok_or(Unsellable::TooMuch)?,
            currency: price.currency.clone(),
        });
        items.push(Item {
            sku: price.sku.clone(),
            quantity: wanted.quantity,
            price: price.price,
            consumable: price.consumable,
        });
    }
    items.sort_by(|a, b| a.sku.cmp(&b.sku));
    let total = total.filter(|total| total.amount >= 1);
    Ok((items, total.ok_or(Unsellable::Free)?))
}

/// The first SKU that stands in a basket twice.
pub(crate) fn twice(items: &[Wanted]) -> Option<&str> {
    let mut seen = BTreeSet::new();
    let mut skus = items.iter().map(|item| item.sku.as_str());
    skus.find(|sku| !seen.insert(*sku))
}

/// Why an order does not complete. The code is for programs and for the events.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub(crate) enum Setback {
    #[error("the payment was declined: {0}")]
    Declined(String),
    #[error("the payment provider did not answer")]
    Unanswered,
    #[error("there is not enough of {0}")]
    OutOfStock(String),
    #[error("{0} is owned already")]
    AlreadyOwned(String),
    #[error("{sku} could not be granted: {why}")]
    GrantFailed { sku: String, why: String },
    #[error("entitlement did not answer")]
    GrantUnanswered,
    #[error("what was set aside has expired")]
    ReservationExpired,
    #[error("it was cancelled by {0}")]
    Cancelled(String),
    #[error("{0}")]
    Undone(String),
}

impl Setback {
    pub(crate) const fn code(&self) -> &'static str {
        match self {
            Self::Declined(_) => "PAYMENT_DECLINED",
            Self::Unanswered => "PAYMENT_UNANSWERED",
            Self::OutOfStock(_) => "OUT_OF_STOCK",
            Self::AlreadyOwned(_) => "ALREADY_OWNED",
            Self::GrantFailed { .. } | Self::GrantUnanswered => "GRANT_FAILED",
            Self::ReservationExpired => "RESERVATION_EXPIRED",
            Self::Cancelled(_) => "CANCELLED",
            Self::Undone(_) => "UNDONE",
        }
    }
}

/// Whether an order in this state has ended.
pub(crate) const fn is_final(state: OrderState) -> bool {
    matches!(state, OrderState::Completed | OrderState::Compensated)
}

/// The word for a state in tables.
pub(crate) const fn state_str(state: OrderState) -> &'static str {
    match state {
        OrderState::Started => "STARTED",
        OrderState::OrderCreated => "ORDER_CREATED",
        OrderState::PaymentPending => "PAYMENT_PENDING",
        OrderState::PaymentCompleted => "PAYMENT_COMPLETED",
        OrderState::PaymentFailed => "PAYMENT_FAILED",
        OrderState::StockReserved => "STOCK_RESERVED",
        OrderState::StockFailed => "STOCK_FAILED",
        OrderState::Completed => "COMPLETED",
        OrderState::Compensating => "COMPENSATING",
        OrderState::Compensated => "COMPENSATED",
        OrderState::NeedsAttention => "NEEDS_ATTENTION",
    }
}

/// Reads [`state_str`].
pub(crate) fn parse_state(text: &str) -> Option<OrderState> {
    [
        OrderState::Started,
        OrderState::OrderCreated,
        OrderState::PaymentPending,
        OrderState::PaymentCompleted,
        OrderState::PaymentFailed,
        OrderState::StockReserved,
        OrderState::StockFailed,
        OrderState::Completed,
        OrderState::Compensating,
        OrderState::Compensated,
        OrderState::NeedsAttention,
    ]
    .into_iter()
    .find(|state| state_str(*state) == text)
}

/// The word for a flow in tables.
pub(crate) const fn flow_str(flow: Flow) -> &'static str {
    match flow {
        Flow::Orchestrated => "orchestrated",
        Flow::Choreographed => "choreographed",
    }
}

/// Reads [`flow_str`].
pub(crate) fn parse_flow(text: &str) -> Option<Flow> {
    [Flow::Orchestrated, Flow::Choreographed]
        .into_iter()
        .find(|flow| flow_str(*flow) == text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn basket(items: &[(&str, i64)]) -> Basket {
        let wanted = |(sku, quantity): &(&str, i64)| Wanted {
            sku: (*sku).to_owned().try_into().unwrap(),
            quantity: *quantity,
        };
        Basket {
            user: "u".to_owned().try_into().unwrap(),
            items: items.iter().map(wanted).collect(),
            payment_method: "card".to_owned(),
            flow: Flow::default(),
        }
    }

    /// All of them are used up, but for the sword.
    fn prices(all: &[(&str, i64, &str)]) -> Vec<Price> {
        let price = |(sku, price, currency): &(&str, i64, &str)| Price {
            sku: (*sku).to_owned(),
            price: *price,
            currency: (*currency).to_owned(),
            consumable: *sku != "sword",
        };
        all.iter().map(price).collect()
    }

    #[test]
    fn the_sum_is_price_times_quantity_and_items_are_in_the_order_of_their_names() {
        let prices = prices(&[("b", 250, "EUR"), ("a", 100, "EUR"), ("gift", 0, "EUR")]);
        let wanted = basket(&[("b", 2), ("gift", 1), ("a", 3)]);
        let (items, money) = price(&wanted, &prices).unwrap();
        assert_eq!((money.amount, &*money.currency), (800, "EUR"));
        let skus: Vec<_> = items.iter().map(|item| &*item.sku).collect();
        assert_eq!(skus, ["a", "b", "gift"]);
    }

    #[test]
    fn what_can_not_be_sold_is_told_apart() {
        let prices = prices(&[
            ("a", 100, "EUR"),
            ("d", 1, "USD"),
            ("gift", 0, "EUR"),
            ("palace", i64::MAX, "EUR"),
            ("sword", 100, "EUR"),
        ]);
        for (items, why) in [
            (&[("x", 1)][..], "the shop does not sell x"),
            (
                &[("a", 1), ("d", 1)],
                "the items have prices in EUR and in USD",
            ),
            (
                &[("a", 1), ("sword", 2)],
                "sword can be owned only once: order one of it",
            ),
            (&[("gift", 5)], "the items cost nothing"),
            (&[("palace", 2)], "the sum is too large"),
            (&[("palace", 1), ("a", 1)], "the sum is too large"),
        ] {
            assert_eq!(price(&basket(items), &prices).unwrap_err().to_string(), why);
        }
    }

    #[test]
    fn a_sku_that_is_there_twice_is_found() {
        assert_eq!(
            twice(&basket(&[("a", 1), ("b", 1), ("a", 2)]).items),
            Some("a")
        );
        assert_eq!(twice(&basket(&[("a", 1), ("b", 1)]).items), None);
    }

    #[test]
    fn states_and_flows_are_read_as_they_are_written() {
        for state in [OrderState::Started, OrderState::NeedsAttention] {
            assert_eq!(parse_state(state_str(state)), Some(state));
        }
        assert_eq!(parse_flow("choreographed"), Some(Flow::Choreographed));
        assert_eq!((parse_state("x"), parse_flow("x")), (None, None));
    }
}
