//! `tasuki up`: private servers and every service in one process.
//!
//! Order: servers, schemas, credentials, services, ready; only then `.tasuki/run/env` and the
//! screen. Stopping goes the other way round. A server that dies is started again on its
//! port and data, as a database behind a service manager would be.

mod claim;
mod development;
mod keeper;
mod screen;
mod servers;

use std::io::IsTerminal;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::bail;
use tasuki_service::auth::tokens::KeyRing;
use tasuki_service::config::Config;
use tasuki_service::host::{Ended, Host, Role, Running};
use tasuki_service::shutdown::Signals;
use tasuki_service::telemetry::{self, LogTarget, Meter};
use tokio::time::Instant;

use crate::args::{Source, Up};
use crate::output::note;
use crate::platform::{self, Name, Platform};
use crate::serve::FORCED;
use claim::Claim;
use development::Development;
use keeper::Keeper;
use servers::Servers;

/// How long services may take to become ready once their servers are.
const READY_LIMIT: Duration = Duration::from_secs(60);

pub(crate) async fn run(source: &Source, options: &Up) -> anyhow::Result<ExitCode> {
    let began = Instant::now();
    let config = platform::configuration(source)?.with_value("platform.mode", "development")?;
    // Before anything is touched: a mistake in any section is told first.
    let Platform { stack, common, .. } = Platform::read(&config)?;
    let mut signals = Signals::listen()?;
    let claim = Claim::on(&stack.run_dir)?;
    let target = if options.verbose {
        LogTarget::Stderr
    } else {
        let log = stack.run_dir.join("tasuki.log");
        // The last one may say why it ended. There may be none.
        std::fs::rename(&log, log.with_extension("log.1")).unwrap_or_default();
        LogTarget::File(log)
    };
    let telemetry = telemetry::init(&common.telemetry, &target, "tasuki".to_owned())?;
    note("starting …");

    let starting = Box::pin(Started::start(config, claim, telemetry.meter.clone()));
    let started = tokio::select! {
        started = starting => started?,
        // Nothing was promised to anybody yet: what has started dies with us.
        _signal = signals.next() => return Ok(ExitCode::from(FORCED)),
    };
    screen::show(&started, &target, began.elapsed());
    let Started {
        running,
        servers,
        claim,
        ..
    } = started;
    let phases = running.phases().clone();
    let run = Box::pin(running.run_until_signal(&mut signals));
    let ended = tokio::join!(run, async {
        phases.draining().await;
        if std::io::stderr().is_terminal() {
            note(""); // Off the line with the ^C.
        }
        note("stopping …");
        // Who reads it from now on would be sent to somebody who leaves.
        claim.take_back();
    })
    .0;
    if ended == Ended::Forced {
        return Ok(ExitCode::from(FORCED));
    }
    servers::stop(servers).await?;
    telemetry.finish().await;
    if ended == Ended::Failed {
        bail!(
            "a listener failed, see {}",
            stack.run_dir.join("tasuki.log").display()
        );
    }
    note("stopped");
    Ok(ExitCode::SUCCESS)
}

/// A platform that is ready.
struct Started {
    running: Running,
    servers: Arc<Servers>,
    development: Development,
    platform: Platform,
    claim: Claim,
}

impl Started {
    async fn start(config: Config, claim: Claim, meter: Meter) -> anyhow::Result<Self> {
        let stack = Platform::read(&config)?.stack;
        let servers = Arc::new(Servers::start(&stack).await?);
        let mut development = Development::open(&stack.data_dir)?;
        let config = servers.configure(config)?;
        let config = development.configure(config)?;
        let platform = Platform::read(&config)?;
        prepare(&platform, &mut development).await?;

        let (common, clock) = (platform.common.clone(), platform.clock.clone());
        let host = Host::new(common, clock, meter, Role::Everything);
        let running = host.start(platform.services(&Name::ALL).await?).await?;
        until_ready(&running).await?;

        let variables = development.variables(&platform, &running);
        let keeper = Keeper::new(&servers, variables, claim.env().to_owned());
        keeper.write()?;
        running.supervisor().start(keeper);
        Ok(Self {
            running,
            servers,
            development,
            platform,
            claim,
        })
    }
}

/// Schemas, signing keys and development credentials.
async fn prepare(platform: &Platform, development: &mut Development) -> anyhow::Result<()> {
    let limit = platform.common.database.start_timeout;
    if let Some(other) = platform.warehouse_tables()? {
        other.migrate(limit).await?;
        other.database.close().await;
    }
    for tables in platform.tables()? {
        tables.migrate(limit).await?;
        if let Some(dir) = &platform.common.auth.key_dir {
            KeyRing::open_or_create(dir, tables.service, &platform.clock)?;
            if tables.service == tasuki_community::NAME {
                tasuki_community::make_keys(dir)?;
            }
        }
        development.import(&tables, &platform.clock).await?;
        tables.database.close().await;
    }
    Ok(())
}

async fn until_ready(running: &Running) -> anyhow::Result<()> {
    let deadline = Instant::now() + READY_LIMIT;
    loop {
        let missing = running.missing().await;
        if missing.is_empty() {
            return Ok(());
        }
        if Instant::now() >= deadline {
            bail!(
                "not ready after {}s: {}",
                READY_LIMIT.as_secs(),
                missing.join("; ")
            );
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
