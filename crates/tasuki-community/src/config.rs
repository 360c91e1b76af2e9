//! The settings of the community node. What each means and costs is written in `default.toml`.

use std::time::Duration;

use serde::de::Error;
use serde::{Deserialize, Deserializer};
use tasuki::bus::StreamSpec;
use tasuki_contract::streams;
use tasuki_service::config::{Leased, ServiceDatabase, ServiceServer, Size, time_within, within};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::nostr::{FilterLimits, Key, REPORTS};
use crate::relay::address_of;

/// `[community]`
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Community {
    /// `[community.server]`
    pub server: ServiceServer,
    /// `[community.database]`
    pub database: ServiceDatabase,
    /// `[community.relay]`
    pub relay: Relay,
    /// `[community.limits]`
    pub limits: Limits,
    /// `[community.topics]`
    pub topics: Topics,
    /// `[community.pressure]`
    pub pressure: Pressure,
    /// `[community.auth]`
    pub auth: Auth,
    /// `[community.index]`
    pub index: Index,
    /// `[community.trust]`
    pub trust: Trust,
    /// `[community.outbox]`
    pub outbox: Outbox,
    /// `[community.nats]`
    pub nats: Nats,
    /// `[community.retention]`
    pub retention: Retention,
}

/// `[community.relay]`
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Relay {
    pub url: String,
    pub name: String,
    pub description: String,
    #[serde(deserialize_with = "key")]
    pub pubkey: String,
    pub contact: String,
    #[serde(deserialize_with = "connections")]
    pub connections: usize,
    #[serde(deserialize_with = "queue")]
    pub queue: usize,
    #[serde(deserialize_with = "ping")]
    pub ping: Duration,
}

/// `[community.limits]`
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Limits {
    #[serde(deserialize_with = "message")]
    pub message: Size,
    #[serde(deserialize_with = "message")]
    pub event: Size,
    #[serde(deserialize_with = "some")]
    pub tags: usize,
    #[serde(deserialize_with = "some")]
    pub filters: usize,
    #[serde(deserialize_with = "some")]
    pub values: usize,
    #[serde(deserialize_with = "stored")]
    pub limit: u32,
    #[serde(deserialize_with = "some")]
    pub subscriptions: usize,
    #[serde(deserialize_with = "some")]
    pub topics: usize,
    #[serde(deserialize_with = "some")]
    pub topics_per_event: usize,
    #[serde(deserialize_with = "some")]
    pub tags_per_filter: usize,
    pub events_per_minute: u32,
    pub reqs_per_minute: u32,
    pub connections_per_minute: u32,
    #[serde(deserialize_with = "ahead")]
    pub ahead: Duration,
}

impl Limits {
    /// All of them, by the name of their setting.
    #[must_use]
    pub fn told(&self) -> Vec<(&'static str, String)> {
        vec![
            ("message", self.message.to_string()),
            ("event", self.event.to_string()),
            ("tags", self.tags.to_string()),
            ("filters", self.filters.to_string()),
            ("values", self.values.to_string()),
            ("limit", self.limit.to_string()),
            ("subscriptions", self.subscriptions.to_string()),
            ("topics", self.topics.to_string()),
            ("topics-per-event", self.topics_per_event.to_string()),
            ("tags-per-filter", self.tags_per_filter.to_string()),
            ("events-per-minute", self.events_per_minute.to_string()),
            ("reqs-per-minute", self.reqs_per_minute.to_string()),
            (
                "connections-per-minute",
                self.connections_per_minute.to_string(),
            ),
            ("ahead", format!("{:?}", self.ahead)),
        ]
    }

    /// How far in the future an event may be.
    pub(crate) fn seconds_ahead(&self) -> i64 {
        i64::try_from(self.ahead.as_secs()).unwrap_or(i64::MAX)
    }

    pub(crate) const fn filter(&self) -> FilterLimits {
        FilterLimits {
            values: self.values,
            limit: self.limit,
            tags: self.tags_per_filter,
        }
    }
}

/// `[community.topics]`
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Topics {
    pub mode: TopicMode,
    #[serde(deserialize_with = "topic")]
    pub default: String,
    pub namespace: String,
    pub ids: TopicIds,
}

/// What becomes of events without a topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TopicMode {
    /// They are refused.
    Required,
    /// They belong to the default topic.
    Default,
}

