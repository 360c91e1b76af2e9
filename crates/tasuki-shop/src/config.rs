//! The settings of the shop. What each means and costs is written in `default.toml`.

use std::time::Duration;

use serde::de::Error;
use serde::{Deserialize, Deserializer};
use tasuki::bus::StreamSpec;
use tasuki_contract::streams;
use tasuki_service::config::{
    Address, Error as ConfigError, Leased, ServiceDatabase, ServiceServer, time_within, within,
};

use crate::errands::Pace;

/// `[shop]`
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Shop {
    /// `[shop.server]`
    pub server: ServiceServer,
    /// `[shop.database]`
    pub database: ServiceDatabase,
    /// `[shop.warehouse]`
    pub warehouse: Warehouse,
    /// `[shop.idempotency]`
    pub idempotency: Idempotency,
    /// `[shop.orders]`
    pub orders: Orders,
    /// `[shop.payment]`
    pub payment: Payment,
    /// `[shop.entitlement]`
    pub entitlement: Entitlement,
    /// `[shop.outbox]`
    pub outbox: Outbox,
    /// `[shop.nats]`
    pub nats: Nats,
    /// `[shop.retention]`
    pub retention: Retention,
}

/// `[shop.warehouse]`
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Warehouse {
    #[serde(deserialize_with = "Address::postgres")]
    pub url: Address,
    #[serde(deserialize_with = "transfer_timeout")]
    pub timeout: Duration,
}

/// `[shop.idempotency]`
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Idempotency {
    #[serde(deserialize_with = "ttl_hours")]
    pub ttl_hours: u32,
    #[serde(deserialize_with = "wait")]
    pub wait: Duration,
}

/// `[shop.orders]`
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Orders {
    #[serde(deserialize_with = "some_time")]
    pub reservation: Duration,
    #[serde(deserialize_with = "concurrency")]
    pub concurrency: usize,
}

/// `[shop.payment]`
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Payment {
    #[serde(deserialize_with = "call_timeout")]
    pub timeout: Duration,
    #[serde(deserialize_with = "attempts")]
    pub max_attempts: u32,
    #[serde(deserialize_with = "persistence")]
    pub keep_trying: Duration,
    #[serde(deserialize_with = "attempts")]
    pub undo_attempts: u32,
    #[serde(deserialize_with = "pause")]
    pub backoff_base: Duration,
    #[serde(deserialize_with = "pause")]
    pub backoff_max: Duration,
    #[serde(deserialize_with = "calls")]
    pub concurrency: usize,
}

/// `[shop.entitlement]`
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Entitlement {
    #[serde(deserialize_with = "http_address")]
    pub url: String,
    #[serde(deserialize_with = "call_timeout")]
    pub timeout: Duration,
    #[serde(deserialize_with = "calls")]
    pub concurrency: usize,
}

/// `[shop.outbox]`
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Outbox {
    pub enabled: bool,
    #[serde(flatten)]
    pub leased: Leased,
    #[serde(deserialize_with = "published_ttl")]
    pub published_ttl: Duration,
}

/// `[shop.nats]`
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Nats {
    #[serde(deserialize_with = "required")]
    pub subject: String,
    #[serde(deserialize_with = "required")]
    pub stream: String,
    #[serde(deserialize_with = "a_day_at_most")]
    pub duplicate_window: Duration,
    #[serde(deserialize_with = "required")]
    pub durable: String,
    #[serde(deserialize_with = "ack_wait")]
    pub ack_wait: Duration,
}

/// `[shop.retention]`
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Retention {
    pub enabled: bool,
    #[serde(deserialize_with = "a_day_at_most")]
    pub cleanup_interval: Duration,
    #[serde(deserialize_with = "a_day_at_most")]
    pub reconcile_interval: Duration,
    #[serde(deserialize_with = "notices")]
    pub notices: Duration,
}

impl Nats {
    pub(crate) fn spec(&self, replicas: usize) -> StreamSpec {
        streams::events(&self.stream, &self.subject, self.duplicate_window, replicas)
    }
}

impl Shop {
    /// Checks what no setting can tell alone.
    ///
    /// # Errors
    /// When settings don't go together.
    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        if self.entitlement.url.is_empty() {
            return Err(ConfigError::Missing {
                key: "shop.entitlement.url",
                variable: "TASUKI_SHOP__ENTITLEMENT__URL",
            });
        }
        let (base, max) = (self.payment.backoff_base, self.payment.backoff_max);
        if base > max {
            let reason = format!("{base:?} is above shop.payment.backoff-max, {max:?}");
            return Err(ConfigError::invalid("shop.payment.backoff-base", &reason));
        }
        Ok(())
    }

    /// How often calls elsewhere are tried.
    pub(crate) fn pace(&self) -> Pace {
        let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        // One order may ask entitlement for many items; the calls that were answered are answered
        // at once the next time.
        let call = self.payment.timeout + 10 * self.entitlement.timeout + 5 * SECOND;
        Pace {
            tries: self.payment.max_attempts,
            persist: millis(self.payment.keep_trying),
            undo_tries: self.payment.undo_attempts,
            base: millis(self.payment.backoff_base),
            most: millis(self.payment.backoff_max),
            call: millis(call),
        }
    }
}

