//! The sections that every service shares. What each field means and costs is written in
//! `default.toml`, beside its default.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::time::Duration;

use ipnet::IpNet;
use serde::{Deserialize, Deserializer};
use tasuki::retry::{Backoff, Policy};

use super::{Address, Config, Error, Size};
use crate::auth::credentials::ScopeName;

/// All shared sections.
#[derive(Clone, Debug)]
pub struct Common {
    /// `[platform]`
    pub platform: Platform,
    /// `[database]`
    pub database: Database,
    /// `[nats]`
    pub nats: Nats,
    /// `[redis]`
    pub redis: Redis,
    /// `[http]`
    pub http: Http,
    /// `[shutdown]`
    pub shutdown: Shutdown,
    /// `[telemetry]`
    pub telemetry: Telemetry,
    /// `[auth]`
    pub auth: Auth,
}

impl Common {
    /// The embedded defaults of these sections.
    pub const DEFAULTS: &'static str = include_str!("../default.toml");

    /// Reads them all.
    ///
    /// # Errors
    /// On the first value that does not fit.
    pub fn read(config: &Config) -> Result<Self, Error> {
        Ok(Self {
            platform: config.section("platform")?,
            database: config.section("database")?,
            nats: config.section("nats")?,
            redis: config.section("redis")?,
            http: config.section("http")?,
            shutdown: config.section("shutdown")?,
            telemetry: config.section("telemetry")?,
            auth: config.section("auth")?,
        })
    }
}

/// `[platform]`
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Platform {
    pub mode: Mode,
}

/// Where the platform runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// Makes its own secrets, prints what a person needs.
    Development,
    /// Refuses what is only safe on one's own machine.
    Production,
}

/// `[database]`
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Database {
    #[serde(deserialize_with = "Address::postgres")]
    pub url: Address,
    #[serde(deserialize_with = "connections")]
    pub max_connections: NonZeroU32,
    #[serde(deserialize_with = "connections")]
    pub worker_connections: NonZeroU32,
    #[serde(deserialize_with = "some_time")]
    pub acquire_timeout: Duration,
    #[serde(deserialize_with = "some_time")]
    pub connect_timeout: Duration,
    #[serde(deserialize_with = "server_limit")]
    pub statement_timeout: Duration,
    #[serde(deserialize_with = "server_limit")]
    pub lock_timeout: Duration,
    #[serde(deserialize_with = "server_limit")]
    pub idle_in_transaction_timeout: Duration,
    #[serde(with = "humantime_serde")]
    pub start_timeout: Duration,
}

/// `[nats]`
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Nats {
    #[serde(deserialize_with = "Address::nats")]
    pub url: Address,
    #[serde(deserialize_with = "some_time")]
    pub connection_timeout: Duration,
    #[serde(deserialize_with = "replicas")]
    pub replicas: usize,
}

/// `[redis]`
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Redis {
    #[serde(deserialize_with = "Address::redis")]
    pub url: Address,
}

/// `[http]`
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Http {
    pub max_body: Size,
    #[serde(deserialize_with = "head_size")]
    pub max_head: Size,
    #[serde(deserialize_with = "some_time")]
    pub head_timeout: Duration,
    #[serde(deserialize_with = "some_time")]
    pub body_timeout: Duration,
    #[serde(deserialize_with = "some_time")]
    pub request_timeout: Duration,
    #[serde(deserialize_with = "some_time")]
    pub write_timeout: Duration,
    #[serde(deserialize_with = "connections")]
    pub max_connections: NonZeroU32,
    #[serde(deserialize_with = "networks")]
    pub trusted_proxies: Vec<IpNet>,
}

/// `[shutdown]`
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Shutdown {
    #[serde(with = "humantime_serde")]
    pub drain_delay: Duration,
    #[serde(with = "humantime_serde")]
    pub grace: Duration,
}

/// `[telemetry]`
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Telemetry {
    #[serde(deserialize_with = "log_filter")]
    pub log: String,
    pub log_format: LogFormat,
    #[serde(deserialize_with = "http_address")]
    pub otlp_endpoint: String,
    #[serde(deserialize_with = "ratio")]
    pub trace_sample_ratio: f64,
}

/// How log lines look.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LogFormat {
    /// Pretty on a terminal, JSON otherwise.
    Auto,
    /// For people.
    Pretty,
    /// For machines, a line each.
    Json,
}

