//! The community node: a Nostr relay on PostgreSQL, and the log that others follow.
//!
//! Clients publish signed events and subscribe to them. Events that arrive together share a transaction,
//! which also writes the log (`log`); nobody is answered before it has committed. What a process has
//! taken in, its clients hear at once; what others have, they hear from the log (`follow`).
//!
//! Promised: an event that was answered OK is stored, once, however often and wherever it is sent; between
//! what is stored and what is new a subscription misses nothing and gets nothing twice; a deleted, replaced
//! or expired event is not given out again. Not promised: that an ephemeral event reaches clients of
//! another process.

mod config;
mod domain;
mod follow;
mod http;
mod ingest;
mod lapse;
mod log;
pub mod moderation;
mod node;
mod nostr;
mod pressure;
mod relay;
pub mod rules;
mod search;
mod store;
mod trust;
mod verify;
mod workers;

use std::sync::Arc;

use sqlx::PgPool;
use tasuki::batch::{Batcher, Options};
use tasuki::bus::{NatsBus, StreamSpec};
use tasuki::outbox::{Outbox, Reconciler};
use tasuki::seqlog::Log;
use tasuki::upkeep::{self, Upkeep};
use tasuki::{Clock, idempotency, worker};
use tasuki_service::config::{Common, Error as ConfigError};
use tasuki_service::database::beside;
use tasuki_service::nats::{Nats, stream_check};
use tasuki_service::service::{Own, Tables};
use tasuki_service::telemetry::trace;
use tasuki_service::{Config, Service};
use tracing::Span;

pub use config::Community;
use ingest::Ingest;
use moderation::Moderator;
pub use node::{KeyError, make_keys};
use pressure::Pressure;
use relay::live::Live;
use relay::publish::Publisher;
use relay::{App, Buckets, Gate, Policy};
use rules::Rules;
use store::find;
use verify::Verify;
use workers::Staff;

/// Its name.
pub const NAME: &str = "community";
/// The name of its schema.
pub const SCHEMA: &str = "cn_relay";
/// Its section of the configuration, with the defaults.
pub const DEFAULTS: &str = include_str!("default.toml");
/// What API keys can be allowed to do here.
pub const SCOPES: [&str; 3] = ["community:read", "community:report", "community:moderate"];

/// Events in one transaction.
const BATCH: usize = 500;
/// Events that wait for one.
const QUEUE: usize = 10_000;
/// Connections that take events in: those who ask can't keep them waiting.
const INGEST_CONNECTIONS: u32 = 2;
/// Signatures that are checked together, and threads that do so.
const VERIFIED: usize = 64;
const VERIFIERS: usize = 2;

/// Reads its section.
///
/// # Errors
/// When a value does not fit, alone or beside another.
pub fn config(config: &Config) -> Result<Community, ConfigError> {
    let own: Community = config.section(NAME)?;
    match own.contradiction() {
        Some((key, problem)) => Err(ConfigError::invalid(key, &problem)),
        None => Ok(own),
    }
}

/// Its tables.
///
/// # Errors
/// When the database's address is missing.
pub fn tables(common: &Common, own: &Community) -> Result<Tables, ConfigError> {
    let migrations = Own::BesideLibrary(sqlx::migrate!());
    Tables::in_schema(NAME, SCHEMA, common, &own.database, migrations)
}

/// The keys with which the node speaks, if it has any.
fn open_keys(common: &Common) -> Result<Option<node::Keys>, ConfigError> {
    let keys = common.auth.key_dir.as_deref().map(node::Keys::open);
    let keys = keys.transpose();
    let keys = keys.map_err(|error| ConfigError::invalid("auth.key-dir", &error))?;
    Ok(keys.flatten())
}

/// The public keys with which the node speaks, by what it speaks about; nothing if it has none.
///
/// # Errors
/// When they can't be used.
pub fn public_keys(common: &Common) -> Result<Vec<(&'static str, String)>, ConfigError> {
    let keys = open_keys(common)?;
    Ok(keys.map(|keys| keys.public()).unwrap_or_default())
}

