//! A database with the platform's tables, and the executable as processes on it.
//!
//! A site is made anew: the tables by `tasuki migrate`, the months of the audit, an API key; and
//! the broker is emptied, because its messages are those of the database before. Processes are the
//! release build with the settings that it is shipped with; their logs are beside the results.
//!
//! Processes die with this one, however it ends, because they are started from its main thread.

use std::{
    fs::{self, File},
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use anyhow::{Context as _, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
use serde::Deserialize;
use sqlx::PgPool;
use tasuki::Schema;
use tokio::{
    process::{Child, Command},
    time::{Instant, sleep, timeout},
};

use crate::{broker, load::http::Connection, store as databases};

/// Makes an API key; behind it come the service and what the key may do.
const MAKE_KEY: [&str; 5] = ["apikey", "create", "--json", "--name", "bench"];

/// How long a process may take until it is ready, how long one look at that, and the pause after.
const START_LIMIT: Duration = Duration::from_secs(60);
const LOOK_LIMIT: Duration = Duration::from_secs(5);
const LOOK_AGAIN: Duration = Duration::from_millis(50);
/// How long it may take to stop: more than its own time of grace.
const STOP_LIMIT: Duration = Duration::from_secs(60);

/// Where servers, executable and logs are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ground<'a> {
    /// The server, through a database that is not touched.
    pub(crate) database_url: &'a str,
    /// The broker. Its streams are removed.
    pub(crate) nats_url: &'a str,
    pub(crate) redis_url: &'a str,
    /// The executable that is measured.
    pub(crate) tasuki: &'a Path,
    /// Where the logs of the services go.
    pub(crate) logs: &'a Path,
}

/// What the load is let in with: a service, and what is allowed there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Permission {
    pub(crate) service: &'static str,
    pub(crate) scopes: &'static [&'static str],
}

/// A database, and how processes find it.
#[derive(Debug)]
pub(crate) struct Site {
    pub(crate) url: String,
    program: PathBuf,
    settings: Vec<(&'static str, String)>,
    logs: PathBuf,
    api_key: String,
}

/// What `tasuki apikey create` answers.
#[derive(Debug, Deserialize)]
struct Made {
    credential: String,
}

impl Site {
    /// Makes the database anew, with everything but rows.
    pub(crate) async fn make(
        ground: Ground<'_>,
        server: &PgPool,
        database: &Schema,
        permission: Permission,
    ) -> anyhow::Result<Self> {
        let url = databases::address(ground.database_url, database.as_str())?;
        broker::forget(ground.nats_url).await?;
        databases::recreate(server, database).await?;
        let settings = vec![
            ("TASUKI_DATABASE__URL", url.clone()),
            ("TASUKI_NATS__URL", ground.nats_url.to_owned()),
            ("TASUKI_REDIS__URL", ground.redis_url.to_owned()),
        ];
        let mut site = Self {
            url,
            program: std::path::absolute(ground.tasuki)?,
            settings,
            logs: ground.logs.to_owned(),
            api_key: String::new(),
        };
        site.tell(&["migrate"]).await?;
        let mut make_key = MAKE_KEY.to_vec();
        make_key.extend(["--service", permission.service]);
        let scopes = permission.scopes.iter();
        make_key.extend(scopes.flat_map(|scope| ["--scope", scope]));
        let made = site.tell(&make_key).await?;
        let made: Made = serde_json::from_str(&made).context("no API key was made")?;
        site.api_key = made.credential;
        Ok(site)
    }

    /// Another setting of its processes.
    pub(crate) fn with(mut self, name: &'static str, value: &str) -> Self {
        self.settings.push((name, value.to_owned()));
        self
    }

    /// Processes that log only what is wrong.
    pub(crate) fn quiet(self) -> Self {
        self.with("TASUKI_TELEMETRY__LOG", "warn")
    }

