//! The settings of notification. What each means and costs is written in `default.toml`.

use std::num::NonZeroU32;
use std::time::Duration;

use serde::Deserialize;
use tasuki::bus::{ConsumerSpec, StreamSpec};
use tasuki_contract::streams;
use tasuki_service::config::{Leased, ServiceDatabase, ServiceServer};

use crate::domain::Channel;

/// `[notification]`
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Notification {
    /// `[notification.server]`
    pub server: ServiceServer,
    /// `[notification.database]`
    pub database: ServiceDatabase,
    /// `[notification.nats]`
    pub nats: Source,
    /// `[notification.matchmaking-nats]`
    pub matchmaking_nats: Source,
    /// `[notification.sweep]`
    pub sweep: Sweep,
    /// `[notification.delivery]`
    pub delivery: Delivery,
    /// `[notification.webhook]`
    pub webhook: Webhook,
    /// `[notification.debug]`
    pub debug: Debug,
    /// `[notification.retention]`
    pub retention: Retention,
}

/// `[notification.nats]` and its like: a stream that is consumed.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Source {
    pub enabled: bool,
    pub stream: String,
    pub subject: String,
    pub durable: String,
    #[serde(with = "humantime_serde")]
    pub duplicate_window: Duration,
    #[serde(with = "humantime_serde")]
    pub ack_wait: Duration,
    pub max_deliver: NonZeroU32,
    pub batch_size: usize,
    pub advisory: Advisory,
    pub terminated_advisory: Advisory,
}

/// `[notification.nats.advisory]` and its like.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Advisory {
    pub stream: String,
    pub durable: String,
}

impl Source {
    /// The stream, and how it is consumed.
    pub(crate) fn spec(&self, replicas: usize) -> ConsumerSpec {
        let window = self.duplicate_window;
        let stream = streams::events(&self.stream, &self.subject, window, replicas);
        ConsumerSpec::new(stream, self.durable.as_str())
            .ack_wait(self.ack_wait)
            .max_deliver(self.max_deliver.get())
    }

    /// What the broker says of messages that it gave up (`MAX_DELIVERIES`), or that we did
    /// (`MSG_TERMINATED`), kept on a stream of its own: a restart loses none.
    pub(crate) fn advisories(&self, replicas: usize) -> [ConsumerSpec; 2] {
        let kinds = [
            ("MAX_DELIVERIES", &self.advisory),
            ("MSG_TERMINATED", &self.terminated_advisory),
        ];
        kinds.map(|(kind, advisory)| {
            let (stream, durable) = (&self.stream, &self.durable);
            let subject = format!("$JS.EVENT.ADVISORY.CONSUMER.{kind}.{stream}.{durable}");
            let stream = StreamSpec::new(advisory.stream.as_str(), [subject]).replicas(replicas);
            ConsumerSpec::new(stream, advisory.durable.as_str())
        })
    }
}

/// `[notification.sweep]`
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Sweep {
    #[serde(with = "humantime_serde")]
    pub interval: Duration,
}

/// `[notification.delivery]`
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Delivery {
    pub enabled: bool,
    pub default_channels: Vec<Channel>,
    #[serde(flatten)]
    pub leased: Leased,
    pub failure_injection: FailureInjection,
}

/// `[notification.delivery.failure-injection]`
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct FailureInjection {
    pub enabled: bool,
    pub user_id_prefix: String,
}

/// `[notification.webhook]`
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Webhook {
    pub concurrency: usize,
    pub endpoint_concurrency: usize,
    #[serde(with = "humantime_serde")]
    pub connect_timeout: Duration,
    #[serde(with = "humantime_serde")]
    pub timeout: Duration,
    pub circuit_failures: u32,
    pub allow_private_addresses: bool,
    #[serde(with = "humantime_serde")]
    pub rotation_overlap: Duration,
    pub endpoints_per_user: u32,
}

/// `[notification.debug]`
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Debug {
    pub inbox: DebugInbox,
}

/// Where the debug inbox is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DebugInbox {
    /// In development only.
    Development,
    /// Everywhere.
    On,
    /// Nowhere.
    Off,
}

/// `[notification.retention]`
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Retention {
    pub enabled: bool,
    pub retention_days: u32,
    #[serde(with = "humantime_serde")]
    pub cleanup_interval: Duration,
}
