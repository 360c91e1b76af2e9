//! The HTTP bodies of the shop.

use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use utoipa::ToSchema;

use crate::ids::{OrderId, PaymentId, ReservationId};
use crate::timestamp;

/// The shop does not sell this SKU.
pub const PRODUCT_NOT_FOUND: &str = "PRODUCT_NOT_FOUND";
/// The items have prices in more than one currency.
pub const CURRENCY_CONFLICT: &str = "CURRENCY_CONFLICT";
/// More than one of a SKU that can be owned only once.
pub const QUANTITY_CONFLICT: &str = "QUANTITY_CONFLICT";
/// The order has come too far, or has ended: it can't be cancelled any more.
pub const ORDER_STATE_CONFLICT: &str = "ORDER_STATE_CONFLICT";
/// There is less on hand than was to be moved.
pub const STOCK_INSUFFICIENT: &str = "STOCK_INSUFFICIENT";
/// There is no second warehouse to move stock to or from.
pub const WAREHOUSE_NOT_CONFIGURED: &str = "WAREHOUSE_NOT_CONFIGURED";

/// Who moves an order from step to step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Flow {
    /// One saga conducts.
    #[default]
    Orchestrated,
    /// Nobody does: each part reacts to the events of the others.
    Choreographed,
}

/// How far an order is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum OrderState {
    /// Taken.
    Started,
    /// Written down, with its price.
    OrderCreated,
    /// The provider is asked for the money.
    PaymentPending,
    /// The money is here.
    PaymentCompleted,
    /// There will be no money.
    PaymentFailed,
    /// The goods are set aside.
    StockReserved,
    /// There is not enough of the goods.
    StockFailed,
    /// Paid and granted.
    Completed,
    /// On its way back.
    Compensating,
    /// Undone: nothing is owed by anybody.
    Compensated,
    /// Stuck: a person must look.
    NeedsAttention,
}

/// So many of one SKU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct OrderItem {
    /// What: 1 to 128 characters.
    #[schema(example = "sword-of-dawn")]
    pub stock_keeping_unit: String,
    /// How many.
    #[schema(minimum = 1, maximum = 1000)]
    pub quantity: i64,
}

/// Asks for an order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PlaceOrder {
    /// Who buys: 1 to 128 characters.
    #[schema(example = "user-1")]
    pub user_id: String,
    /// What: 1 to 50 SKUs, each once.
    pub items: Vec<OrderItem>,
    /// What is charged, as the payment provider knows it: 1 to 128 characters.
    #[schema(example = "card")]
    pub payment_method: String,
    /// Who moves the order.
    #[serde(default)]
    pub flow: Flow,
}

/// An order that was taken.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct OrderTaken {
    /// The order.
    pub order_id: OrderId,
    /// The saga that carries it out, or the correlation id of its story.
    pub saga_id: OrderId,
    /// How far it is.
    pub state: OrderState,
}

/// An item of an order, as it was priced.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PricedItem {
    /// What.
    pub stock_keeping_unit: String,
    /// How many.
    pub quantity: i64,
    /// Of one, in minor units, fixed when the order was taken.
    pub price: i64,
    /// `GRANTED`, `REFUSED` or `REVOKED`; nothing before it was tried.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub granted: Option<String>,
}

/// Why an order did not complete.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct OrderFailure {
    /// For programs: `PAYMENT_DECLINED`, `PAYMENT_UNANSWERED`, `OUT_OF_STOCK`, `ALREADY_OWNED`,
    /// `GRANT_FAILED`, `RESERVATION_EXPIRED`, `CANCELLED`, `UNDONE`.
    #[schema(example = "OUT_OF_STOCK")]
    pub code: String,
    /// For people.
    pub message: String,
}

/// One change of an order's state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct OrderChange {
    /// What it became.
    pub state: OrderState,
    /// When.
    #[serde(with = "timestamp")]
    pub at: OffsetDateTime,
    /// What is to be said of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// An order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Order {
    /// Which.
    pub order_id: OrderId,
    /// The saga that carries it out, or the correlation id of its story.
    pub saga_id: OrderId,
    /// Whose.
    pub user_id: String,
    /// How far it is.
    pub state: OrderState,
    /// Who moves it.
    pub flow: Flow,
    /// The sum, in minor units, fixed when the order was taken.
    pub amount: i64,
    /// ISO 4217.
    pub currency: String,
    /// What is charged.
    pub payment_method: String,
    /// The payment.
    pub payment_id: PaymentId,
    /// What is set aside.
    pub reservation_id: ReservationId,
    /// What was ordered.
    pub items: Vec<PricedItem>,
    /// Why it did not complete.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<OrderFailure>,
    /// What happened, the first first.
    pub history: Vec<OrderChange>,
    /// When it was taken.
    #[serde(with = "timestamp")]
    pub created_at: OffsetDateTime,
    /// When it last changed.
    #[serde(with = "timestamp")]
    pub updated_at: OffsetDateTime,
}

