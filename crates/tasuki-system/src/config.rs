//! The settings of the system service.

use serde::Deserialize;
use tasuki_service::config::{ServiceDatabase, ServiceServer};

/// `[system]`
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct System {
    /// `[system.server]`
    pub server: ServiceServer,
    /// `[system.database]`
    pub database: ServiceDatabase,
}
