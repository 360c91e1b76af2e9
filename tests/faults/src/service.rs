//! A process of the platform to be killed: one service, as `tasuki serve` runs it, that dies or
//! stops at the crash point it was given.
//!
//! It is configured by the environment. Once it serves it prints where, and runs until it is told
//! to stop.

use anyhow::{Context, Result, bail};
use clap::Parser;
use tasuki::Clock;
use tasuki_service::Config;
use tasuki_service::config::Common;
use tasuki_service::host::{Host, Role};
use tasuki_service::shutdown::Signals;
use tasuki_service::telemetry::Meter;

/// One process of one service.
#[derive(Parser)]
struct Node {
    /// `entitlement`, `notification`, `shop` or `community`.
    service: String,
    /// Where to die.
    #[arg(long)]
    crash_at: Option<String>,
    /// At which time of coming there.
    #[arg(long, default_value_t = 1)]
    nth: u32,
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> Result<()> {
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .init();
    let node = Node::parse();
    if let Some(point) = &node.crash_at {
        tasuki::testing::crash_at(point, node.nth);
    }
    let config = Config::defaults(&[
        Common::DEFAULTS,
        tasuki_entitlement::DEFAULTS,
        tasuki_notification::DEFAULTS,
        tasuki_shop::DEFAULTS,
        tasuki_community::DEFAULTS,
    ])?
    .with_environment(environment())?;
    let (common, clock) = (Common::read(&config)?, Clock::system());
    let service = match node.service.as_str() {
        tasuki_entitlement::NAME => {
            let own = tasuki_entitlement::config(&config)?;
            let tables = tasuki_entitlement::tables(&common, &own)?;
            tables.migrate(common.database.start_timeout).await?;
            tasuki_entitlement::service(&common, &own, tables, &clock).await?
        }
        tasuki_notification::NAME => {
            let own = tasuki_notification::config(&config)?;
            let tables = tasuki_notification::tables(&common, &own)?;
            tables.migrate(common.database.start_timeout).await?;
            tasuki_notification::service(&common, &own, tables, &clock).await?
        }
        tasuki_shop::NAME => {
            let own = tasuki_shop::config(&config)?;
            let tables = tasuki_shop::tables(&common, &own)?;
            let other = tasuki_shop::warehouse_tables(&common, &own)?;
            for tables in [Some(&tables), other.as_ref()].into_iter().flatten() {
                tables.migrate(common.database.start_timeout).await?;
            }
            tasuki_shop::service(&common, &own, tables, &clock).await?
        }
        tasuki_community::NAME => {
            let own = tasuki_community::config(&config)?;
            let tables = tasuki_community::tables(&common, &own)?;
            tables.migrate(common.database.start_timeout).await?;
            tasuki_community::service(&common, &own, &tables, &clock).await?
        }
        other => bail!("there is no service {other}"),
    };
    let mut signals = Signals::listen()?;
    let host = Host::new(common, clock, Meter::detached(), Role::Everything);
    let running = Box::pin(host.start(vec![service])).await?;
    let api = running.addresses().first().and_then(|it| it.api);
    println!("{}", api.context("no API")?);
    let ended = Box::pin(running.run_until_signal(&mut signals)).await;
    tracing::info!(?ended, "ended");
    Ok(())
}

/// The variables that concern the platform.
fn environment() -> impl Iterator<Item = (String, String)> {
    std::env::vars_os().filter_map(|(name, value)| {
        let name = name.into_string().ok()?;
        let value = value.into_string().ok()?;
        name.starts_with("TASUKI_").then_some((name, value))
    })
}