/// What a SKU costs, and how it is granted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ProductBody {
    /// Of one, in minor units; 0 for what is given away beside something that is not.
    #[schema(minimum = 0)]
    pub price: i64,
    /// ISO 4217: three capital letters.
    #[schema(example = "EUR")]
    pub currency: String,
    /// Whether it is used up: then an order's quantity is granted, else the SKU itself.
    #[serde(default)]
    pub consumable: bool,
}

/// What the shop sells.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Product {
    /// What.
    pub stock_keeping_unit: String,
    /// Of one, in minor units.
    pub price: i64,
    /// ISO 4217.
    pub currency: String,
    /// Whether it is used up.
    pub consumable: bool,
}

/// Where stock is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Warehouse {
    /// What is sold from, in the shop's own database.
    Main,
    /// The other one, in a database of its own.
    Overflow,
}

/// What is on hand of a SKU in one warehouse.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Stock {
    /// What.
    pub stock_keeping_unit: String,
    /// Where.
    pub warehouse: Warehouse,
    /// How many there are.
    pub on_hand: i64,
    /// How many of them are set aside for orders.
    pub reserved: i64,
}

/// Goods that arrive.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ReceiptBody {
    /// What.
    pub stock_keeping_unit: String,
    /// How many.
    #[schema(minimum = 1)]
    pub quantity: i64,
}

/// Goods that move from one warehouse to the other: all of them, or none.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TransferBody {
    /// What.
    pub stock_keeping_unit: String,
    /// How many.
    #[schema(minimum = 1)]
    pub quantity: i64,
    /// From where.
    pub from: Warehouse,
    /// Where to.
    pub to: Warehouse,
}

/// A transfer that was decided: committed in both databases, now or as soon as one that is away is
/// back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Transfer {
    /// Which, in the log of two-phase commits.
    pub transfer_id: String,
    /// What.
    pub stock_keeping_unit: String,
    /// How many.
    pub quantity: i64,
    /// From where.
    pub from: Warehouse,
    /// Where to.
    pub to: Warehouse,
}

/// Something that does not match.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Mismatch {
    /// What kind: see `checks`.
    pub check: String,
    /// The order, if it is about one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub order_id: Option<OrderId>,
    /// What it is about: a payment, a SKU, a charge of the provider.
    pub subject: String,
}

/// How many of one kind do not match.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CheckCount {
    /// What was looked for.
    #[schema(example = "charged_but_neither_granted_nor_refunded")]
    pub check: String,
    /// How many there are.
    pub count: i64,
}

/// Money and goods, compared. At rest, everything counts zero.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Reconciliation {
    /// All of them together.
    pub total: i64,
    /// Each kind.
    pub checks: Vec<CheckCount>,
    /// The first hundred of each kind.
    pub found: Vec<Mismatch>,
    /// Orders that are on their way: neither completed, nor undone.
    pub unfinished: i64,
    /// What ended before matched when it was compared, and was not read again. Nothing: it was.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        with = "timestamp::option"
    )]
    pub since: Option<OffsetDateTime>,
}

/// What an operator is told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Notice {
    /// Which: the later, the higher.
    pub notice_id: i64,
    /// `PAYMENT_DECLINED`, `PAYMENT_UNANSWERED`, `REFUND_FAILED` or `REVOCATION_FAILED`.
    pub kind: String,
    /// The payment that it is about.
    pub payment_id: PaymentId,
    /// Its order.
    pub order_id: OrderId,
    /// What is to be said.
    pub message: String,
    /// When.
    #[serde(with = "timestamp")]
    pub at: OffsetDateTime,
}

/// What operators are told, the last first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Notices {
    /// A page of them.
    pub notices: Vec<Notice>,
    /// `before` of the next page, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<i64>,
}
