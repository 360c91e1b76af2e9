//! Entitlement: who owns what. The source of truth.
//!
//! A grant, a revocation or a consumption is one transaction: the entitlement, its audit, its
//! event and the answer under the caller's idempotency key commit together or not at all. Then
//! the caller is answered, and a relay publishes the event.
//!
//! Promised: what was answered is never lost, and a repetition gets the same bytes; versions of
//! an entitlement have no gap and no repeat; every version has exactly one event. Not here: who
//! is told of it (`tasuki-notification`), and how users are known (`tasuki-account`).

mod commands;
mod config;
mod domain;
mod error;
mod events;
mod expiry;
mod gates;
mod http;
mod patience;
mod queries;
mod store;
pub mod verify;
mod views;
mod workers;

use std::sync::Arc;
use std::time::Duration;

use tasuki::Clock;
use tasuki::batch::{Batcher, Options};
use tasuki::bus::NatsBus;
use tasuki::idempotency::Keys;
use tasuki::outbox::{Outbox, Reconciler};
use tasuki::upkeep::{self, Upkeep};
use tasuki::worker;
use tasuki_service::config::{Common, Error as ConfigError};
use tasuki_service::nats::{Nats, stream_check};
use tasuki_service::service::{Own, Tables};
use tasuki_service::{Config, Service};
use tokio::sync::Semaphore;

use commands::Commands;
pub use config::Entitlement;
use gates::Gates;

/// Its name, and the name of its schema.
pub const NAME: &str = "entitlement";
/// Its section of the configuration, with the defaults.
pub const DEFAULTS: &str = include_str!("default.toml");
/// What API keys can be allowed to do here.
pub const SCOPES: [&str; 4] = [
    "entitlement:grant",
    "entitlement:revoke",
    "entitlement:consume",
    "entitlement:read",
];

/// Reads its section.
///
/// # Errors
/// When a value does not fit.
pub fn config(config: &Config) -> Result<Entitlement, ConfigError> {
    config.section(NAME)
}

/// Its tables.
///
/// # Errors
/// When the database's address is missing.
pub fn tables(common: &Common, own: &Entitlement) -> Result<Tables, ConfigError> {
    let migrations = Own::BesideLibrary(sqlx::migrate!());
    Tables::new(NAME, common, &own.database, migrations)
}

/// The service.
///
/// # Errors
/// When the broker's address is missing, or a setting is out of range.
pub async fn service(
    common: &Common,
    own: &Entitlement,
    tables: Tables,
    clock: &Clock,
) -> Result<Service, ConfigError> {
    own.check(common.http.request_timeout)?;
    let stream = own.nats.spec(common.nats.replicas);
    let client = Nats::new(&common.nats)?.connect("tasuki-entitlement").await;
    let client = client.map_err(|error| ConfigError::invalid("nats.url", &error))?;
    let bus = Arc::new(NatsBus::new(client).with_stream(stream.clone()));
    let hours = Duration::from_secs(60 * 60) * own.idempotency.ttl_hours;
    let commands = Commands {
        pool: tables.database.requests.clone(),
        keys: Keys::new(&tables.schema)
            .ttl(hours)
            .wait(own.idempotency.wait),
        outbox: Outbox::new(&tables.schema),
        clock: clock.clone(),
        gates: Gates::default(),
    };
    let options = Options::default()
        .max_batch(own.commands.max_batch)
        .queue(own.commands.queue)
        .concurrency(own.commands.concurrency);
    let batcher = Batcher::new("entitlement.commands", commands.clone(), options);
    let reader = queries::Lists {
        pool: tables.database.requests.clone(),
    };
    let together = options.max_batch(queries::USERS_TOGETHER);
    let lists = Batcher::new("entitlement.lists", reader, together);
    let app = http::App {
        batcher: batcher.clone(),
        commands: Arc::new(commands.clone()),
        bulk: Arc::new(Semaphore::new(1)),
        wait: own.idempotency.wait,
        queries: queries::Queries {
            pool: tables.database.requests.clone(),
        },
        lists: lists.clone(),
    };
    let about = "Who owns what: grant, revoke, consume, read.";
    let service = Service::new(tables.clone(), about, own.server)
        .needs(stream_check(&bus, &stream))
        .serving(move |supervisor| {
            batcher.start(supervisor);
            lists.start(supervisor);
        })
        .routes(http::routes(app));
    let added = workers::add(service, own, &tables, &commands, &bus, stream, clock);
    added.map_err(|error| ConfigError::invalid("entitlement.retention", &error))
}

/// Compares what was published with what the broker holds, once, and publishes again what it lost:
/// says how many events that were.
///
/// # Errors
/// When the database or the broker can't be asked.
pub async fn reconcile(
    common: &Common,
    own: &Entitlement,
    tables: &Tables,
) -> Result<u64, worker::Error> {
    let stream = own.nats.spec(common.nats.replicas);
    let client = Nats::new(&common.nats)?.connect("tasuki-reconcile").await?;
    let bus = Arc::new(NatsBus::new(client).with_stream(stream.clone()));
    let (outbox, pool) = (Outbox::new(&tables.schema), tables.database.workers.clone());
    let reconciler = Reconciler::new("entitlement.reconcile", &outbox, bus, pool, vec![stream]);
    reconciler.verify().await
}

/// What keeps its tables small, for who wants something removed now.
///
/// # Errors
/// When a setting is out of range.
pub fn upkeep(own: &Entitlement, tables: &Tables) -> Result<Upkeep, upkeep::Error> {
    workers::upkeep(own, tables)
}