    /// Starts a service, or a part of it, and returns when it is ready.
    pub(crate) async fn serve(
        &self,
        service: &'static str,
        part: &[&str],
    ) -> anyhow::Result<Process> {
        let port = tasuki_stack::free_port()?;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let listen = format!("TASUKI_{}__SERVER__LISTEN", service.to_uppercase());
        let log = self.logs.join(format!("{service}.log"));
        let lines = File::create(&log)
            .with_context(|| format!("{} could not be written", log.display()))?;
        let child = Command::from(tasuki_stack::mortal(&self.program))
            .args(["serve", service])
            .args(part)
            .envs(self.settings.iter().map(|(name, value)| (name, value)))
            .env(listen, address.to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(lines)
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("{} could not be started", self.program.display()))?;
        let mut process = Process {
            service,
            child,
            address,
            api_key: self.api_key.clone(),
            log,
        };
        process.ready().await?;
        Ok(process)
    }

    /// Runs a command of the executable to its end, and returns what it says.
    pub(crate) async fn tell(&self, words: &[&str]) -> anyhow::Result<String> {
        let done = Command::new(&self.program)
            .args(words)
            .envs(self.settings.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .output()
            .await
            .with_context(|| format!("{} could not be started", self.program.display()))?;
        let why = String::from_utf8_lossy(&done.stderr);
        let words = words.join(" ");
        ensure!(
            done.status.success(),
            "`tasuki {words}` failed: {}",
            why.trim()
        );
        Ok(String::from_utf8_lossy(&done.stdout).into_owned())
    }
}

/// A service that runs. Dropping it kills it.
#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) service: &'static str,
    child: Child,
    address: SocketAddr,
    api_key: String,
    log: PathBuf,
}

impl Process {
    /// Where it listens.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// What it lets the load in with.
    pub(crate) fn api_key(&self) -> &str {
        &self.api_key
    }

    /// What it has to say.
    pub(crate) fn log(&self) -> &Path {
        &self.log
    }

    /// What it holds in memory now, in MiB.
    pub(crate) fn resident(&self) -> anyhow::Result<f64> {
        let (service, log) = (self.service, self.log.display());
        let gone = || format!("{service} has ended, {log} says more");
        let pid = self.child.id().with_context(gone)?;
        let status = fs::read_to_string(format!("/proc/{pid}/status")).with_context(gone)?;
        resident_in(&status).with_context(gone)
    }

    /// Tells it to stop, and waits until it has.
    pub(crate) async fn stop(mut self) -> anyhow::Result<()> {
        let (service, log) = (self.service, self.log.display());
        let pid = self.child.id().and_then(|pid| i32::try_from(pid).ok());
        let pid = pid
            .and_then(Pid::from_raw)
            .with_context(|| format!("{service} has ended, {log} says more"))?;
        kill_process(pid, Signal::TERM)?;
        let ended = timeout(STOP_LIMIT, self.child.wait()).await;
        let status = ended.with_context(|| format!("{service} does not stop"))??;
        ensure!(
            status.success(),
            "{service} stopped with {status}, {log} says more"
        );
        Ok(())
    }

    async fn ready(&mut self) -> anyhow::Result<()> {
        let deadline = Instant::now() + START_LIMIT;
        let (service, log) = (self.service, self.log.display());
        loop {
            if let Some(status) = self.child.try_wait()? {
                bail!("{service} ended with {status}, {log} says more");
            }
            let asked = timeout(LOOK_LIMIT, is_ready(self.address)).await;
            if matches!(asked, Ok(Ok(true))) {
                return Ok(());
            }
            ensure!(
                Instant::now() < deadline,
                "{service} is not ready after {START_LIMIT:?}, {log} says more"
            );
            sleep(LOOK_AGAIN).await;
        }
    }
}

async fn is_ready(address: SocketAddr) -> anyhow::Result<bool> {
    let request = format!("GET /readyz HTTP/1.1\r\nHost: {address}\r\n\r\n");
    let mut connection = Connection::open(address).await?;
    let answer = connection.ask(request.as_bytes()).await?;
    Ok(answer.status == 200)
}

/// The number in `VmRSS:     12345 kB`, in MiB.
fn resident_in(status: &str) -> Option<f64> {
    let mut lines = status.lines();
    let line = lines.find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: f64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kib / 1024.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_read_from_what_the_kernel_says() {
        let status = "Name:\ttasuki\nVmHWM:\t  9000 kB\nVmRSS:\t    2048 kB\nThreads:\t2\n";
        assert_eq!(resident_in(status), Some(2.0));
        assert_eq!(resident_in("State:\tZ (zombie)\n"), None);
    }
}
