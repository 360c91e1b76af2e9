//! Which services there are, and how they are put together from the configuration.

use anyhow::{Context, bail};
use clap::ValueEnum;
use serde::Deserialize;
use std::path::PathBuf;
use tasuki::Clock;
use tasuki_service::config::Common;
use tasuki_service::service::Tables;
use tasuki_service::{Config, Service};
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
}

impl Name {
    pub(crate) const ALL: [Self; 1] = [Self::System];

    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::System => tasuki_system::NAME,
        }
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
}

/// The commented defaults of everything, as one file.
pub(crate) fn defaults() -> String {
    [Common::DEFAULTS, tasuki_system::DEFAULTS, DEFAULTS].concat()
}

/// The configuration in force: defaults, file, environment, file of variables.
pub(crate) fn configuration(source: &Source) -> anyhow::Result<Config> {
    let mut config = Config::defaults(&[Common::DEFAULTS, tasuki_system::DEFAULTS, DEFAULTS])?;
    if let Some(file) = &source.config {
        config = config.with_file(file)?;
    }
    config = config.with_environment(environment()?)?;
    if let Some(file) = &source.env_file {
        config = config.with_environment(env_file::read(file)?)?;
    }
    Ok(config)
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
        })
    }

    /// The tables of every service.
    pub(crate) fn tables(&self) -> anyhow::Result<Vec<Tables>> {
        Name::ALL
            .into_iter()
            .map(|name| self.tables_of(name))
            .collect()
    }

    /// The services of these names, ready to be hosted.
    pub(crate) fn services(&self, names: &[Name]) -> anyhow::Result<Vec<Service>> {
        names.iter().map(|name| self.service(*name)).collect()
    }

    fn service(&self, name: Name) -> anyhow::Result<Service> {
        let tables = self.tables_of(name)?;
        match name {
            Name::System => {
                let watched = self.tables()?;
                tasuki_system::service(&self.common, &self.system, tables, watched, &self.clock)
                    .context("the system service can't start")
            }
        }
    }
}
