//! The shop: orders, payments, inventory.
//!
//! An order is paid, set aside and granted, or undone without a trace. One saga conducts
//! (`orchestrated`), or the parts react to each other's events (`choreographed`); what the parts do is
//! the same, and so is how an order ends.
//!
//! Promised: an order that was answered ends COMPLETED or COMPENSATED, or a person is told; no money
//! without goods or refund; a grant that was refused, because the user owns the SKU, takes nothing
//! away; stock is never below zero; goods that move between warehouses are in exactly one of them.
//! Not here: who owns what (`tasuki-entitlement`), who is told of it (`tasuki-notification`).

mod choreographed;
mod closed;
mod commands;
mod config;
mod domain;
mod entitlement;
mod errands;
mod error;
mod events;
mod fulfilment;
mod gateway;
mod http;
mod inventory;
mod orchestrated;
mod orders;
mod parts;
mod payments;
mod queries;
mod store;
pub mod told;
mod transfer;
mod unread;
pub mod verify;
mod watch;
mod workers;

use std::sync::Arc;
use std::time::Duration;

use sqlx::PgPool;
use tasuki::Clock;
use tasuki::bus::NatsBus;
use tasuki::choreography::Choreography;
use tasuki::idempotency::Keys;
use tasuki::jobs::Jobs;
use tasuki::outbox::{Outbox, Reconciler};
use tasuki::saga::{Engine, Registry, Sagas, Settings};
use tasuki::twopc::{Coordinator, Database};
use tasuki::upkeep::{self, Upkeep};
use tasuki::worker;
use tasuki_service::auth::tokens::{KeyRing, Signer};
use tasuki_service::config::{Common, Error as ConfigError, Mode, ServiceDatabase};
use tasuki_service::database::beside;
use tasuki_service::http::Check;
use tasuki_service::nats::{Nats, consumer_check, stream_check};
use tasuki_service::service::{Own, Tables};
use tasuki_service::telemetry::trace;
use tasuki_service::{Config, Service};
use tokio::sync::Semaphore;
use tracing::Span;

use choreographed::Part;
use commands::Commands;
pub use config::Shop;
use entitlement::Entitlements;
use gateway::Simulated;
use orchestrated::Patience;
use parts::Parts;
use queries::Queries;
use transfer::Transfers;
use workers::Staff;

/// Its name, and the name of its schema.
pub const NAME: &str = "shop";
/// Its section of the configuration, with the defaults.
pub const DEFAULTS: &str = include_str!("default.toml");
/// What API keys can be allowed to do here.
pub const SCOPES: [&str; 3] = ["shop:order", "shop:read", "shop:manage"];
/// What the shop must be allowed to do at entitlement (`auth.callers.shop`).
pub const NEEDED_SCOPES: [&str; 4] = [
    "entitlement:grant",
    "entitlement:revoke",
    "entitlement:consume",
    "entitlement:read",
];

/// Connections by which the parts record what calls came to, beside those of workers: many calls are
/// on their way at the same time.
const PART_CONNECTIONS: u32 = 8;
/// Connections of the simulated provider, which is another company.
const PROVIDER_CONNECTIONS: u32 = 8;

/// The name of the other warehouse in the log of two-phase commits.
const OVERFLOW: &str = "overflow";
/// Transfers that one process makes at the same time.
const TRANSFERS: u16 = 8;
/// Connections to the log of two-phase commits that a transfer needs: one for its work, and one to say
/// how far it is.
const CONNECTIONS_EACH: u16 = 2;

/// Reads its section.
///
/// # Errors
/// When a value does not fit.
pub fn config(config: &Config) -> Result<Shop, ConfigError> {
    config.section(NAME)
}

/// Its tables.
///
/// # Errors
/// When the database's address is missing.
pub fn tables(common: &Common, own: &Shop) -> Result<Tables, ConfigError> {
    tables_in(common, &own.database)
}

/// The tables of the other warehouse, if there is one.
///
/// # Errors
/// When the database's address is none.
pub fn warehouse_tables(common: &Common, own: &Shop) -> Result<Option<Tables>, ConfigError> {
    let url = &own.warehouse.url;
    if url.is_empty() {
        return Ok(None);
    }
    let database = ServiceDatabase { url: url.clone() };
    tables_in(common, &database).map(Some)
}

