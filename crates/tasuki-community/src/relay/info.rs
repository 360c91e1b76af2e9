//! What the relay says of itself (NIP-11): all of it true, when it is asked.

use serde_json::json;
use time::OffsetDateTime;

use super::auth::enforced_since;
use crate::config::{Auth, AuthMode, Community, TopicMode};
use crate::nostr::{DELETION, NAME_LIMIT};

/// What is implemented. Each has a test.
const NIPS: [u16; 8] = [1, 9, 11, 40, 42, 45, 50, 70];

/// The document, as it is written when nobody has to prove a key, and when everybody has to.
#[derive(Clone, Debug)]
pub(super) struct Info {
    open: String,
    guarded: String,
    auth: Auth,
}

impl Info {
    pub(super) fn of(own: &Community) -> Self {
        Self {
            open: Self::written(own, false),
            guarded: Self::written(own, true),
            auth: own.auth,
        }
    }

    /// As it is now.
    pub(super) fn at(&self, now: OffsetDateTime) -> &str {
        match self.auth.mode {
            AuthMode::Required if now >= enforced_since(&self.auth) => &self.guarded,
            AuthMode::Required | AuthMode::Off => &self.open,
        }
    }

    fn written(own: &Community, is_guarded: bool) -> String {
        let (relay, limits) = (&own.relay, &own.limits);
        let mut document = json!({
            "name": relay.name,
            "description": relay.description,
            "supported_nips": NIPS,
            "version": env!("CARGO_PKG_VERSION"),
            "limitation": {
                "max_message_length": limits.message.bytes(),
                "max_subscriptions": limits.subscriptions,
                "max_filters": limits.filters,
                "max_limit": limits.limit,
                "default_limit": limits.limit,
                "max_subid_length": NAME_LIMIT,
                "max_event_tags": limits.tags,
                "min_pow_difficulty": 0,
                "auth_required": is_guarded,
                "payment_required": false,
                "restricted_writes": own.topics.mode == TopicMode::Required,
                "created_at_upper_limit": limits.ahead.as_secs(),
                // Not of NIP-11: what else is limited here.
                "max_event_length": limits.event.bytes(),
                "max_values": limits.values,
                "max_topics": limits.topics,
                "max_event_topics": limits.topics_per_event,
                "max_filter_tags": limits.tags_per_filter,
                "events_per_minute": limits.events_per_minute,
                "reqs_per_minute": limits.reqs_per_minute,
                "connections_per_minute": limits.connections_per_minute,
                "topic_required": own.topics.mode == TopicMode::Required,
            },
            "retention": [
                {"kinds": [0, 3, [10_000, 19_999], [30_000, 39_999]], "time": null},
                {"kinds": [DELETION], "time": seconds(own.retention.deletions_days)},
                {"kinds": [[20_000, 29_999]], "time": 0},
                {"time": seconds(own.retention.events_days)},
            ],
        });
        for (key, value) in [("pubkey", &relay.pubkey), ("contact", &relay.contact)] {
            if let (false, Some(fields)) = (value.is_empty(), document.as_object_mut()) {
                fields.insert(key.to_owned(), json!(value));
            }
        }
        document.to_string()
    }
}

fn seconds(days: u16) -> u32 {
    u32::from(days) * 24 * 60 * 60
}