/// `[auth]`
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Auth {
    #[serde(deserialize_with = "optional_path")]
    pub key_dir: Option<PathBuf>,
    #[serde(deserialize_with = "token_lifetime")]
    pub token_lifetime: Duration,
    #[serde(deserialize_with = "up_to_a_minute")]
    pub clock_skew: Duration,
    #[serde(with = "humantime_serde")]
    pub credential_cache: Duration,
    #[serde(with = "humantime_serde")]
    pub jwks_cache: Duration,
    #[serde(deserialize_with = "http_addresses")]
    pub issuers: BTreeMap<String, String>,
    #[serde(deserialize_with = "scopes")]
    pub callers: BTreeMap<String, Vec<String>>,
}

/// `[<service>.server]`: where a service listens.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct ServiceServer {
    pub listen: SocketAddr,
    pub internal_listen: SocketAddr,
}

/// How rows with a lease are worked on: an outbox, deliveries.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Leased {
    #[serde(deserialize_with = "poll_interval")]
    pub poll_interval: Duration,
    #[serde(deserialize_with = "batch_size")]
    pub batch_size: usize,
    #[serde(deserialize_with = "lease")]
    pub lease: Duration,
    pub max_attempts: NonZeroU32,
    #[serde(deserialize_with = "some_time")]
    pub backoff_base: Duration,
    #[serde(deserialize_with = "some_time")]
    pub backoff_max: Duration,
    #[serde(with = "humantime_serde")]
    pub backoff_min: Duration,
    #[serde(deserialize_with = "factor")]
    pub backoff_exponent_base: f64,
    #[serde(deserialize_with = "share")]
    pub backoff_jitter_min: f64,
    #[serde(deserialize_with = "share")]
    pub backoff_jitter_max: f64,
}

impl Leased {
    /// How often, and how long apart, something that fails is tried.
    #[must_use]
    pub fn policy(&self) -> Policy {
        let backoff = Backoff::exponential(self.backoff_base, self.backoff_max)
            .factor(self.backoff_exponent_base)
            .jitter(self.backoff_jitter_min, self.backoff_jitter_max)
            .at_least(self.backoff_min);
        Policy::new(self.max_attempts.get(), backoff)
    }
}

/// `[<service>.database]`: a database of its own for one service.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct ServiceDatabase {
    #[serde(deserialize_with = "Address::postgres")]
    pub url: Address,
}

fn ratio<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    let ratio = f64::deserialize(deserializer)?;
    if (0.0..=1.0).contains(&ratio) {
        Ok(ratio)
    } else {
        Err(serde::de::Error::custom(format!(
            "{ratio} is not between 0 and 1"
        )))
    }
}

fn log_filter<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    let text = String::deserialize(deserializer)?;
    match tracing_subscriber::EnvFilter::try_new(&text) {
        Ok(_filter) => Ok(text),
        Err(error) => {
            let problem = format!("{text:?} is not a log filter: {error}");
            Err(serde::de::Error::custom(problem))
        }
    }
}

fn http_address<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    let text = String::deserialize(deserializer)?;
    if text.is_empty() || is_http(&text) {
        return Ok(text);
    }
    let problem = "it is an address that begins with http:// or https://";
    Err(serde::de::Error::custom(problem))
}

fn http_addresses<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<BTreeMap<String, String>, D::Error> {
    let all = BTreeMap::<String, String>::deserialize(deserializer)?;
    match all.iter().find(|(_, address)| !is_http(address)) {
        None => Ok(all),
        Some((name, _)) => {
            let problem = format!("the address of {name} begins with http:// or https://");
            Err(serde::de::Error::custom(problem))
        }
    }
}

/// A list, or a text with commas between, which is what a variable can say.
#[derive(Deserialize)]
#[serde(untagged)]
enum Words {
    List(Vec<String>),
    Text(String),
}

impl Words {
    fn each(self) -> impl Iterator<Item = String> {
        let words = match self {
            Self::List(list) => list,
            // An empty one takes away what a file says.
            Self::Text(text) if text.trim().is_empty() => Vec::new(),
            Self::Text(text) => text.split(',').map(str::to_owned).collect(),
        };
        words.into_iter().map(|word| word.trim().to_owned())
    }
}

/// Networks as 10.0.0.0/8, or single addresses.
fn networks<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<IpNet>, D::Error> {
    let read = |word: String| {
        let single = || word.parse::<IpAddr>().map(IpNet::from);
        word.parse().or_else(|_error| single()).map_err(|_error| {
            let problem = format!("{word:?} is not a network as 10.0.0.0/8, or an address");
            serde::de::Error::custom(problem)
        })
    };
    Words::deserialize(deserializer)?.each().map(read).collect()
}