fn tables_in(common: &Common, database: &ServiceDatabase) -> Result<Tables, ConfigError> {
    Tables::new(NAME, common, database, Own::BesideLibrary(sqlx::migrate!()))
}

/// The service.
///
/// # Errors
/// When an address or the signing keys are missing, or a setting is out of range.
pub async fn service(
    common: &Common,
    own: &Shop,
    tables: Tables,
    clock: &Clock,
) -> Result<Service, ConfigError> {
    own.check()?;
    if common.platform.mode == Mode::Production {
        tracing::warn!("payments are simulated: no money is taken from anybody");
    }
    let stream = own.nats.spec(common.nats.replicas);
    let client = Nats::new(&common.nats)?.connect("tasuki-shop").await;
    let client = client.map_err(|error| ConfigError::invalid("nats.url", &error))?;
    let bus = Arc::new(NatsBus::new(client).with_stream(stream.clone()));
    let parts = parts(common, own, &tables, clock)?;
    let sagas = Sagas::new(&tables.schema)
        .with_clock(clock.clone())
        .with_trace(current_trace)
        .continuing_trace(trace::continue_as);
    let invalid = |error: &dyn std::fmt::Display| ConfigError::invalid("shop.orders", error);
    let definition = orchestrated::definition(&parts, &patience(own));
    let definition = definition.map_err(|error| invalid(&error))?;
    let settings = Settings::new("shop.sagas", tables.database.workers.clone())
        .clock(clock.clone())
        .slots(own.orders.concurrency);
    let engine = Engine::new(&sagas, Registry::new().with(&definition), settings);
    let engine = engine.map_err(|error| invalid(&error))?;
    let warehouse = warehouse(common, own, &tables)?;
    let app = app(
        own,
        &tables,
        &parts,
        &sagas,
        definition,
        warehouse.as_ref(),
        clock,
    );
    let about = "Orders, payments, inventory.";
    let mut service = Service::new(tables.clone(), about, own.server)
        .needs(stream_check(&bus, &stream))
        .routes(http::routes(app));
    let staff = Staff {
        own,
        tables: &tables,
        parts: &parts,
        sagas: &sagas,
        engine: &engine,
        coordinator: warehouse.as_ref().map(|it| &it.coordinator),
        reconciler: &verify::Reconciler::new(tables.database.workers.clone())
            .with_overflow(warehouse.as_ref().map(|it| it.pool.clone())),
        bus: &bus,
        stream,
        clock,
    };
    for part in Part::ALL {
        service = service.needs(consumer_check(&bus, &staff.spec(part)));
    }
    if let Some(warehouse) = &warehouse {
        service = service.needs(warehouse.check());
    }
    staff.add(service).map_err(|error| invalid(&error))
}

/// Compares what was published with what the broker holds, once, and publishes again what it lost:
/// says how many events that were.
///
/// # Errors
/// When the database or the broker can't be asked.
pub async fn reconcile(common: &Common, own: &Shop, tables: &Tables) -> Result<u64, worker::Error> {
    let stream = own.nats.spec(common.nats.replicas);
    let client = Nats::new(&common.nats)?.connect("tasuki-reconcile").await?;
    let bus = Arc::new(NatsBus::new(client).with_stream(stream.clone()));
    let (outbox, pool) = (Outbox::new(&tables.schema), tables.database.workers.clone());
    let reconciler = Reconciler::new("shop.reconcile", &outbox, bus, pool, vec![stream]);
    reconciler.verify().await
}

/// What keeps its tables small, for who wants something removed now.
///
/// # Errors
/// When a setting is out of range.
pub fn upkeep(own: &Shop, tables: &Tables) -> Result<Upkeep, upkeep::Error> {
    workers::upkeep(own, tables)
}

