//! The settings of entitlement. What each means and costs is written in `default.toml`.

use std::time::Duration;

use serde::Deserialize;
use tasuki::bus::StreamSpec;
use tasuki_contract::streams;
use tasuki_service::config::{Leased, ServiceDatabase, ServiceServer};

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

/// `[entitlement.commands]`
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Commands {
    pub max_batch: usize,
    pub queue: usize,
    pub concurrency: usize,
}

/// `[entitlement.idempotency]`
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Idempotency {
    pub ttl_hours: u32,
    #[serde(with = "humantime_serde")]
    pub wait: Duration,
}

/// `[entitlement.outbox]`
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Outbox {
    pub enabled: bool,
    #[serde(flatten)]
    pub leased: Leased,
    #[serde(with = "humantime_serde")]
    pub published_ttl: Duration,
}

/// `[entitlement.nats]`
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Nats {
    pub subject: String,
    pub stream: String,
    #[serde(with = "humantime_serde")]
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
    #[serde(with = "humantime_serde")]
    pub cleanup_interval: Duration,
    pub audit_days: u32,
}
