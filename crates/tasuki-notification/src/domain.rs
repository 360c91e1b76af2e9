//! What a notification is, and over which channels somebody gets it. Pure.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use utoipa::ToSchema;
use uuid::Uuid;

/// The type of a preference that stands for all types without one of their own.
pub(crate) const EVERY_TYPE: &str = "*";

/// How somebody is told.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum Channel {
    /// A line in the log.
    Log,
    /// The inbox, and whoever follows it.
    InApp,
    /// An HTTP request to each endpoint that the user has registered.
    Webhook,
}

impl Channel {
    pub(crate) const ALL: [Self; 3] = [Self::Log, Self::InApp, Self::Webhook];

    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Log => "log",
            Self::InApp => "in-app",
            Self::Webhook => "webhook",
        }
    }

    pub(crate) fn parse(text: &str) -> Option<Self> {
        let mut all = Self::ALL.into_iter();
        all.find(|channel| channel.as_str() == text)
    }
}

/// An event, as far as notification is concerned: who is to be told what.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Incoming {
    pub(crate) event_id: Uuid,
    /// The event's type, such as `EntitlementGranted`.
    pub(crate) kind: &'static str,
    pub(crate) recipients: Vec<String>,
    pub(crate) aggregate_key: String,
    pub(crate) version: i64,
    pub(crate) occurred_at: OffsetDateTime,
    pub(crate) payload: serde_json::Value,
    pub(crate) traceparent: Option<String>,
}

/// Where webhooks of a user go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) endpoint: Uuid,
    /// Which types it gets; none means all.
    pub(crate) types: Vec<String>,
}

/// What is known of some users: over which channels they want to be told.
#[derive(Clone, Debug, Default)]
pub(crate) struct Wishes {
    /// By user and type.
    pub(crate) channels: HashMap<(String, String), Vec<Channel>>,
    /// By user.
    pub(crate) targets: HashMap<String, Vec<Target>>,
}

impl Wishes {
    /// Everything that `user` gets of an event of type `kind`: channels, and for webhooks the
    /// endpoints.
    pub(crate) fn of(
        &self,
        user: &str,
        kind: &str,
        otherwise: &[Channel],
    ) -> Vec<(Channel, Option<Uuid>)> {
        let wished = |kind: &str| self.channels.get(&(user.to_owned(), kind.to_owned()));
        let channels = wished(kind).or_else(|| wished(EVERY_TYPE));
        let channels = channels.map_or(otherwise, Vec::as_slice);
        let mut told = Vec::with_capacity(channels.len());
        for channel in channels {
            match channel {
                Channel::Log | Channel::InApp => told.push((*channel, None)),
                Channel::Webhook => {
                    let targets = self.targets.get(user).into_iter().flatten();
                    let wanted = targets.filter(|target| {
                        target.types.is_empty() || target.types.iter().any(|it| it == kind)
                    });
                    told.extend(wanted.map(|it| (Channel::Webhook, Some(it.endpoint))));
                }
            }
        }
        told.sort_unstable();
        told.dedup();
        told
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wishes(entries: &[(&str, &[Channel])]) -> Wishes {
        let target = |number, types: &[&str]| Target {
            endpoint: Uuid::from_u128(number),
            types: types.iter().map(|it| (*it).to_owned()).collect(),
        };
        let channels = entries
            .iter()
            .map(|(kind, channels)| (("u".to_owned(), (*kind).to_owned()), channels.to_vec()));
        Wishes {
            channels: channels.collect(),
            targets: [("u".to_owned(), vec![target(1, &[]), target(2, &["Other"])])].into(),
        }
    }

    #[test]
    fn a_type_of_its_own_wins_over_everything_and_that_over_the_default() {
        use Channel::{InApp, Log};
        let otherwise = &[Log];
        let none = wishes(&[]);
        assert_eq!(none.of("u", "Granted", otherwise), [(Log, None)]);
        let every = wishes(&[("*", &[InApp])]);
        assert_eq!(every.of("u", "Granted", otherwise), [(InApp, None)]);
        assert_eq!(every.of("v", "Granted", otherwise), [(Log, None)]);
        let muted = wishes(&[("*", &[InApp]), ("Granted", &[])]);
        assert_eq!(muted.of("u", "Granted", otherwise), []);
        let twice = wishes(&[("*", &[Log, InApp, Log])]);
        assert_eq!(twice.of("u", "x", otherwise), [(Log, None), (InApp, None)]);
    }

    #[test]
    fn a_webhook_goes_to_every_endpoint_that_wants_the_type() {
        let wishes = wishes(&[("*", &[Channel::Webhook])]);
        let endpoints = |kind| -> Vec<_> {
            let told = wishes.of("u", kind, &[]).into_iter();
            told.filter_map(|(_, endpoint)| endpoint).collect()
        };
        assert_eq!(endpoints("Granted"), [Uuid::from_u128(1)]);
        assert_eq!(endpoints("Other"), [Uuid::from_u128(1), Uuid::from_u128(2)]);
    }
}
