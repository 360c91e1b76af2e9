//! The HTTP bodies of entitlement.

use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use utoipa::ToSchema;

use crate::error::ErrorBody;
use crate::timestamp;

/// The state of an entitlement does not allow what was asked for: already ACTIVE, already
/// REVOKED, not consumable.
pub const ENTITLEMENT_STATE_CONFLICT: &str = "ENTITLEMENT_STATE_CONFLICT";
/// It is there, and not by the purchase that a revocation was to undo.
pub const ENTITLEMENT_PURCHASE_CONFLICT: &str = "ENTITLEMENT_PURCHASE_CONFLICT";
/// Fewer are left than were to be consumed.
pub const ENTITLEMENT_INSUFFICIENT_QUANTITY: &str = "ENTITLEMENT_INSUFFICIENT_QUANTITY";

/// Asks for a grant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct GrantBody {
    /// Who gets it: 1 to 128 characters.
    #[schema(example = "user-1")]
    pub user_id: String,
    /// What: 1 to 128 characters.
    #[schema(example = "sword-of-dawn")]
    pub stock_keeping_unit: String,
    /// Why.
    #[schema(example = "purchase")]
    pub reason: String,
    /// What for.
    #[schema(example = "order-17")]
    pub purchase_id: String,
    /// How many, for what is consumed. Granting more to an ACTIVE one adds to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1)]
    pub quantity: Option<i64>,
    /// When it runs out. It is then revoked with the reason `expired`.
    #[serde(
        default,
        with = "timestamp::option",
        skip_serializing_if = "Option::is_none"
    )]
    pub expires_at: Option<OffsetDateTime>,
}

/// Asks for a revocation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RevokeBody {
    /// Whose.
    #[schema(example = "user-1")]
    pub user_id: String,
    /// What.
    #[schema(example = "sword-of-dawn")]
    pub stock_keeping_unit: String,
    /// Why.
    #[schema(example = "refund")]
    pub reason: String,
    /// What for.
    #[schema(example = "order-17")]
    pub purchase_id: String,
    /// Revoke it only if it was granted for this purchase: whoever undoes one purchase takes nothing
    /// away that another gave. What has a quantity is of no purchase in particular, and stays.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(example = "order-17")]
    pub if_purchase_id: Option<String>,
}

/// Asks to use up some of what is owned.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ConsumeBody {
    /// Whose.
    #[schema(example = "user-1")]
    pub user_id: String,
    /// What.
    #[schema(example = "potion")]
    pub stock_keeping_unit: String,
    /// Why.
    #[schema(example = "used")]
    pub reason: String,
    /// What for.
    #[schema(example = "match-5")]
    pub purchase_id: String,
    /// How many. All of them or none.
    #[schema(minimum = 1)]
    pub quantity: i64,
}

/// Many of the same at once: one result per item, in their order, and idempotent as a whole.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Bulk<T> {
    /// 1 to 1000.
    pub items: Vec<T>,
}

/// ACTIVE or REVOKED.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "UPPERCASE")]
pub enum Status {
    /// Owned.
    Active,
    /// Not owned, or not any more.
    Revoked,
}

/// One entitlement, as a change left it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Entitlement {
    /// Whose.
    pub user_id: String,
    /// What, and how it is.
    #[serde(flatten)]
    pub item: Item,
}

/// What a user has, or had.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Item {
    /// What.
    pub stock_keeping_unit: String,
    /// Whether it is owned.
    pub status: Status,
    /// 1 for the first change, and one more for each further one.
    pub version: i64,
    /// When it last changed.
    #[serde(with = "timestamp")]
    pub updated_at: OffsetDateTime,
    /// How many are left, for what is consumed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quantity: Option<i64>,
    /// When it runs out.
    #[serde(
        default,
        with = "timestamp::option",
        skip_serializing_if = "Option::is_none"
    )]
    pub expires_at: Option<OffsetDateTime>,
}

/// What became of one item of a bulk request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum BulkResult {
    /// Done.
    Done(Entitlement),
    /// Refused; nothing of this item changed.
    Refused {
        /// What a request for this item alone would have been answered.
        error: ErrorBody,
    },
}

/// One result per item, in their order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BulkResults {
    /// The results.
    pub results: Vec<BulkResult>,
}

/// A user's entitlements, the last change first; revoked ones too.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Entitlements {
    /// Whose.
    pub user_id: String,
    /// What.
    pub entitlements: Vec<Item>,
    /// Where the next page begins, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

/// Whether a user may use something now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Check {
    /// ACTIVE, not run out, and some left if it is consumed. Never had: false.
    pub allowed: bool,
    /// How it is; nothing if the user never had it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entitlement: Option<Entitlement>,
}

/// One change in the past.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct HistoryEntry {
    /// The event that told of it.
    pub event_id: crate::ids::EventId,
    /// GRANT, REVOKE, CONSUME or EXPIRE.
    pub action: String,
    /// When.
    #[serde(with = "timestamp")]
    pub occurred_at: OffsetDateTime,
    /// The version that it made.
    pub version: i64,
    /// Why: the request's `reason`.
    pub source: String,
    /// What for: the request's `purchase_id`.
    pub source_id: String,
    /// Who asked.
    pub caller: String,
    /// The request's idempotency key; nothing for what happened by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
}

/// The past of one entitlement, the last change first, for as long as the audit is kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct History {
    /// Whose.
    pub user_id: String,
    /// What.
    pub stock_keeping_unit: String,
    /// The changes.
    pub history: Vec<HistoryEntry>,
    /// Where the next page begins, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}
