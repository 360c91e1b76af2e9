//! Which services there are, and how they are put together from the configuration.

use anyhow::{Context, bail};
use clap::ValueEnum;
use serde::Deserialize;
use std::path::PathBuf;
use tasuki::Clock;
use tasuki::dlq::Letters;
use tasuki::upkeep::Upkeep;
use tasuki_community::Community;
use tasuki_entitlement::Entitlement;
use tasuki_notification::{Aside, Notification};
use tasuki_service::config::Common;
use tasuki_service::service::Tables;
use tasuki_service::{Config, Service};
use tasuki_shop::Shop;
use tasuki_system::System;

use crate::args::Source;
use crate::env_file;

/// The settings of `tasuki up`.
const DEFAULTS: &str = include_str!("default.toml");

/// The services by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Name {
    /// What runs, and how it is.
    System,
    /// Who owns what.
    Entitlement,
    /// Events, delivered to people.
    Notification,
    /// Orders, payments, inventory.
    Shop,
    /// A Nostr relay, and what follows it.
    Community,
}

impl Name {
    pub(crate) const ALL: [Self; 5] = [
        Self::System,
        Self::Entitlement,
        Self::Notification,
        Self::Shop,
        Self::Community,
    ];

    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::System => tasuki_system::NAME,
            Self::Entitlement => tasuki_entitlement::NAME,
            Self::Notification => tasuki_notification::NAME,
            Self::Shop => tasuki_shop::NAME,
            Self::Community => tasuki_community::NAME,
        }
    }

    /// What its API keys can be allowed to do.
    pub(crate) const fn scopes(self) -> &'static [&'static str] {
        match self {
            Self::System => &[],
            Self::Entitlement => &tasuki_entitlement::SCOPES,
            Self::Notification => &tasuki_notification::SCOPES,
            Self::Shop => &tasuki_shop::SCOPES,
            Self::Community => &tasuki_community::SCOPES,
        }
    }
}

/// The services that publish through an outbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Publisher {
    Entitlement,
    Shop,
    Community,
}

impl Publisher {
    pub(crate) const ALL: [Self; 3] = [Self::Entitlement, Self::Shop, Self::Community];

    pub(crate) const fn name(self) -> Name {
        match self {
            Self::Entitlement => Name::Entitlement,
            Self::Shop => Name::Shop,
            Self::Community => Name::Community,
        }
    }

    pub(crate) const fn as_str(self) -> &'static str {
        self.name().as_str()
    }
}

/// `[stack]`
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) struct Stack {
    pub(crate) private: bool,
    pub(crate) data_dir: PathBuf,
    pub(crate) run_dir: PathBuf,
    pub(crate) tools_dir: PathBuf,
    pub(crate) postgres_port: u16,
    pub(crate) nats_port: u16,
    pub(crate) redis_port: u16,
}

/// Everything that is configured, read into its types.
#[derive(Clone, Debug)]
pub(crate) struct Platform {
    pub(crate) common: Common,
    pub(crate) stack: Stack,
    pub(crate) clock: Clock,
    system: System,
    entitlement: Entitlement,
    notification: Notification,
    shop: Shop,
    community: Community,
}

/// The commented defaults of everything, in the order of the reference.
const PARTS: [&str; 7] = [
    Common::DEFAULTS,
    tasuki_system::DEFAULTS,
    tasuki_entitlement::DEFAULTS,
    tasuki_notification::DEFAULTS,
    tasuki_shop::DEFAULTS,
    tasuki_community::DEFAULTS,
    DEFAULTS,
];

/// The commented defaults of everything, as one file.
pub(crate) fn defaults() -> String {
    PARTS.concat()
}

/// The configuration in force: defaults, file, environment, file of variables.
pub(crate) fn configuration(source: &Source) -> anyhow::Result<Config> {
    let mut config = Config::defaults(&PARTS)?;
    if let Some(file) = &source.config {
        config = config.with_file(file)?;
    }
    config = config.with_environment(environment()?)?;
    if let Some(file) = &source.env_file {
        config = config.with_environment(env_file::read(file)?)?;
    }
    Ok(config)
}

