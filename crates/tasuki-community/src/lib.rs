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
mod relay;
pub mod rules;
mod search;
mod store;
mod verify;
mod workers;

use std::sync::Arc;

use tasuki::batch::{Batcher, Options};
use tasuki::{Clock, idempotency};
use tasuki_service::config::{Common, Error as ConfigError};
use tasuki_service::database::beside;
use tasuki_service::service::{Own, Tables};
use tasuki_service::{Config, Service};

pub use config::Community;
use ingest::Ingest;
use moderation::Moderator;
pub use node::{KeyError, make_keys};
use relay::live::Live;
use relay::publish::Publisher;
use relay::{App, Buckets, Policy};
use rules::Rules;
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

/// The service.
///
/// # Errors
/// When a setting is out of range, or the node's keys can't be used.
pub fn service(
    common: &Common,
    own: &Community,
    tables: &Tables,
    clock: &Clock,
) -> Result<Service, ConfigError> {
    let keys = common.auth.key_dir.as_deref().map(node::Keys::open);
    let keys = keys
        .transpose()
        .map_err(|error| ConfigError::invalid("auth.key-dir", &error))?;
    let keys = keys.flatten();
    if keys.is_none() {
        tracing::warn!("the node has no keys: it labels nothing and asserts nothing");
    }
    let log = log::log(&tables.schema);
    let live = Live::default();
    let rules = Rules::default();
    let pool = tables.database.requests.clone();
    let ahead = i64::try_from(own.limits.ahead.as_secs()).unwrap_or(i64::MAX);
    let ingest = Ingest {
        pool: beside(&pool, INGEST_CONNECTIONS),
        live: live.clone(),
        log: log.clone(),
        ahead,
    };
    let options = Options::default().queue(QUEUE);
    let ingest = Batcher::new("community.ingest", ingest, options.max_batch(BATCH));
    let options = options.max_batch(VERIFIED).concurrency(VERIFIERS);
    let verifier = Batcher::new("community.verify", Verify, options);
    let publisher = Publisher {
        ingest: ingest.clone(),
        verifier: verifier.clone(),
        live: live.clone(),
        policy: Arc::new(Policy {
            limits: own.limits,
            topics: own.topics.clone(),
            rules: rules.clone(),
        }),
        keys: Buckets::new(own.limits.events_per_minute),
    };
    let moderator = keys
        .as_ref()
        .map(|keys| Moderator::new(keys.clone(), ahead));
    let brought = http::App {
        pool: pool.clone(),
        idempotency: idempotency::Keys::new(&tables.schema),
        moderator: moderator.clone(),
        topics: own.topics.clone(),
        publisher: publisher.clone(),
        log: log.clone(),
        clock: clock.clone(),
    };
    let app = App::new(own, pool, clock, &live, publisher);
    let about = "A Nostr relay: events that are signed, stored and told.";
    let service = Service::new(tables.clone(), about, own.server)
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
        keys: keys.as_ref(),
        moderator: moderator.as_ref(),
    };
    let staffed = staff.add(service);
    staffed.map_err(|error| ConfigError::invalid("community.retention", &error))
}