/// What is behind the namespace of a topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TopicIds {
    /// Anything.
    Any,
    /// 64 digits of hexadecimal.
    Hex64,
}

/// `[community.pressure]`
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Pressure {
    pub batches_at: u64,
    pub backfill_at: u64,
    pub low_at: u64,
    pub slow_at: u64,
    #[serde(deserialize_with = "percent")]
    pub release: u8,
    #[serde(deserialize_with = "batch")]
    pub batch: u32,
    #[serde(deserialize_with = "backfill")]
    pub backfill_age: Duration,
    pub events_per_minute: u32,
}

/// `[community.auth]`
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Auth {
    pub mode: AuthMode,
    #[serde(deserialize_with = "moment")]
    pub enforce_at: Option<OffsetDateTime>,
    #[serde(deserialize_with = "auth_time")]
    pub grace: Duration,
    #[serde(deserialize_with = "auth_time")]
    pub timeout: Duration,
    #[serde(deserialize_with = "auth_time")]
    pub clock: Duration,
}

/// Who has to prove a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AuthMode {
    /// Nobody.
    Off,
    /// Everybody.
    Required,
}

/// `[community.index]`
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Index {
    pub kinds: Vec<u16>,
}

/// `[community.trust]`
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Trust {
    #[serde(deserialize_with = "score_time")]
    pub risk_window: Duration,
    #[serde(deserialize_with = "score_time")]
    pub risk_half_life: Duration,
    #[serde(deserialize_with = "score_time")]
    pub density_window: Duration,
    #[serde(deserialize_with = "score_time")]
    pub density_half_life: Duration,
    #[serde(deserialize_with = "expiry")]
    pub expiry: Duration,
    #[serde(deserialize_with = "interval")]
    pub interval: Duration,
    #[serde(deserialize_with = "kinds")]
    pub kinds: Vec<u16>,
}

/// `[community.outbox]`
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Outbox {
    pub enabled: bool,
    #[serde(flatten)]
    pub leased: Leased,
    #[serde(deserialize_with = "published_ttl")]
    pub published_ttl: Duration,
}

/// `[community.nats]`
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Nats {
    #[serde(deserialize_with = "required")]
    pub subject: String,
    #[serde(deserialize_with = "required")]
    pub stream: String,
    #[serde(deserialize_with = "a_day_at_most")]
    pub duplicate_window: Duration,
}

impl Nats {
    pub(crate) fn spec(&self, replicas: usize) -> StreamSpec {
        streams::events(&self.stream, &self.subject, self.duplicate_window, replicas)
    }
}

/// `[community.retention]`
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Retention {
    #[serde(deserialize_with = "days")]
    pub events_days: u16,
    #[serde(deserialize_with = "days")]
    pub deletions_days: u16,
    #[serde(deserialize_with = "days")]
    pub log_days: u16,
}

impl Community {
    /// Why settings that are fine each by itself do not go together; nothing if they do.
    pub(crate) fn contradiction(&self) -> Option<(&'static str, String)> {
        let (events, deletions) = (self.retention.events_days, self.retention.deletions_days);
        // A week later than its end an event's partition is dropped; until then its id must be known.
        if deletions < events.saturating_add(8) {
            let problem = format!(
                "{deletions} is not eight days more than community.retention.events-days, {events}: what was deleted would come back"
            );
            return Some(("community.retention.deletions-days", problem));
        }
        let url = &self.relay.url;
        if !url.is_empty() && address_of(url).is_none() {
            let problem = format!("{url:?} is not an address as wss://relay.example");
            return Some(("community.relay.url", problem));
        }
        if url.is_empty() && self.auth.mode == AuthMode::Required {
            let problem =
                "it is empty, and community.auth.mode is required: nobody could prove a key";
            return Some(("community.relay.url", problem.to_owned()));
        }
        if let Some(found) = self.pressure.contradiction() {
            return Some(found);
        }
        let (event, message) = (self.limits.event, self.limits.message);
        if event.bytes() + 64 > message.bytes() {
            let problem = format!("{message} has no room for an event of {event}");
            return Some(("community.limits.message", problem));
        }
        None
    }
}

