//! The settings of entitlement. What each means and costs is written in `default.toml`.

use std::time::Duration;

use serde::de::Error;
use serde::{Deserialize, Deserializer};
use tasuki::bus::StreamSpec;
use tasuki_contract::streams;
use tasuki_service::config::{
    Error as ConfigError, Leased, ServiceDatabase, ServiceServer, time_within, within,
};

/// `[entitlement]`
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Entitlement {
    /// `[entitlement.server]`
    pub server: ServiceServer,
    /// `[entitlement.database]`
    pub database: ServiceDatabase,
    /// `[entitlement.commands]`
    pub commands: Commands,
    /// `[entitlement.idempotency]`
    pub idempotency: Idempotency,
    /// `[entitlement.outbox]`
    pub outbox: Outbox,
    /// `[entitlement.nats]`
    pub nats: Nats,
    /// `[entitlement.retention]`
    pub retention: Retention,
}

/// The most locks that the transactions of one process hold together. A server with the defaults
/// has room for about 12,800, and they are everybody's.
const MOST_LOCKS: usize = 8192;

impl Entitlement {
    /// Checks what no setting can tell alone.
    ///
    /// # Errors
    /// When settings don't go together.
    pub(crate) fn check(&self, request_timeout: Duration) -> Result<(), ConfigError> {
        let Commands {
            max_batch,
            concurrency,
            ..
        } = self.commands;
        let locks = 2 * max_batch * concurrency;
        if locks > MOST_LOCKS {
            let reason = format!(
                "{max_batch} commands, two locks each, in entitlement.commands.concurrency = \
                 {concurrency} transactions are {locks} locks, and the server's table has room for \
                 {MOST_LOCKS} of them: lower one of the two"
            );
            return Err(ConfigError::invalid(
                "entitlement.commands.max-batch",
                &reason,
            ));
        }
        if self.idempotency.wait >= request_timeout {
            let reason = format!(
                "{:?} is not below http.request-timeout, {request_timeout:?}",
                self.idempotency.wait
            );
            return Err(ConfigError::invalid(
                "entitlement.idempotency.wait",
                &reason,
            ));
        }
        Ok(())
    }
}

/// `[entitlement.commands]`
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Commands {
    #[serde(deserialize_with = "max_batch")]
    pub max_batch: usize,
    #[serde(deserialize_with = "queue")]
    pub queue: usize,
    #[serde(deserialize_with = "concurrency")]
    pub concurrency: usize,
}

/// `[entitlement.idempotency]`
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Idempotency {
    #[serde(deserialize_with = "ttl_hours")]
    pub ttl_hours: u32,
    #[serde(deserialize_with = "wait")]
    pub wait: Duration,
}

/// `[entitlement.outbox]`
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Outbox {
    pub enabled: bool,
    #[serde(flatten)]
    pub leased: Leased,
    #[serde(deserialize_with = "published_ttl")]
    pub published_ttl: Duration,
}

/// `[entitlement.nats]`
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Nats {
    #[serde(deserialize_with = "required")]
    pub subject: String,
    #[serde(deserialize_with = "required")]
    pub stream: String,
    #[serde(deserialize_with = "duplicate_window")]
    pub duplicate_window: Duration,
}

impl Nats {
    pub(crate) fn spec(&self, replicas: usize) -> StreamSpec {
        streams::events(&self.stream, &self.subject, self.duplicate_window, replicas)
    }
}

/// `[entitlement.retention]`
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Retention {
    pub enabled: bool,
    #[serde(deserialize_with = "cleanup_interval")]
    pub cleanup_interval: Duration,
    #[serde(deserialize_with = "audit_days")]
    pub audit_days: u32,
}

const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(60 * 60);
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

fn required<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    let text = String::deserialize(deserializer)?;
    if text.is_empty() {
        return Err(D::Error::custom("it is required"));
    }
    Ok(text)
}

/// Each takes two locks of the server's table, which is everybody's.
fn max_batch<'de, D: Deserializer<'de>>(deserializer: D) -> Result<usize, D::Error> {
    within(usize::deserialize(deserializer)?, &(1..=1000))
}

fn queue<'de, D: Deserializer<'de>>(deserializer: D) -> Result<usize, D::Error> {
    within(usize::deserialize(deserializer)?, &(1..=1_000_000))
}

