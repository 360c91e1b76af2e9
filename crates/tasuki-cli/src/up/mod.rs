//! `tasuki up`: private servers and every service in one process.
//!
//! Order: servers, schemas, credentials, services, ready; only then `.tasuki/run/env` and the
//! screen. Stopping goes the other way round. A server that dies is started again on its
//! port and data, as a database behind a service manager would be.

mod development;
mod keeper;
mod screen;
mod servers;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use tasuki_service::auth::tokens::KeyRing;
use tasuki_service::config::Config;
use tasuki_service::host::{Ended, Host, Role, Running};
use tasuki_service::shutdown::Signals;
use tasuki_service::telemetry::{self, LogTarget, Meter};
use tokio::time::Instant;

use crate::args::{Source, Up};
use crate::env_file;
use crate::output::note;
use crate::platform::{self, Name, Platform};
use crate::serve::FORCED;
use development::Development;
use servers::Servers;

/// How long services may take to become ready once their servers are.
const READY_LIMIT: Duration = Duration::from_secs(60);

pub(crate) async fn run(source: &Source, options: &Up) -> anyhow::Result<ExitCode> {
    let began = Instant::now();
    let config = platform::configuration(source)?.with_value("platform.mode", "development")?;
    let stack = Platform::read(&config)?.stack;
    let mut signals = Signals::listen()?;
    std::fs::create_dir_all(&stack.run_dir)
        .with_context(|| format!("folder {} can't be made", stack.run_dir.display()))?;
    let target = if options.verbose {
        LogTarget::Stderr
    } else {
        LogTarget::File(stack.run_dir.join("tasuki.log"))
    };
    let telemetry = telemetry::init(&Platform::read(&config)?.common.telemetry, &target)?;
    note("starting …");

    let starting = Box::pin(Up::start(config, telemetry.meter.clone()));
    let started = tokio::select! {
        started = starting => started?,
        // Nothing was promised to anybody yet: what has started dies with us.
        _signal = signals.next() => return Ok(ExitCode::from(FORCED)),
    };
    screen::show(&started, &target, began.elapsed());
    let Started {
        running,
        servers,
        env,
        ..
    } = started;
    let ended = Box::pin(running.run_until_signal(&mut signals)).await;
    drop(env);
    if ended == Ended::Forced {
        return Ok(ExitCode::from(FORCED));
    }
    servers::stop(servers).await?;
    telemetry.finish().await;
    note("stopped");
    Ok(ExitCode::SUCCESS)
}

/// A platform that is ready.
struct Started {
    running: Running,
    servers: Arc<Servers>,
    development: Development,
    platform: Platform,
    env: env_file::Removed,
}

impl Up {
    async fn start(config: Config, meter: Meter) -> anyhow::Result<Started> {
        let stack = Platform::read(&config)?.stack;
        let env = env_file::Removed(stack.run_dir.join("env"));
        let servers = Arc::new(Servers::start(&stack).await?);
        env_file::remove_if_there(&env.0)?;
        let mut development = Development::open(&stack.data_dir)?;
        let config = servers.configure(config)?;
        let config = development.configure(config)?;
        let platform = Platform::read(&config)?;
        prepare(&platform, &mut development).await?;

        let (common, clock) = (platform.common.clone(), platform.clock.clone());
        let host = Host::new(common, clock, meter, Role::Everything);
        let running = host.start(platform.services(&Name::ALL)?).await?;
        until_ready(&running).await?;

        let variables = development.variables(&platform, &running);
        let keeper = keeper::Keeper::new(&servers, variables, env.0.clone());
        keeper.write()?;
        running.supervisor().start(keeper);
        Ok(Started {
            running,
            servers,
            development,
            platform,
            env,
        })
    }
}

/// Schemas, signing keys and development credentials.
async fn prepare(platform: &Platform, development: &mut Development) -> anyhow::Result<()> {
    for tables in platform.tables()? {
        tables
            .database
            .wait(platform.common.database.start_timeout)
            .await?;
        tables.migrate().await?;
        if let Some(dir) = &platform.common.auth.key_dir {
            KeyRing::open_or_create(dir, tables.service, &platform.clock)?;
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
