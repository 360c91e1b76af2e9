//! Notification: events, delivered to people.
//!
//! Messages of other services are taken in once (inbox and notifications in one transaction, then
//! the acknowledgement), delivered under a lease over the channels that a user wants, tried again
//! when that fails, and set aside where a person sees them when it can't be done.
//!
//! Promised: an event that arrives twice is told once; a message that can't be read, or that the
//! broker gave up or lost, is recorded; a notification ends SENT or FAILED, and FAILED has exactly
//! one open dead letter; an inbox is numbered without gaps, and a client that resumes misses
//! nothing. Not promised: that a webhook is called once. Every attempt carries the same id.

mod advisories;
mod broker;
mod config;
mod delivery;
mod domain;
mod events;
mod http;
mod intake;
mod live;
mod lost;
mod redrive;
mod retention;
mod store;
mod sweep;
pub mod verify;
mod watch;
mod webhook;
mod workers;

use std::sync::Arc;

use tasuki::Clock;
use tasuki::bus::NatsBus;
use tasuki::dlq::Letters;
use tasuki::worker::Bell;
use tasuki_service::config::{Common, Error as ConfigError, Mode};
use tasuki_service::nats::{Nats, consumer_check};
use tasuki_service::service::{Own, Tables};
use tasuki_service::{Config, Service};

pub use config::{DebugInbox, Notification};
pub use domain::Channel;
pub use redrive::{Aside, Redriven, SetAside};
use webhook::address::Guard;
use webhook::send::{Sender, Timeouts};
use workers::Shop;

/// Its name, and the name of its schema.
pub const NAME: &str = "notification";
/// Its section of the configuration, with the defaults.
pub const DEFAULTS: &str = include_str!("default.toml");
/// What API keys can be allowed to do here.
pub const SCOPES: [&str; 2] = ["notification:read", "notification:write"];

/// Reads its section.
///
/// # Errors
/// When a value does not fit, alone or beside another, or is only safe in development.
pub fn config(config: &Config) -> Result<Notification, ConfigError> {
    let own: Notification = config.section(NAME)?;
    if let Some((key, problem)) = own.contradiction() {
        return Err(ConfigError::invalid(key, &problem));
    }
    let common = Common::read(config)?;
    if common.platform.mode == Mode::Production {
        if own.delivery.failure_injection.enabled {
            return Err(unsafe_here(
                "notification.delivery.failure-injection.enabled",
            ));
        }
        if own.webhook.allow_private_addresses {
            return Err(unsafe_here("notification.webhook.allow-private-addresses"));
        }
        if let Some((section, deliveries)) = own.gives_up_early() {
            let key = format!("notification.{section}.max-deliver");
            let least = workers::DELIVERIES;
            let problem = format!(
                "{deliveries} is not at least {least}, whose delays span an hour; fewer are only safe in \
                 development"
            );
            return Err(ConfigError::invalid(&key, &problem));
        }
    }
    Ok(own)
}

/// Its tables.
///
/// # Errors
/// When the database's address is missing.
pub fn tables(common: &Common, own: &Notification) -> Result<Tables, ConfigError> {
    let migrations = Own::BesideLibrary(sqlx::migrate!());
    Tables::new(NAME, common, &own.database, migrations)
}

/// The service.
///
/// # Errors
/// When the broker's address is missing, or a setting is out of range.
pub async fn service(
    common: &Common,
    own: &Notification,
    tables: Tables,
    clock: &Clock,
) -> Result<Service, ConfigError> {
    let bus = bus(common).await?;
    let guard = Guard {
        allow_private: own.webhook.allow_private_addresses,
        allow_http: own.webhook.allow_private_addresses,
    };
    let timeouts = Timeouts {
        connect: own.webhook.connect_timeout,
        total: own.webhook.timeout,
    };
    let sender = Sender::new(guard, timeouts);
    let sender = sender.map_err(|error| ConfigError::invalid("notification.webhook", &error))?;
    let (deliveries, inboxes) = (Bell::new(), Bell::new());
    let followed = live::Followed::new(own.live_stream);
    let app = http::App {
        pool: tables.database.requests.clone(),
        clock: clock.clone(),
        followed: followed.clone(),
        stream_lifetime: own.live_stream.lifetime,
        guard,
        sender: sender.clone(),
        deliveries: deliveries.clone(),
        rotation_overlap: own.webhook.rotation_overlap,
        endpoints_per_user: own.webhook.endpoints_per_user,
    };
    let debug_inbox = match own.debug.inbox {
        DebugInbox::On => true,
        DebugInbox::Off => false,
        DebugInbox::Development => common.platform.mode == Mode::Development,
    };
    let shop = Shop {
        own,
        tables: &tables,
        bus: &bus,
        sender: &sender,
        followed: &followed,
        deliveries: &deliveries,
        inboxes: &inboxes,
        clock,
        replicas: common.nats.replicas,
    };
    let about = "Events, delivered to people: inbox, live stream, webhooks.";
    let mut service = Service::new(tables.clone(), about, own.server);
    for (_, source) in own.sources() {
        if source.enabled {
            let spec = source.spec(common.nats.replicas);
            service = service.needs(consumer_check(&bus, &spec));
        }
    }
    let service = service.routes(http::routes(app, debug_inbox));
    let staffed = shop.staff(service);
    staffed.map_err(|error| ConfigError::invalid("notification.retention", &error))
}

/// The messages that were set aside, for an operator.
///
/// # Errors
/// When the broker's address is missing.
pub async fn aside(
    common: &Common,
    own: &Notification,
    tables: &Tables,
    clock: &Clock,
) -> Result<Aside, ConfigError> {
    let bus = bus(common).await?;
    let intakes = broker::intakes(own, tables, clock, &Bell::new()).into_iter();
    Ok(Aside {
        pool: tables.database.workers.clone(),
        intakes: intakes.map(|(_, intake)| intake).collect(),
        bus,
    })
}

/// The dead letters of notification, with the tables that its letters can be put back to.
#[must_use]
pub fn letters(tables: &Tables) -> Letters {
    workers::letters(&tables.schema)
}

async fn bus(common: &Common) -> Result<Arc<NatsBus>, ConfigError> {
    let client = Nats::new(&common.nats)?
        .connect("tasuki-notification")
        .await;
    let client = client.map_err(|error| ConfigError::invalid("nats.url", &error))?;
    Ok(Arc::new(NatsBus::new(client)))
}

fn unsafe_here(key: &str) -> ConfigError {
    ConfigError::invalid(key, &"it is only safe in development")
}