impl Pressure {
    /// Each step comes after the one before it.
    fn contradiction(&self) -> Option<(&'static str, String)> {
        let steps = [
            ("community.pressure.batches-at", self.batches_at),
            ("community.pressure.backfill-at", self.backfill_at),
            ("community.pressure.low-at", self.low_at),
            ("community.pressure.slow-at", self.slow_at),
        ];
        if let Some((key, _)) = steps.iter().find(|(_, at)| *at == 0) {
            return Some((
                key,
                "it is 0: something would always be held back".to_owned(),
            ));
        }
        let wrong = steps.windows(2).find_map(|pair| match pair {
            [(before, low), (key, at)] if at <= low => Some((*key, *at, *before, *low)),
            _ => None,
        });
        wrong.map(|(key, at, before, low)| (key, format!("{at} is not more than {before}, {low}")))
    }
}

const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(60 * 60);
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

fn connections<'de, D: Deserializer<'de>>(deserializer: D) -> Result<usize, D::Error> {
    within(usize::deserialize(deserializer)?, &(1..=1_000_000))
}

fn queue<'de, D: Deserializer<'de>>(deserializer: D) -> Result<usize, D::Error> {
    within(usize::deserialize(deserializer)?, &(16..=100_000))
}

fn ping<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    time_within(deserializer, &(SECOND..=HOUR))
}

fn auth_time<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    time_within(deserializer, &(SECOND..=DAY))
}

fn score_time<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    time_within(deserializer, &(SECOND..=DAY * 3650))
}

fn expiry<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    time_within(deserializer, &(SECOND * 10..=DAY * 365))
}

fn interval<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    time_within(deserializer, &(SECOND..=HOUR))
}

fn kinds<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u16>, D::Error> {
    let kinds = Vec::<u16>::deserialize(deserializer)?;
    match kinds.iter().find(|kind| REPORTS.contains(kind)) {
        Some(kind) => Err(D::Error::custom(format!("{kind} is the kind of reports"))),
        None => Ok(kinds),
    }
}

fn ahead<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    time_within(deserializer, &(Duration::ZERO..=DAY))
}

fn some<'de, D: Deserializer<'de>>(deserializer: D) -> Result<usize, D::Error> {
    within(usize::deserialize(deserializer)?, &(1..=10_000))
}

fn stored<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    within(u32::deserialize(deserializer)?, &(1..=10_000))
}

fn percent<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u8, D::Error> {
    within(u8::deserialize(deserializer)?, &(1..=99))
}

fn batch<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    within(u32::deserialize(deserializer)?, &(1..=10_000))
}

fn backfill<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    time_within(deserializer, &(SECOND..=365 * DAY))
}

/// What the broker loses is found by comparing it with these. Older ones would come again, from a stream
/// that has lost everything, when who is told has forgotten them: streams keep theirs for seven days, and
/// consumers remember for longer than that.
fn published_ttl<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    time_within(deserializer, &(HOUR..=DAY * 7))
}

fn a_day_at_most<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    time_within(deserializer, &(SECOND..=DAY))
}

fn required<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    let text = String::deserialize(deserializer)?;
    if text.trim().is_empty() {
        return Err(D::Error::custom("it is required"));
    }
    Ok(text)
}

fn days<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u16, D::Error> {
    within(u16::deserialize(deserializer)?, &(1..=3650))
}

fn message<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Size, D::Error> {
    let size = Size::deserialize(deserializer)?;
    if (1 << 10..=16 << 20).contains(&size.bytes()) {
        return Ok(size);
    }
    Err(D::Error::custom(format!(
        "{size} is not from 1KiB to 16MiB"
    )))
}

fn key<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    let key = String::deserialize(deserializer)?;
    if key.is_empty() || Key::parse(&key).is_some() {
        return Ok(key);
    }
    let problem = format!("{key:?} is not 64 digits of lower-case hexadecimal");
    Err(D::Error::custom(problem))
}

fn topic<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    let topic = String::deserialize(deserializer)?;
    if !topic.is_empty() && topic == topic.to_lowercase() && !topic.contains(char::is_control) {
        return Ok(topic);
    }
    Err(D::Error::custom(format!(
        "{topic:?} is not a text in lower case"
    )))
}

fn moment<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<OffsetDateTime>, D::Error> {
    let text = String::deserialize(deserializer)?;
    if text.is_empty() {
        return Ok(None);
    }
    let moment = OffsetDateTime::parse(&text, &Rfc3339);
    moment.map(Some).map_err(|_error| {
        D::Error::custom(format!("{text:?} is not a time as 2026-01-31T00:00:00Z"))
    })
}
