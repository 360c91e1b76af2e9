//! The HTTP bodies of notification.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use utoipa::ToSchema;

use crate::ids::{AttemptId, EndpointId, EventId, NotificationId};
use crate::timestamp;

/// A notification as its user sees it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Notification {
    /// Which one.
    pub notification_id: NotificationId,
    /// The event that it tells of.
    pub event_id: EventId,
    /// What happened: the event's type.
    #[serde(rename = "type")]
    #[schema(example = "EntitlementGranted")]
    pub kind: String,
    /// When it happened.
    #[serde(with = "timestamp")]
    pub occurred_at: OffsetDateTime,
    /// When it came into the inbox.
    #[serde(with = "timestamp")]
    pub sent_at: OffsetDateTime,
    /// Its number in the inbox, and its id on the stream: `Last-Event-ID` goes on after it.
    pub sequence: i64,
    /// A newer version of the same thing was shown before, or together with it.
    pub superseded: bool,
    /// When it was read.
    #[serde(with = "timestamp::option")]
    pub read_at: Option<OffsetDateTime>,
    /// The event's content.
    #[schema(value_type = Object)]
    pub payload: serde_json::Value,
}

/// A page of an inbox, the latest first.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Inbox {
    /// Whose.
    pub user_id: String,
    /// How many are unread, counted up to 1000. Superseded ones are not.
    pub unread_count: i64,
    /// The last number of the inbox: follow the stream from here, and nothing is missed.
    pub last_sequence: i64,
    /// The page.
    pub notifications: Vec<Notification>,
    /// Where the next page begins, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

/// When a notification was read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Read {
    /// Which one.
    pub notification_id: NotificationId,
    /// When, the first time.
    #[serde(with = "timestamp")]
    pub read_at: OffsetDateTime,
}

/// Over which channels a user wants to be told, by type of event; `*` for all others. No channel
/// means not at all.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Preferences {
    /// `log`, `in-app`, `webhook`.
    #[schema(example = json!({ "*": ["in-app"], "EntitlementConsumed": [] }))]
    pub channels: BTreeMap<String, Vec<String>>,
}

/// Registers a webhook.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewWebhook {
    /// Where to: https, and no private address.
    #[schema(example = "https://example.com/hooks/tasuki")]
    pub url: String,
    /// For people.
    #[serde(default)]
    pub description: String,
    /// Which types of events; none means all.
    #[serde(default)]
    pub types: Vec<String>,
}

/// Changes a webhook; what is left out stays as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ChangedWebhook {
    /// Where to: https, and no private address.
    #[schema(example = "https://example.com/hooks/tasuki")]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// For people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// Which types of events; an empty list means all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub types: Option<Vec<String>>,
}

/// A webhook.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Webhook {
    /// Which one.
    pub endpoint_id: EndpointId,
    /// Where to.
    pub url: String,
    /// For people.
    pub description: String,
    /// Which types of events; none means all.
    pub types: Vec<String>,
    /// ENABLED; PAUSED by its owner; DISABLED by us.
    pub status: String,
    /// Why it was disabled.
    pub disabled_reason: Option<String>,
    /// When it was registered.
    #[serde(with = "timestamp")]
    pub created_at: OffsetDateTime,
    /// When it last changed.
    #[serde(with = "timestamp")]
    pub updated_at: OffsetDateTime,
    /// What signs its messages (`whsec_…`): told when it is made, and never again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<String>,
}

/// A user's webhooks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Webhooks {
    /// The webhooks.
    pub webhooks: Vec<Webhook>,
}

/// How an attempt at a webhook went.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WebhookAttempt {
    /// Which one.
    pub attempt_id: AttemptId,
    /// What was to be delivered.
    pub notification_id: NotificationId,
    /// When.
    #[serde(with = "timestamp")]
    pub attempted_at: OffsetDateTime,
    /// delivered, gone, later, failed, refused.
    pub outcome: String,
    /// What the endpoint answered, if it did.
    pub response_code: Option<i32>,
    /// How long it took.
    pub took_ms: i32,
    /// What went wrong.
    pub error: Option<String>,
    /// How the answer began.
    pub excerpt: Option<String>,
}

/// The latest attempts at a webhook.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WebhookAttempts {
    /// The attempts.
    pub attempts: Vec<WebhookAttempt>,
}

/// Everything of a user, for an operator.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct DebugInbox {
    /// Whose.
    pub user_id: String,
    /// The latest first.
    pub notifications: Vec<DebugNotification>,
}

/// A notification with everything that an operator wants to know of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct DebugNotification {
    /// Which one.
    pub notification_id: NotificationId,
    /// The event that it tells of.
    pub event_id: EventId,
    /// The event's type.
    #[serde(rename = "type")]
    pub kind: String,
    /// log, in-app, webhook.
    pub channel: String,
    /// PENDING, PROCESSING, SENT, FAILED.
    pub status: String,
    /// Attempts so far.
    pub attempts: i32,
    /// When it is tried next.
    #[serde(with = "timestamp::option")]
    pub next_retry_at: Option<OffsetDateTime>,
    /// When it was made.
    #[serde(with = "timestamp")]
    pub created_at: OffsetDateTime,
    /// When it was sent.
    #[serde(with = "timestamp::option")]
    pub sent_at: Option<OffsetDateTime>,
    /// Who is at it.
    pub locked_by: Option<String>,
    /// What went wrong last.
    pub last_error: Option<String>,
    /// The trace that it belongs to, 32 hex digits.
    pub trace_id: Option<String>,
    /// The event's content.
    #[schema(value_type = Object)]
    pub payload: serde_json::Value,
}
