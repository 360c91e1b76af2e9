//! The servers under `tasuki up`: private ones, or those that the configuration names.

use std::sync::Arc;

use tasuki_service::config::Config;
use tasuki_stack::{Options, Ports, Server, Stack};

use crate::platform;

/// The database of the private PostgreSQL that the platform uses.
const DATABASE: &str = "tasuki";
/// The database of the shop's second warehouse.
const WAREHOUSE: &str = "tasuki_warehouse";

/// Private servers, or none.
pub(super) struct Servers(Option<Stack>);

impl Servers {
    pub(super) async fn start(settings: &platform::Stack) -> anyhow::Result<Self> {
        if !settings.private {
            return Ok(Self(None));
        }
        let fixed = |port: u16| (port != 0).then_some(port);
        let options = Options::new(&settings.data_dir)
            .durable()
            .tools(&settings.tools_dir)
            .ports(Ports {
                postgres: fixed(settings.postgres_port),
                nats: fixed(settings.nats_port),
                redis: fixed(settings.redis_port),
            });
        let stack = Stack::start(options).await?;
        stack.postgres.ensure_database(DATABASE).await?;
        stack.postgres.ensure_database(WAREHOUSE).await?;
        Ok(Self(Some(stack)))
    }

    /// Points the configuration at them.
    pub(super) fn configure(&self, config: Config) -> anyhow::Result<Config> {
        let Some(stack) = &self.0 else {
            return Ok(config);
        };
        let config = if config.is_set("shop.warehouse.url") {
            config
        } else {
            config.with_value("shop.warehouse.url", stack.postgres.url(WAREHOUSE))?
        };
        Ok(config
            .with_value("database.url", stack.postgres.url(DATABASE))?
            .with_value("nats.url", stack.nats.url())?
            .with_value("redis.url", stack.redis.url())?)
    }

    /// The private servers, with the name that their variables have.
    pub(super) fn each(&self) -> Vec<(&'static str, &Server)> {
        self.0.as_ref().map_or_else(Vec::new, |stack| {
            vec![
                ("POSTGRES", &*stack.postgres),
                ("NATS", &*stack.nats),
                ("REDIS", &*stack.redis),
            ]
        })
    }
}

/// Stops them in an orderly way, once nobody uses them any more.
pub(super) async fn stop(servers: Arc<Servers>) -> anyhow::Result<()> {
    if let Some(Servers(Some(stack))) = Arc::into_inner(servers) {
        stack.stop().await?;
    }
    Ok(())
}
