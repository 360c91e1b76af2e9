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
    path::PathBuf,
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

use super::Options;
use crate::{
    broker,
    load::{Load, Told, http::Connection},
    store as databases,
};

/// The services that take part; a schema has the name of its service.
pub(super) const ENTITLEMENT: &str = "entitlement";
pub(super) const NOTIFICATION: &str = "notification";
/// The API, without workers.
pub(super) const HTTP_ONLY: [&str; 2] = ["--only", "http"];

/// Makes a key that may grant and read.
const MAKE_KEY: [&str; 11] = [
    "apikey",
    "create",
    "--json",
    "--name",
    "bench",
    "--service",
    ENTITLEMENT,
    "--scope",
    "entitlement:grant",
    "--scope",
    "entitlement:read",
];

const FILL: &str = include_str!("../../grant/fill.sql");
const MONTHS: &str = include_str!("../../grant/months.sql");

/// How long a process may take until it is ready, how long one look at that, and the pause after.
const START_LIMIT: Duration = Duration::from_secs(60);
const LOOK_LIMIT: Duration = Duration::from_secs(5);
const LOOK_AGAIN: Duration = Duration::from_millis(50);
/// How long it may take to stop: more than its own time of grace.
const STOP_LIMIT: Duration = Duration::from_secs(60);

/// A database, and how processes find it.
#[derive(Debug)]
pub(super) struct Site {
    pub(super) url: String,
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
    pub(super) async fn make(
        options: &Options,
        server: &PgPool,
        database: &Schema,
    ) -> anyhow::Result<Self> {
        let (rest, _) = options
            .database_url
            .rsplit_once('/')
            .context("the database's address has no database in it")?;
        let url = format!("{rest}/{database}");
        broker::forget(&options.nats_url).await?;
        databases::recreate(server, database).await?;
        let settings = vec![
            ("TASUKI_DATABASE__URL", url.clone()),
            ("TASUKI_NATS__URL", options.nats_url.clone()),
            ("TASUKI_REDIS__URL", options.redis_url.clone()),
        ];
        let mut site = Self {
            url,
            program: std::path::absolute(&options.tasuki)?,
            settings,
            logs: options.results.clone(),
            api_key: String::new(),
        };
        site.tell(&["migrate"]).await?;
        databases::run_file(&site.url, MONTHS.to_owned()).await?;
        let made = site.tell(&MAKE_KEY).await?;
        let made: Made = serde_json::from_str(&made).context("no API key was made")?;
        site.api_key = made.credential;
        Ok(site)
    }

    /// Gives five entitlements to so many users.
    pub(super) async fn fill(&self, users: u32) -> anyhow::Result<()> {
        let sql = FILL.replace(":users", &users.to_string());
        databases::run_file(&self.url, sql).await?;
        databases::settle(&self.url).await?;
        Ok(())
    }

    /// Processes that log only what is wrong.
    pub(super) fn quiet(mut self) -> Self {
        self.settings
            .push(("TASUKI_TELEMETRY__LOG", "warn".to_owned()));
        self
    }

    /// Starts a service, or a part of it, and returns when it is ready.
    pub(super) async fn serve(
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
    async fn tell(&self, words: &[&str]) -> anyhow::Result<String> {
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
pub(super) struct Process {
    pub(super) service: &'static str,
    child: Child,
    address: SocketAddr,
    api_key: String,
    log: PathBuf,
}

impl Process {
    /// Puts load on it.
    pub(super) async fn load(&self, load: Load) -> anyhow::Result<Told> {
        let told = load.on(self.address, &self.api_key).await;
        told.with_context(|| format!("{} says more", self.log.display()))
    }

    /// What it holds in memory now, in MiB.
    pub(super) fn resident(&self) -> anyhow::Result<f64> {
        let (service, log) = (self.service, self.log.display());
        let gone = || format!("{service} has ended, {log} says more");
        let pid = self.child.id().with_context(gone)?;
        let status = fs::read_to_string(format!("/proc/{pid}/status")).with_context(gone)?;
        resident_in(&status).with_context(gone)
    }

    /// Tells it to stop, and waits until it has.
    pub(super) async fn stop(mut self) -> anyhow::Result<()> {
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