/// The configuration of the platform that an operator means: what is configured, or else the
/// `tasuki up` that runs in this folder.
pub(crate) fn of_running(source: &Source) -> anyhow::Result<Platform> {
    let config = configuration(source)?;
    let platform = Platform::read(&config)?;
    let env = platform.stack.run_dir.join("env");
    if !platform.common.database.url.is_empty() || source.env_file.is_some() || !env.exists() {
        return Ok(platform);
    }
    Platform::read(&config.with_environment(env_file::read(&env)?)?)
}

/// The variables of this process that concern us.
pub(crate) fn environment() -> anyhow::Result<Vec<(String, String)>> {
    let ours = std::env::vars_os().filter_map(|(name, value)| {
        let name = name.into_string().ok()?;
        name.starts_with("TASUKI_").then_some((name, value))
    });
    ours.map(|(name, value)| match value.into_string() {
        Ok(value) => Ok((name, value)),
        Err(_bytes) => bail!("environment variable {name} is not UTF-8 text"),
    })
    .collect()
}

impl Platform {
    pub(crate) fn read(config: &Config) -> anyhow::Result<Self> {
        Ok(Self {
            common: Common::read(config)?,
            stack: config.section("stack")?,
            system: tasuki_system::config(config)?,
            entitlement: tasuki_entitlement::config(config)?,
            notification: tasuki_notification::config(config)?,
            shop: tasuki_shop::config(config)?,
            community: tasuki_community::config(config)?,
            clock: Clock::system(),
        })
    }

