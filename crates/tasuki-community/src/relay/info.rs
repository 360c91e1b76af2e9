//! What the relay says of itself (NIP-11): all of it true.

use serde::Serialize;
use serde_json::{Value, json};

use crate::config::{AuthMode, Community, TopicMode};
use crate::nostr::{DELETION, NAME_LIMIT};

/// What is implemented. Each has a test.
const NIPS: [u16; 8] = [1, 9, 11, 40, 42, 45, 50, 70];

/// The document.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Info(Value);

impl Info {
    pub(super) fn of(own: &Community) -> Self {
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
                "auth_required": own.auth.mode == AuthMode::Required,
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
        Self(document)
    }
}

fn seconds(days: u16) -> u32 {
    u32::from(days) * 24 * 60 * 60
}
