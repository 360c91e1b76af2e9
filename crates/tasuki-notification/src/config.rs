//! The settings of notification. What each means and costs is written in `default.toml`.

use std::num::NonZeroU32;
use std::time::Duration;

use serde::de::Error;
use serde::{Deserialize, Deserializer};
use tasuki::bus::{ConsumerSpec, StreamSpec};
use tasuki::retry::{Backoff, Policy};
use tasuki_contract::streams;
use tasuki_service::config::{Leased, ServiceDatabase, ServiceServer, time_within, within};

use crate::domain::Channel;
use crate::workers::DELIVERIES;

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
    /// `[notification.shop-nats]`
    pub shop_nats: Source,
    /// `[notification.community-nats]`
    pub community_nats: Source,
    /// `[notification.sweep]`
    pub sweep: Sweep,
    /// `[notification.delivery]`
    pub delivery: Delivery,
    /// `[notification.webhook]`
    pub webhook: Webhook,
    /// `[notification.live-stream]`
    pub live_stream: LiveStream,
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
    #[serde(deserialize_with = "broker_name")]
    pub stream: String,
    pub subject: String,
    #[serde(deserialize_with = "broker_name")]
    pub durable: String,
    #[serde(deserialize_with = "duplicate_window")]
    pub duplicate_window: Duration,
    #[serde(deserialize_with = "ack_wait")]
    pub ack_wait: Duration,
    pub max_deliver: NonZeroU32,
    #[serde(deserialize_with = "batch_size")]
    pub batch_size: usize,
    pub advisory: Advisory,
    pub terminated_advisory: Advisory,
}

/// `[notification.nats.advisory]` and its like.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Advisory {
    #[serde(deserialize_with = "broker_name")]
    pub stream: String,
    #[serde(deserialize_with = "broker_name")]
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
    #[serde(deserialize_with = "sweep_interval")]
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
    #[serde(deserialize_with = "places")]
    pub concurrency: usize,
    #[serde(deserialize_with = "places")]
    pub endpoint_concurrency: usize,
    #[serde(deserialize_with = "webhook_timeout")]
    pub connect_timeout: Duration,
    #[serde(deserialize_with = "webhook_timeout")]
    pub timeout: Duration,
    pub max_attempts: NonZeroU32,
    #[serde(deserialize_with = "webhook_wait")]
    pub backoff_base: Duration,
    #[serde(deserialize_with = "webhook_wait")]
    pub backoff_max: Duration,
    #[serde(deserialize_with = "some")]
    pub circuit_failures: u32,
    #[serde(deserialize_with = "given_up_after")]
    pub disable_after: Duration,
    #[serde(deserialize_with = "given_up_after")]
    pub keep_for_closed: Duration,
    pub allow_private_addresses: bool,
    #[serde(deserialize_with = "rotation_overlap")]
    pub rotation_overlap: Duration,
    #[serde(deserialize_with = "some")]
    pub endpoints_per_user: u32,
}

impl Notification {
    /// The streams that are consumed, and their sections.
    pub(crate) const fn sources(&self) -> [(&'static str, &Source); 4] {
        [
            ("nats", &self.nats),
            ("matchmaking-nats", &self.matchmaking_nats),
            ("shop-nats", &self.shop_nats),
            ("community-nats", &self.community_nats),
        ]
    }

    /// A source whose messages are given up within less than an hour: a short outage of something would
    /// cost a person's time. Its section, and after how many deliveries.
    pub(crate) fn gives_up_early(&self) -> Option<(&'static str, u32)> {
        let mut sources = self.sources().into_iter();
        let early = sources.find(|(_, it)| it.enabled && it.max_deliver.get() < DELIVERIES);
        early.map(|(section, source)| (section, source.max_deliver.get()))
    }

    /// Why settings that are fine each by itself do not go together; nothing if they do.
    pub(crate) fn contradiction(&self) -> Option<(&'static str, String)> {
        let (failing, closed) = (self.webhook.disable_after, self.webhook.keep_for_closed);
        let days = self.retention.retention_days;
        // What an endpoint is owed may wait for so long, and what waits for longer is an anomaly.
        if failing + closed < DAY * u32::from(days) {
            return None;
        }
        let problem = format!(
            "{closed:?} and notification.webhook.disable-after, {failing:?}, are together not less \
             than notification.retention.retention-days, {days}"
        );
        Some(("notification.webhook.keep-for-closed", problem))
    }
}

impl Webhook {
    /// How often, and how long apart, an attempt that fails is repeated.
    pub(crate) fn policy(&self) -> Policy {
        let backoff = Backoff::exponential(self.backoff_base, self.backoff_max).jitter(0.8, 1.2);
        Policy::new(self.max_attempts.get(), backoff)
    }
}

/// `[notification.live-stream]`
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct LiveStream {
    #[serde(deserialize_with = "lifetime")]
    pub lifetime: Duration,
    #[serde(deserialize_with = "stream_limit")]
    pub per_user: usize,
    #[serde(deserialize_with = "stream_limit")]
    pub per_process: usize,
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
    #[serde(deserialize_with = "retention_days")]
    pub retention_days: u16,
    #[serde(deserialize_with = "cleanup_interval")]
    pub cleanup_interval: Duration,
}

const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(60 * 60);
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// What the broker takes as the name of a stream or a consumer.
fn broker_name<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    let name = String::deserialize(deserializer)?;
    let is_bad = |c: char| c.is_whitespace() || c.is_control() || ".*>/\\".contains(c);
    if (1..=255).contains(&name.len()) && !name.contains(is_bad) {
        return Ok(name);
    }
    let problem = format!("{name:?} is not a name of 1 to 255 bytes without spaces and . * > / \\");
    Err(D::Error::custom(problem))
}