const MILLI: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(60 * 60);
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

fn required<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    let text = String::deserialize(deserializer)?;
    if text.is_empty() {
        return Err(D::Error::custom("it is required"));
    }
    Ok(text)
}

fn http_address<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    let text = String::deserialize(deserializer)?;
    let parsed = reqwest::Url::parse(&text);
    let is_http = parsed.is_ok_and(|url| matches!(url.scheme(), "http" | "https"));
    if text.is_empty() || is_http {
        return Ok(text);
    }
    Err(D::Error::custom(
        "it is an address that begins with http:// or https://",
    ))
}

/// An answer that is not kept is given twice: the second time with another effect.
fn ttl_hours<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    within(u32::deserialize(deserializer)?, &(1..=8760))
}

fn wait<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    time_within(deserializer, &(Duration::ZERO..=10 * SECOND))
}

fn some_time<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    time_within(deserializer, &(SECOND..=30 * DAY))
}

fn concurrency<'de, D: Deserializer<'de>>(deserializer: D) -> Result<usize, D::Error> {
    within(usize::deserialize(deserializer)?, &(1..=100_000))
}

fn calls<'de, D: Deserializer<'de>>(deserializer: D) -> Result<usize, D::Error> {
    within(usize::deserialize(deserializer)?, &(1..=1000))
}

fn call_timeout<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    time_within(deserializer, &(10 * MILLI..=10 * MINUTE))
}

fn transfer_timeout<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    time_within(deserializer, &(100 * MILLI..=MINUTE))
}

fn attempts<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    within(u32::deserialize(deserializer)?, &(1..=1000))
}

fn persistence<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    time_within(deserializer, &(Duration::ZERO..=DAY))
}

fn pause<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    time_within(deserializer, &(MILLI..=DAY))
}

/// What the broker loses is found by comparing it with these. Older ones would come again, from a stream
/// that has lost everything, when who is told has forgotten them: streams keep theirs for seven days, and
/// consumers remember for longer than that.
fn published_ttl<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    time_within(deserializer, &(HOUR..=7 * DAY))
}

fn ack_wait<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    time_within(deserializer, &(SECOND..=HOUR))
}

/// Somebody must have had the time to read them.
fn notices<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    time_within(deserializer, &(DAY..=3650 * DAY))
}

fn a_day_at_most<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    time_within(deserializer, &(SECOND..=DAY))
}

#[cfg(test)]
mod tests {
    use tasuki_service::Config;

    use super::*;
    use crate::DEFAULTS;

    fn read(key: &str, value: &str) -> Result<Shop, String> {
        let variable = key.replace('.', "__").replace('-', "_").to_uppercase();
        let variables = [(format!("TASUKI_SHOP__{variable}"), value.to_owned())];
        let config = Config::defaults(&[DEFAULTS]).and_then(|it| it.with_environment(variables));
        let section = config.and_then(|config| config.section("shop"));
        section.map_err(|error| error.to_string())
    }

    #[test]
    fn what_can_not_be_meant_is_refused_with_its_key_value_and_range() {
        for (key, value, words) in [
            ("idempotency.ttl-hours", "0", "0 is not from 1 to 8760"),
            ("orders.reservation", "31d", "is not from 1s"),
            ("orders.concurrency", "0", "0 is not from 1 to 100000"),
            ("payment.timeout", "1ms", "1ms is not from 10ms"),
            ("payment.max-attempts", "0", "0 is not from 1 to 1000"),
            ("payment.keep-trying", "25h", "is not from 0ns"),
            ("payment.backoff-base", "0s", "0ns is not from 1ms"),
            ("payment.concurrency", "0", "0 is not from 1 to 1000"),
            ("entitlement.concurrency", "0", "0 is not from 1 to 1000"),
            ("entitlement.url", "entitlement:80", "begins with http://"),
            ("warehouse.url", "mysql://x", "begins with postgres://"),
            ("warehouse.timeout", "1ms", "1ms is not from 100ms"),
            ("nats.subject", "", "it is required"),
            ("nats.durable", "", "it is required"),
            ("retention.reconcile-interval", "0s", "0ns is not from 1s"),
            ("retention.notices", "1h", "is not from"),
            ("outbox.published-ttl", "8d", "is not from 3600s to 604800s"),
        ] {
            let refused = read(key, value).unwrap_err();
            assert!(refused.contains(&format!("shop.{key} ")), "{refused}");
            assert!(refused.contains(words), "{refused}");
        }
    }

    #[test]
    fn settings_that_do_not_go_together_are_refused_with_both_keys() {
        let missing = read("payment.backoff-base", "1s").unwrap().check();
        assert!(
            missing
                .unwrap_err()
                .to_string()
                .contains("shop.entitlement.url")
        );
        let mut own = read("entitlement.url", "http://e").unwrap();
        own.check().unwrap();
        own.payment.backoff_base = own.payment.backoff_max * 2;
        let refused = own.check().unwrap_err().to_string();
        assert!(refused.contains("shop.payment.backoff-base"));
        assert!(refused.contains("shop.payment.backoff-max"));
    }
}
