//! `tasuki serve`: services of one pod, against existing servers.

use std::process::ExitCode;

use anyhow::bail;
use tasuki_service::host::{Ended, Host, Role};
use tasuki_service::shutdown::Signals;
use tasuki_service::telemetry::{self, LogTarget};

use crate::args::{Part, Serve, Source};
use crate::platform::{self, Name, Platform};

/// Ended by a signal before it was ready, or by a second one.
pub(crate) const FORCED: u8 = 130;

pub(crate) async fn run(source: &Source, options: &Serve) -> anyhow::Result<ExitCode> {
    let platform = Platform::read(&platform::configuration(source)?)?;
    let mut signals = Signals::listen()?;
    let name = match options.services.as_slice() {
        [one] => format!("tasuki-{}", one.as_str()),
        _ => "tasuki".to_owned(),
    };
    let telemetry = telemetry::init(&platform.common.telemetry, &LogTarget::Stderr, name)?;
    let role = match options.only {
        None => Role::Everything,
        Some(Part::Http) => Role::Http,
        Some(Part::Workers) => Role::Workers,
    };
    let host = Host::new(
        platform.common.clone(),
        platform.clock.clone(),
        telemetry.meter.clone(),
        role,
    );
    let mut names: Vec<Name> = Vec::new();
    for name in &options.services {
        if !names.contains(name) {
            names.push(*name);
        }
    }
    let services = platform.services(&names).await?;
    let running = tokio::select! {
        running = Box::pin(host.start(services)) => running?,
        // Nothing was promised to anybody yet.
        _signal = signals.next() => return Ok(ExitCode::from(FORCED)),
    };
    let ended = Box::pin(running.run_until_signal(&mut signals)).await;
    match ended {
        Ended::Forced => Ok(ExitCode::from(FORCED)),
        Ended::InOrder | Ended::Failed => {
            telemetry.finish().await;
            if ended == Ended::Failed {
                bail!("a listener failed, see the log");
            }
            Ok(ExitCode::SUCCESS)
        }
    }
}