/// The service.
///
/// # Errors
/// When a setting is out of range, the broker's address is missing, or the node's keys can't be used.
pub async fn service(
    common: &Common,
    own: &Community,
    tables: &Tables,
    clock: &Clock,
) -> Result<Service, ConfigError> {
    let keys = open_keys(common)?;
    if keys.is_none() {
        tracing::warn!("the node has no keys: it labels nothing and asserts nothing");
    }
    let log = log::log(&tables.schema);
    let stream = own.nats.spec(common.nats.replicas);
    let bus = bus(common, &stream).await?;
    let outbox = Outbox::new(&tables.schema).with_trace(|| trace::traceparent(&Span::current()));
    let (live, rules) = (Live::default(), Rules::default());
    let pressure = Pressure::new(own.pressure, clock.now());
    let pool = tables.database.requests.clone();
    let publisher = publisher(own, &pool, &live, &log, &rules, &pressure);
    let (ingest, verifier) = (publisher.ingest.clone(), publisher.verifier.clone());
    let ahead = own.limits.seconds_ahead();
    let moderator = keys
        .as_ref()
        .map(|keys| Moderator::new(keys.clone(), outbox.clone(), ahead));
    let searches = search::pool(&pool);
    let pools = [find::pool(&pool), searches.clone()];
    let brought = http::App {
        pool: pool.clone(),
        searches,
        pressure: pressure.clone(),
        scores: trust::Scores::new(&own.trust),
        keys: keys.clone(),
        idempotency: idempotency::Keys::new(&tables.schema),
        moderator,
        topics: own.topics.clone(),
        publisher: publisher.clone(),
        log: log.clone(),
        outbox: outbox.clone(),
        clock: clock.clone(),
    };
    let app = App::new(own, pools, clock, &live, publisher);
    let about = "A Nostr relay: events that are signed, stored and told.";
    let service = Service::new(tables.clone(), about, own.server)
        .needs(stream_check(&bus, &stream))
        .routes(relay::routes(app))
        .routes(http::routes(brought))
        .serving(move |supervisor| {
            verifier.start(supervisor);
            ingest.start(supervisor);
        });
    let staff = Staff {
        own,
        tables,
        log: &log,
        live: &live,
        rules: &rules,
        pressure: &pressure,
        keys: keys.as_ref(),
        outbox: &outbox,
        bus: &bus,
        stream,
        clock,
    };
    let staffed = staff.add(service);
    staffed.map_err(|error| ConfigError::invalid("community.retention", &error))
}

/// Compares what was published with what the broker holds, once; says how much of it is sent again.
///
/// # Errors
/// When the broker or the database can't be asked.
pub async fn reconcile(
    common: &Common,
    own: &Community,
    tables: &Tables,
) -> Result<u64, worker::Error> {
    let stream = own.nats.spec(common.nats.replicas);
    let bus = bus(common, &stream).await?;
    let (outbox, pool) = (Outbox::new(&tables.schema), tables.database.workers.clone());
    let reconciler = Reconciler::new("community.reconcile", &outbox, bus, pool, vec![stream]);
    reconciler.verify().await
}

/// What keeps its tables small, for who wants something removed now.
///
/// # Errors
/// When a setting is out of range.
pub fn upkeep(own: &Community, tables: &Tables) -> Result<Upkeep, upkeep::Error> {
    workers::upkeep(own, tables, &log::log(&tables.schema))
}

async fn bus(common: &Common, stream: &StreamSpec) -> Result<Arc<NatsBus>, ConfigError> {
    let client = Nats::new(&common.nats)?.connect("tasuki-community").await;
    let client = client.map_err(|error| ConfigError::invalid("nats.url", &error))?;
    Ok(Arc::new(NatsBus::new(client).with_stream(stream.clone())))
}

/// Who takes events, of clients and by HTTP.
fn publisher(
    own: &Community,
    pool: &PgPool,
    live: &Live,
    log: &Log,
    rules: &Rules,
    pressure: &Pressure,
) -> Publisher {
    let ingest = Ingest {
        pool: beside(pool, INGEST_CONNECTIONS),
        live: live.clone(),
        log: log.clone(),
        ahead: own.limits.seconds_ahead(),
    };
    let options = Options::default().queue(QUEUE);
    let checking = options.max_batch(VERIFIED).concurrency(VERIFIERS);
    Publisher {
        ingest: Batcher::new("community.ingest", ingest, options.max_batch(BATCH)),
        verifier: Batcher::new("community.verify", Verify, checking),
        live: live.clone(),
        policy: Arc::new(Policy {
            limits: own.limits,
            topics: own.topics.clone(),
            rules: rules.clone(),
        }),
        keys: Buckets::new(own.limits.events_per_minute),
        gate: Gate::new(rules, pressure, pool, &own.topics.default),
    }
}