fn scopes<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<BTreeMap<String, Vec<String>>, D::Error> {
    let all = BTreeMap::<String, Words>::deserialize(deserializer)?;
    let checked = |scope: String| {
        let scope: Result<ScopeName, _> = scope.parse();
        scope.map(|scope| scope.to_string())
    };
    let each = all.into_iter().map(|(service, scopes)| {
        let scopes: Result<Vec<String>, _> = scopes.each().map(checked).collect();
        scopes.map(|scopes| (service, scopes))
    });
    let checked: Result<_, _> = each.collect();
    checked.map_err(serde::de::Error::custom)
}

fn is_http(text: &str) -> bool {
    let parsed = reqwest::Url::parse(text);
    parsed.is_ok_and(|url| matches!(url.scheme(), "http" | "https"))
}

/// More can't be meant, and would be set aside at the start.
fn connections<'de, D: Deserializer<'de>>(deserializer: D) -> Result<NonZeroU32, D::Error> {
    const MOST: u32 = 100_000;
    let number = NonZeroU32::deserialize(deserializer)?;
    if number.get() > MOST {
        return Err(serde::de::Error::custom(format!("it is at most {MOST}")));
    }
    Ok(number)
}

/// The server counts in milliseconds, and takes 0 for no limit: a process that is stopped in the
/// middle of a transaction would hold its locks for ever.
fn server_limit<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    let limit: Duration = humantime_serde::deserialize(deserializer)?;
    if limit < Duration::from_millis(1) {
        return Err(serde::de::Error::custom("it is at least 1ms"));
    }
    Ok(limit)
}

fn some_time<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    let time: Duration = humantime_serde::deserialize(deserializer)?;
    if time.is_zero() {
        return Err(serde::de::Error::custom("it is more than 0s"));
    }
    Ok(time)
}

fn replicas<'de, D: Deserializer<'de>>(deserializer: D) -> Result<usize, D::Error> {
    let replicas = usize::deserialize(deserializer)?;
    if matches!(replicas, 1 | 3 | 5) {
        return Ok(replicas);
    }
    Err(serde::de::Error::custom("it is 1, 3 or 5"))
}

fn poll_interval<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    let time: Duration = humantime_serde::deserialize(deserializer)?;
    if (Duration::from_millis(200)..=Duration::from_secs(1)).contains(&time) {
        return Ok(time);
    }
    Err(serde::de::Error::custom("it is from 200ms to 1s"))
}

fn batch_size<'de, D: Deserializer<'de>>(deserializer: D) -> Result<usize, D::Error> {
    let size = usize::deserialize(deserializer)?;
    if (1..=1000).contains(&size) {
        return Ok(size);
    }
    Err(serde::de::Error::custom("it is from 1 to 1000"))
}

/// Shorter ones would be lost to a pause that any process takes now and then.
fn lease<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    let time: Duration = humantime_serde::deserialize(deserializer)?;
    if (Duration::from_secs(1)..=Duration::from_secs(3600)).contains(&time) {
        return Ok(time);
    }
    Err(serde::de::Error::custom("it is from 1s to 1h"))
}

fn factor<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    let factor = f64::deserialize(deserializer)?;
    if (1.0..=10.0).contains(&factor) {
        return Ok(factor);
    }
    Err(serde::de::Error::custom("it is from 1.0 to 10.0"))
}

fn share<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    let share = f64::deserialize(deserializer)?;
    if (0.0..=10.0).contains(&share) {
        return Ok(share);
    }
    Err(serde::de::Error::custom("it is from 0.0 to 10.0"))
}

fn head_size<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Size, D::Error> {
    let size = Size::deserialize(deserializer)?;
    if size.bytes() < 8 * 1024 {
        return Err(serde::de::Error::custom("it is at least 8KiB"));
    }
    Ok(size)
}

fn optional_path<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<PathBuf>, D::Error> {
    let text = String::deserialize(deserializer)?;
    Ok((!text.is_empty()).then(|| PathBuf::from(text)))
}

fn token_lifetime<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    let lifetime = up_to_a_minute(deserializer)?;
    if lifetime.is_zero() {
        return Err(serde::de::Error::custom("it is more than 0s"));
    }
    Ok(lifetime)
}

fn up_to_a_minute<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    let time: Duration = humantime_serde::deserialize(deserializer)?;
    if time > Duration::from_secs(60) {
        return Err(serde::de::Error::custom("it is at most 60s"));
    }
    Ok(time)
}
