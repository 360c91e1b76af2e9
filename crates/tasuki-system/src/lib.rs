//! The system service: what runs, in which version, and how its workers are.
//!
//! It owns no business data. `GET /v1/status` puts together what the servers say of
//! themselves, how far every schema is with its migrations, and what every process has
//! reported of its workers; the console and `tasuki status` show it.

mod config;
mod http;
mod queries;
mod servers;
mod store;

use tasuki::Clock;
use tasuki_service::config::{Common, Error as ConfigError};
use tasuki_service::service::{Own, Tables};
use tasuki_service::{Config, Service};

pub use config::System;

/// Its name, and the name of its schema.
pub const NAME: &str = "system";
/// Its section of the configuration, with the defaults.
pub const DEFAULTS: &str = include_str!("default.toml");

/// Reads its section.
///
/// # Errors
/// When a value does not fit.
pub fn config(config: &Config) -> Result<System, ConfigError> {
    config.section(NAME)
}

/// Its tables: only those that every service has.
///
/// # Errors
/// When the database's address is missing.
pub fn tables(common: &Common, own: &System) -> Result<Tables, ConfigError> {
    Tables::new(NAME, common, &own.database, Own::Nothing)
}

/// The service. `watched` are the tables of every service of the platform, its own included.
///
/// # Errors
/// When the address of a server is missing.
pub fn service(
    common: &Common,
    own: &System,
    tables: Tables,
    watched: Vec<Tables>,
    clock: &Clock,
) -> Result<Service, ConfigError> {
    let servers = servers::Servers::new(common, tables.database.requests.clone())?;
    let overview = queries::Overview::new(servers.clone(), watched, clock.clone());
    let about = "What runs, in which version, and how its workers are.";
    Ok(Service::new(tables, about, own.server)
        .needs(servers.check_nats())
        .needs(servers.check_redis())
        .routes(http::routes(overview)))
}
