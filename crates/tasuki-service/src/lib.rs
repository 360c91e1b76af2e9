//! What every service shares: configuration, telemetry, HTTP, callers, database, start and
//! stop.
//!
//! A service is a [`Service`]: a name, routes, workers, the plan of its schema and what it
//! needs to be ready. [`Host`](host::Host) runs any number of them in one process and
//! stops them in order. Nothing in here knows what a service is about.

pub mod auth;
pub mod config;
pub mod database;
pub mod host;
pub mod http;
pub mod instances;
pub mod nats;
pub mod service;
pub mod shutdown;
pub mod telemetry;

pub use config::{Common, Config};
pub use service::Service;
