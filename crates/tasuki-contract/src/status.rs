//! `GET /v1/status` of the system service: what runs, in which version, and how it is.

use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use utoipa::ToSchema;

use crate::ids::InstanceId;
use crate::timestamp;

/// The whole platform at one moment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Status {
    /// `ok` when every server answers, every schema is up to date and every worker of a
    /// live instance is well; else `degraded`.
    pub overall: Overall,
    /// The version of the process that answers.
    #[schema(example = "0.1.0")]
    pub version: String,
    /// When the answer was made.
    #[serde(with = "timestamp")]
    pub at: OffsetDateTime,
    /// The servers that the platform stands on.
    pub servers: Vec<Server>,
    /// The schemas of the services.
    pub migrations: Vec<Migration>,
    /// The processes that reported lately.
    pub instances: Vec<Instance>,
}

/// The verdict in one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Overall {
    /// All is well.
    Ok,
    /// Something below is not.
    Degraded,
}

/// One server that the platform stands on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Server {
    /// `postgresql`, `nats` or `redis`.
    #[schema(example = "postgresql")]
    pub name: String,
    /// Whether it answered.
    pub reachable: bool,
    /// Its version, when it answered.
    #[schema(example = "15.18")]
    pub version: Option<String>,
    /// How long the answer took.
    pub latency_ms: Option<f64>,
    /// Why it did not answer.
    pub error: Option<String>,
}

/// How far one schema is with its migrations.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Migration {
    /// The schema, or `schema/set` for tables that a library keeps in it.
    #[schema(example = "system/service")]
    pub name: String,
    /// The newest migration that the database has.
    pub applied: i64,
    /// The newest that this binary knows.
    pub needed: i64,
    /// How many are missing.
    pub pending: usize,
}

/// One process that reported lately.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Instance {
    /// Its id, new at every start.
    pub id: InstanceId,
    /// The service that it runs.
    #[schema(example = "system")]
    pub service: String,
    /// Host and process id.
    #[schema(example = "web-1/4242")]
    pub process: String,
    /// Its version.
    pub version: String,
    /// When it started.
    #[serde(with = "timestamp")]
    pub started_at: OffsetDateTime,
    /// When it last reported. An instance that is silent for long is not listed.
    #[serde(with = "timestamp")]
    pub seen_at: OffsetDateTime,
    /// Its workers.
    pub workers: Vec<Worker>,
}

/// One worker of one process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Worker {
    /// `<service>.<noun>`.
    #[schema(example = "system.heartbeat")]
    pub name: String,
    /// `waiting`, `running`, `stalled`, `backing_off` or `stopped`.
    #[schema(example = "waiting")]
    pub state: String,
    /// Ticks since the start.
    pub ticks: u64,
    /// Ticks that failed.
    pub failures: u64,
    /// Ticks that panicked.
    pub panics: u64,
    /// When the last tick ended.
    #[serde(with = "timestamp::option")]
    pub last_tick_at: Option<OffsetDateTime>,
    /// How long it took.
    pub last_tick_ms: Option<f64>,
    /// Its error, if it failed.
    pub last_error: Option<String>,
}