fn duplicate_window<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    time_within(deserializer, &(SECOND..=DAY))
}

/// Shorter ones would be over before a busy database has answered.
fn ack_wait<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    time_within(deserializer, &(SECOND..=HOUR))
}

fn batch_size<'de, D: Deserializer<'de>>(deserializer: D) -> Result<usize, D::Error> {
    within(usize::deserialize(deserializer)?, &(1..=1000))
}

fn sweep_interval<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    time_within(deserializer, &(Duration::from_millis(100)..=HOUR))
}

fn places<'de, D: Deserializer<'de>>(deserializer: D) -> Result<usize, D::Error> {
    within(usize::deserialize(deserializer)?, &(1..=10_000))
}

fn webhook_timeout<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    time_within(deserializer, &(Duration::from_millis(100)..=HOUR))
}

fn webhook_wait<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    time_within(deserializer, &(Duration::from_millis(1)..=DAY))
}

fn given_up_after<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    time_within(deserializer, &(HOUR..=DAY * 365))
}

/// Nothing: an old secret ends at once.
fn rotation_overlap<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    time_within(deserializer, &(Duration::ZERO..=DAY * 30))
}

fn some<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    within(u32::deserialize(deserializer)?, &(1..=1_000_000))
}

fn lifetime<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    time_within(deserializer, &(SECOND..=DAY))
}

fn stream_limit<'de, D: Deserializer<'de>>(deserializer: D) -> Result<usize, D::Error> {
    within(usize::deserialize(deserializer)?, &(1..=1_000_000))
}

/// A stream keeps messages for seven days. One that comes again after its event was forgotten
/// would be told twice.
fn retention_days<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u16, D::Error> {
    within(u16::deserialize(deserializer)?, &(8..=3650))
}

fn cleanup_interval<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    time_within(deserializer, &(SECOND..=DAY))
}

#[cfg(test)]
mod tests {
    use tasuki_service::Config;
    use toml::Value;

    use super::*;
    use crate::DEFAULTS;

    fn read(key: &str, value: impl Into<Value>) -> Result<Notification, String> {
        let config = Config::defaults(&[DEFAULTS]).and_then(|it| it.with_value(key, value));
        let section = config.and_then(|config| config.section("notification"));
        section.map_err(|error| error.to_string())
    }

    #[track_caller]
    fn is_refused(key: &str, value: impl Into<Value>, words: &str) {
        let key = format!("notification.{key}");
        let refused = read(&key, value).unwrap_err();
        assert!(
            refused.contains(&key) && refused.contains(words),
            "{refused}"
        );
    }

    #[test]
    fn what_would_tell_an_event_twice_or_never_work_is_refused_with_key_value_and_range() {
        is_refused("retention.retention-days", 7, "7 is not from 8 to 3650");
        is_refused("retention.retention-days", 4000, "4000 is not from 8");
        is_refused("retention.cleanup-interval", "0s", "0ns is not from 1s");
        is_refused("nats.ack-wait", "10ms", "10ms is not from 1s to 3600s");
        is_refused("nats.duplicate-window", "0s", "0ns is not from 1s");
        is_refused("nats.batch-size", 0, "0 is not from 1 to 1000");
        is_refused("nats.max-deliver", 0, "");
        is_refused("nats.durable", "", "is not a name");
        is_refused("matchmaking-nats.stream", "a.b", "\"a.b\" is not a name");
        is_refused("nats.advisory.stream", "a b", "\"a b\" is not a name");
        is_refused("sweep.interval", "1ms", "1ms is not from 100ms to 3600s");
        is_refused("webhook.concurrency", 0, "0 is not from 1 to 10000");
        is_refused("webhook.timeout", "0s", "0ns is not from 100ms to 3600s");
        is_refused("webhook.circuit-failures", 0, "0 is not from 1");
        is_refused("webhook.disable-after", "1m", "60s is not from 3600s to");
        is_refused("webhook.keep-for-closed", "0s", "0ns is not from 3600s to");
        is_refused("webhook.rotation-overlap", "31d", "from 0ns to 2592000s");
        is_refused("live-stream.lifetime", "2d", "is not from 1s to 86400s");
        is_refused("live-stream.per-user", 0, "0 is not from 1");
        is_refused("live-stream.per-process", 0, "0 is not from 1");
        assert!(read("notification.retention.retention-days", 8).is_ok());
    }

    #[test]
    fn what_endpoints_are_owed_is_given_up_before_it_is_an_anomaly() {
        let days = |days: i64| read("notification.retention.retention-days", days).unwrap();
        assert_eq!(days(20).contradiction(), None);
        let (key, problem) = days(19).contradiction().unwrap();
        assert_eq!(key, "notification.webhook.keep-for-closed");
        for other in ["webhook.disable-after", "retention.retention-days, 19"] {
            assert!(problem.contains(other), "{problem}");
        }
    }

    #[test]
    fn an_endpoint_may_be_down_for_most_of_a_day_before_a_message_to_it_is_dead() {
        let webhook = read("notification.retention.retention-days", 30)
            .unwrap()
            .webhook;
        let least = Backoff::exponential(webhook.backoff_base, webhook.backoff_max);
        let waits = 1..webhook.max_attempts.get();
        let least: Duration = waits.map(|attempt| least.delay(attempt, 0.0)).sum();
        assert!(least > Duration::from_secs(20 * 3600), "{least:?}");
    }
}