fn concurrency<'de, D: Deserializer<'de>>(deserializer: D) -> Result<usize, D::Error> {
    within(usize::deserialize(deserializer)?, &(1..=64))
}

/// An answer that is not kept is given twice: the second time with another effect.
fn ttl_hours<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    within(u32::deserialize(deserializer)?, &(1..=8760))
}

/// Well below the limit of a request.
fn wait<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    time_within(deserializer, &(Duration::ZERO..=10 * SECOND))
}

/// What the broker loses is found by comparing it with these. Older ones would come again, from a stream
/// that has lost everything, when who is told has forgotten them: streams keep theirs for seven days, and
/// consumers remember for longer than that.
fn published_ttl<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    time_within(deserializer, &(HOUR..=7 * DAY))
}

fn duplicate_window<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    time_within(deserializer, &(SECOND..=DAY))
}

fn cleanup_interval<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    time_within(deserializer, &(SECOND..=DAY))
}

/// Whole months go, and verification needs those of published events.
fn audit_days<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    within(u32::deserialize(deserializer)?, &(31..=36_500))
}

#[cfg(test)]
mod tests {
    use tasuki_service::Config;

    use super::*;
    use crate::DEFAULTS;

    fn read(key: &str, value: &str) -> Result<Entitlement, String> {
        let variable = key.replace('.', "__").replace('-', "_").to_uppercase();
        let variables = [(format!("TASUKI_ENTITLEMENT__{variable}"), value.to_owned())];
        let config = Config::defaults(&[DEFAULTS]).and_then(|it| it.with_environment(variables));
        let section = config.and_then(|config| config.section("entitlement"));
        section.map_err(|error| error.to_string())
    }

    #[test]
    fn what_can_not_be_meant_is_refused_with_its_key_value_and_range() {
        for (key, value, words) in [
            ("commands.max-batch", "0", "0 is not from 1 to 1000"),
            ("commands.queue", "0", "0 is not from 1 to 1000000"),
            ("commands.concurrency", "65", "65 is not from 1 to 64"),
            ("idempotency.ttl-hours", "0", "0 is not from 1 to 8760"),
            ("idempotency.wait", "11s", "11s is not from 0ns to 10s"),
            ("outbox.published-ttl", "59m", "3540s is not from 3600s"),
            ("outbox.published-ttl", "8d", "is not from 3600s to 604800s"),
            ("nats.duplicate-window", "0s", "0ns is not from 1s"),
            ("nats.subject", "", "it is required"),
            ("nats.stream", "", "it is required"),
            ("retention.cleanup-interval", "0s", "0ns is not from 1s"),
            ("retention.audit-days", "1", "1 is not from 31 to 36500"),
            ("outbox.poll-interval", "5s", "it is from 200ms to 1s"),
            ("outbox.batch-size", "1001", "it is from 1 to 1000"),
            ("outbox.lease", "0s", "it is from 1s to 1h"),
        ] {
            let refused = read(key, value).unwrap_err();
            assert!(
                refused.contains(&format!("entitlement.{key} ")),
                "{refused}"
            );
            assert!(refused.contains(words), "{refused}");
        }
        for (key, value) in [
            ("outbox.poll-interval", "200ms"),
            ("outbox.batch-size", "1"),
            ("outbox.published-ttl", "1h"),
            ("outbox.published-ttl", "7d"),
            ("retention.audit-days", "31"),
            ("idempotency.wait", "0s"),
        ] {
            read(key, value).unwrap();
        }
    }

    #[test]
    fn settings_that_do_not_go_together_are_refused_with_both_keys() {
        let minute = Duration::from_secs(60);
        let mut own = read("commands.max-batch", "1000").unwrap();
        own.commands.concurrency = 4;
        own.check(minute).unwrap();
        own.commands.concurrency = 5;
        let refused = own.check(minute).unwrap_err().to_string();
        assert!(refused.contains("entitlement.commands.max-batch"));
        assert!(refused.contains("entitlement.commands.concurrency"));

        let own = read("idempotency.wait", "2s").unwrap();
        own.check(3 * SECOND).unwrap();
        let refused = own.check(2 * SECOND).unwrap_err().to_string();
        assert!(refused.contains("entitlement.idempotency.wait"));
        assert!(refused.contains("http.request-timeout"));
    }
}
