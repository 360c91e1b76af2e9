//! Starts private servers again when they die, and keeps `.tasuki/run/env` true.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tasuki::worker::{Error, Tick, Worker};

use super::servers::Servers;
use crate::env_file;

/// How often it looks.
const PERIOD: Duration = Duration::from_millis(250);

pub(super) struct Keeper {
    servers: Arc<Servers>,
    variables: Vec<(String, String)>,
    path: PathBuf,
}

impl Keeper {
    pub(super) fn new(
        servers: &Arc<Servers>,
        variables: Vec<(String, String)>,
        path: PathBuf,
    ) -> Self {
        Self {
            servers: Arc::clone(servers),
            variables,
            path,
        }
    }

    /// Writes the file with the process ids as they are now.
    pub(super) fn write(&self) -> anyhow::Result<()> {
        let pids = self.servers.each().into_iter();
        let pids =
            pids.map(|(name, server)| (format!("TASUKI_{name}_PID"), server.pid().to_string()));
        let own = ("TASUKI_PID".to_owned(), std::process::id().to_string());
        let all: Vec<_> = self
            .variables
            .iter()
            .cloned()
            .chain(pids)
            .chain([own])
            .collect();
        env_file::write(&self.path, &all)
    }
}

impl Worker for Keeper {
    fn name(&self) -> &str {
        "process.stack-keeper"
    }

    fn poll_interval(&self) -> Duration {
        PERIOD
    }

    async fn tick(&self) -> Result<Tick, Error> {
        let mut failed = None;
        for (_, server) in self.servers.each() {
            if server.is_running() {
                continue;
            }
            tracing::warn!(server = server.name(), "server died, starting it again");
            // One that can't be started must not keep the others down.
            match server.start().await {
                Ok(()) => self.write()?,
                Err(error) => failed = Some(error),
            }
        }
        failed.map_or(Ok(Tick::Idle), |error| Err(error.into()))
    }
}