    /// The servers that `tasuki serve` would miss.
    pub(crate) fn unset_addresses(&self) -> Vec<&'static str> {
        let Common {
            database,
            nats,
            redis,
            ..
        } = &self.common;
        let all = [
            ("database.url", &database.url),
            ("nats.url", &nats.url),
            ("redis.url", &redis.url),
        ];
        let unset = all.into_iter().filter(|(_, address)| address.is_empty());
        unset.map(|(key, _)| key).collect()
    }

    /// The tables of one service.
    pub(crate) fn tables_of(&self, name: Name) -> anyhow::Result<Tables> {
        Ok(match name {
            Name::System => tasuki_system::tables(&self.common, &self.system)?,
            Name::Entitlement => tasuki_entitlement::tables(&self.common, &self.entitlement)?,
            Name::Notification => tasuki_notification::tables(&self.common, &self.notification)?,
            Name::Shop => tasuki_shop::tables(&self.common, &self.shop)?,
            Name::Community => tasuki_community::tables(&self.common, &self.community)?,
        })
    }

    /// The dead letters of a service that has any, and its tables.
    pub(crate) fn letters_of(&self, name: Name) -> anyhow::Result<Option<(Tables, Letters)>> {
        let tables = self.tables_of(name)?;
        let letters = match name {
            Name::System => return Ok(None),
            Name::Entitlement | Name::Shop | Name::Community => Letters::new(&tables.schema, &[]),
            Name::Notification => tasuki_notification::letters(&tables),
        };
        Ok(Some((tables, letters)))
    }

    /// The tables of a service that has sagas and two-phase commits.
    pub(crate) fn conducting(&self, name: Name) -> anyhow::Result<Tables> {
        if name == Name::System {
            bail!("the system service has neither sagas nor two-phase commits");
        }
        self.tables_of(name)
    }

    /// The messages that the broker gave up on their way to notification.
    pub(crate) async fn aside(&self) -> anyhow::Result<Aside> {
        let tables = self.tables_of(Name::Notification)?;
        let (common, clock) = (&self.common, &self.clock);
        Ok(tasuki_notification::aside(common, &self.notification, &tables, clock).await?)
    }

    /// Compares what a service has published with what the broker holds; says how much of it is
    /// sent again.
    pub(crate) async fn reconcile(&self, publisher: Publisher) -> anyhow::Result<u64> {
        let tables = self.tables_of(publisher.name())?;
        let common = &self.common;
        let sent = match publisher {
            Publisher::Entitlement => {
                tasuki_entitlement::reconcile(common, &self.entitlement, &tables).await
            }
            Publisher::Shop => tasuki_shop::reconcile(common, &self.shop, &tables).await,
            Publisher::Community => {
                tasuki_community::reconcile(common, &self.community, &tables).await
            }
        };
        sent.map_err(|error| anyhow::anyhow!(error))
    }

    /// For how long a service keeps the events that it has published.
    pub(crate) const fn published_ttl(&self, publisher: Publisher) -> std::time::Duration {
        match publisher {
            Publisher::Entitlement => self.entitlement.outbox.published_ttl,
            Publisher::Shop => self.shop.outbox.published_ttl,
            Publisher::Community => self.community.outbox.published_ttl,
        }
    }

    /// What keeps the tables of a service small.
    pub(crate) fn upkeep(&self, publisher: Publisher) -> anyhow::Result<(Tables, Upkeep)> {
        let tables = self.tables_of(publisher.name())?;
        let upkeep = match publisher {
            Publisher::Entitlement => tasuki_entitlement::upkeep(&self.entitlement, &tables)?,
            Publisher::Shop => tasuki_shop::upkeep(&self.shop, &tables)?,
            Publisher::Community => tasuki_community::upkeep(&self.community, &tables)?,
        };
        Ok((tables, upkeep))
    }

    /// Whether notification hears of orders.
    pub(crate) const fn tells_of_orders(&self) -> bool {
        self.notification.shop_nats.enabled
    }

    /// The limits that clients of the relay have, by name.
    pub(crate) fn relay_limits(&self) -> Vec<(&'static str, String)> {
        self.community.limits.told()
    }

    /// The settings of the community node.
    pub(crate) const fn community(&self) -> &Community {
        &self.community
    }

    /// The settings of the shop.
    pub(crate) const fn shop(&self) -> &Shop {
        &self.shop
    }

    /// The tables of every service.
    pub(crate) fn tables(&self) -> anyhow::Result<Vec<Tables>> {
        Name::ALL
            .into_iter()
            .map(|name| self.tables_of(name))
            .collect()
    }

    /// The tables of every service, wherever they are: the shop's second warehouse has some, too.
    pub(crate) fn all_tables(&self) -> anyhow::Result<Vec<Tables>> {
        let mut all = self.tables()?;
        all.extend(self.warehouse_tables()?);
        Ok(all)
    }

    /// The tables of the shop's second warehouse, if there is one.
    pub(crate) fn warehouse_tables(&self) -> anyhow::Result<Option<Tables>> {
        Ok(tasuki_shop::warehouse_tables(&self.common, &self.shop)?)
    }

    /// The services of these names, ready to be hosted.
    pub(crate) async fn services(&self, names: &[Name]) -> anyhow::Result<Vec<Service>> {
        let mut services = Vec::with_capacity(names.len());
        for name in names {
            let service = self.service(*name).await;
            let why = || format!("the {} service can't start", name.as_str());
            services.push(service.with_context(why)?);
        }
        Ok(services)
    }

    async fn service(&self, name: Name) -> anyhow::Result<Service> {
        let tables = self.tables_of(name)?;
        let (common, clock) = (&self.common, &self.clock);
        Ok(match name {
            Name::System => {
                tasuki_system::service(common, &self.system, tables, self.tables()?, clock)?
            }
            Name::Entitlement => {
                tasuki_entitlement::service(common, &self.entitlement, tables, clock).await?
            }
            Name::Notification => {
                tasuki_notification::service(common, &self.notification, tables, clock).await?
            }
            Name::Shop => tasuki_shop::service(common, &self.shop, tables, clock).await?,
            Name::Community => {
                tasuki_community::service(&self.common, &self.community, &tables, clock).await?
            }
        })
    }
}