/// What the parts of the shop share.
fn parts(
    common: &Common,
    own: &Shop,
    tables: &Tables,
    clock: &Clock,
) -> Result<Parts, ConfigError> {
    let pool = beside(&tables.database.workers, PART_CONNECTIONS);
    let providers = beside(&tables.database.workers, PROVIDER_CONNECTIONS);
    let outbox = Outbox::new(&tables.schema).with_trace(current_trace);
    let jobs = Jobs::new(&tables.schema)
        .with_clock(clock.clone())
        .with_trace(current_trace)
        .continuing_trace(trace::continue_as);
    let key_dir = common.auth.key_dir.as_deref().ok_or(ConfigError::Missing {
        key: "auth.key-dir",
        variable: "TASUKI_AUTH__KEY_DIR",
    })?;
    let ring = KeyRing::open(key_dir, NAME, clock);
    let ring = ring.map_err(|error| ConfigError::invalid("auth.key-dir", &error))?;
    let signer = Signer::new(ring, common.auth.token_lifetime, clock);
    let entitlements = Entitlements::new(&own.entitlement.url, own.entitlement.timeout, signer);
    let entitlements =
        entitlements.map_err(|error| ConfigError::invalid("shop.entitlement.url", &error))?;
    Ok(Parts {
        story: Choreography::new(&tables.schema, NAME, &outbox)
            .continuing_trace(trace::continue_as),
        jobs,
        gateway: Arc::new(Simulated::new(providers, own.payment.timeout)),
        entitlements,
        patience: own.payment.timeout,
        hold: own.orders.reservation,
        pace: own.pace(),
        clock: clock.clone(),
        outbox,
        pool,
    })
}

/// The trace that is going on: one purchase is one trace, through sagas, jobs, events and calls.
fn current_trace() -> Option<String> {
    trace::traceparent(&Span::current())
}

fn patience(own: &Shop) -> Patience {
    let pace = own.pace();
    let (calls, undo) = pace.policies();
    Patience {
        calls,
        undo,
        call: pace.call(),
    }
}

/// The other warehouse, and who moves stock there and back.
struct Other {
    coordinator: Coordinator,
    database: Database,
    pool: PgPool,
}

impl Other {
    /// Not ready while its server can't prepare transactions.
    fn check(&self) -> Check {
        let coordinator = self.coordinator.clone();
        Check::new("warehouse", move || {
            let coordinator = coordinator.clone();
            async move {
                match coordinator.check().await {
                    // Somebody else's to end; orders and transfers go on meanwhile.
                    Ok(()) | Err(tasuki::twopc::Error::Foreign { .. }) => Ok(()),
                    Err(error) => Err(error.to_string()),
                }
            }
        })
    }
}

fn warehouse(common: &Common, own: &Shop, tables: &Tables) -> Result<Option<Other>, ConfigError> {
    let Some(other) = warehouse_tables(common, own)? else {
        return Ok(None);
    };
    let pool = other.database.requests.clone();
    let invalid = |error| ConfigError::invalid("shop.warehouse.url", &error);
    // A transfer may wait for long, and holds what it has meanwhile: not what requests need.
    let there = beside(&pool, TRANSFERS.into());
    let database = Database::new(OVERFLOW, there).map_err(invalid)?;
    let connections = TRANSFERS * CONNECTIONS_EACH;
    let log = beside(&tables.database.requests, connections.into());
    let coordinator = Coordinator::new(&tables.schema, log)
        .timeout(own.warehouse.timeout)
        .database(&database)
        .map_err(invalid)?;
    Ok(Some(Other {
        coordinator,
        database,
        pool,
    }))
}

fn app(
    own: &Shop,
    tables: &Tables,
    parts: &Parts,
    sagas: &Sagas,
    definition: tasuki::saga::Definition<orchestrated::Carried>,
    other: Option<&Other>,
    clock: &Clock,
) -> http::App {
    let pool = tables.database.requests.clone();
    let hours = Duration::from_secs(60 * 60) * own.idempotency.ttl_hours;
    let keys = Keys::new(&tables.schema)
        .ttl(hours)
        .wait(own.idempotency.wait);
    let queries = Queries {
        pool: pool.clone(),
        sagas: sagas.clone(),
        overflow: other.map(|it| it.pool.clone()),
    };
    http::App {
        transfers: other.map(|it| Transfers {
            coordinator: it.coordinator.clone(),
            overflow: it.database.clone(),
            keys: keys.clone(),
            room: Arc::new(Semaphore::new(TRANSFERS.into())),
            patience: own.warehouse.timeout,
        }),
        commands: Commands {
            pool: pool.clone(),
            keys,
            clock: clock.clone(),
            parts: parts.clone(),
            sagas: sagas.clone(),
            definition,
            queries: queries.clone(),
        },
        reconciler: verify::Reconciler::new(pool).with_overflow(queries.overflow.clone()),
        queries,
    }
}
