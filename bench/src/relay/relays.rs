//! The relays that take part, each a process of its own on this machine.
//!
//! Ours runs as it is shipped, without limits on how often somebody may do something and with a topic
//! for events that have none, as the others are. The others have the settings that they come with,
//! and no such limits either.

use std::{
    fs::{self, File},
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use anyhow::{Context as _, bail, ensure};
use sqlx::PgPool;
use tasuki::Schema;
use tokio::{
    net::TcpStream,
    process::{Child, Command},
    time::{Instant, sleep},
};

use super::{DATABASE, Scenario};
use crate::{
    figures::{OURS, Side},
    site::{Ground, Permission, Process, Site},
    store as databases, targets,
};

const SERVICE: &str = "community";
const PERMISSION: Permission = Permission {
    service: SERVICE,
    scopes: &["community:read"],
};
/// What ours has another setting for than it is shipped with.
const SETTINGS: [(&str, &str); 4] = [
    ("TASUKI_COMMUNITY__LIMITS__EVENTS_PER_MINUTE", "0"),
    ("TASUKI_COMMUNITY__LIMITS__REQS_PER_MINUTE", "0"),
    ("TASUKI_COMMUNITY__LIMITS__CONNECTIONS_PER_MINUTE", "0"),
    ("TASUKI_COMMUNITY__TOPICS__MODE", "default"),
];

/// How long a peer may take until it listens, and the pause between two looks.
const START_LIMIT: Duration = Duration::from_secs(60);
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// A relay that takes part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Relay {
    Ours,
    /// nostr-rs-relay on the same server.
    Postgres,
    /// nostr-rs-relay on `SQLite`.
    Sqlite,
    Rnostr,
}

impl Relay {
    pub(super) const ALL: [Self; 4] = [Self::Ours, Self::Postgres, Self::Sqlite, Self::Rnostr];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Ours => OURS,
            Self::Postgres => targets::NOSTR_RS_RELAY,
            Self::Sqlite => "nostr-rs-relay-sqlite",
            Self::Rnostr => targets::RNOSTR,
        }
    }

    pub(super) const fn side(self) -> Side {
        match self {
            Self::Ours => Side::Ours,
            _ => Side::Peer,
        }
    }

    /// What it is called in the report, with what it promises of an event that it has accepted.
    pub(super) const fn title(self) -> &'static str {
        match self {
            Self::Ours => concat!("tasuki ", env!("CARGO_PKG_VERSION"), ", PostgreSQL, synced"),
            Self::Postgres => "nostr-rs-relay 0.8.12, PostgreSQL, synced",
            Self::Sqlite => "nostr-rs-relay 0.8.12, SQLite, not synced at each commit",
            Self::Rnostr => "rnostr 0.4.8, LMDB, answers up to 100 ms before it commits",
        }
    }

    /// Its executable, where `scripts/bench` installs it.
    fn program(self, scenario: &Scenario<'_>) -> std::io::Result<PathBuf> {
        let peers = &scenario.options.peers;
        // Their own folder is not ours: the path must hold from anywhere.
        std::path::absolute(match self {
            Self::Ours => scenario.options.tasuki.clone(),
            Self::Postgres | Self::Sqlite => peers.join("nostr-rs-relay/bench-nostr-rs-relay"),
            Self::Rnostr => peers.join("rnostr/bench-rnostr"),
        })
    }

    pub(super) fn is_here(self, scenario: &Scenario<'_>) -> bool {
        self.program(scenario).is_ok_and(|program| program.exists())
    }

    /// Starts it with nothing stored, and returns when it listens.
    pub(super) async fn start(self, scenario: &Scenario<'_>) -> anyhow::Result<Running> {
        if self == Self::Ours {
            let ground = scenario.options.ground();
            return Running::ours(ground, &scenario.server, &scenario.database).await;
        }
        let folder = std::path::absolute(scenario.options.results.join("relay"))?;
        fs::create_dir_all(&folder)?;
        let data = folder.join("data");
        if data.exists() {
            fs::remove_dir_all(&data)?;
        }
        fs::create_dir_all(&data)?;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, tasuki_stack::free_port()?));
        let url = databases::address(&scenario.options.database_url, DATABASE)?;
        if self == Self::Postgres {
            databases::recreate(&scenario.server, &scenario.database).await?;
        }
        let config = folder.join("config.toml");
        fs::write(&config, self.settings(address, &data, &url))?;
        let log = folder.join(format!("{}.log", self.name()));
        let mut command = Command::from(tasuki_stack::mortal(&self.program(scenario)?));
        match self {
            Self::Rnostr => command.arg(&config),
            _ => command.arg("--config").arg(&config).arg("--db").arg(&data),
        };
        let child = command
            .current_dir(&data)
            .env("RUST_LOG", "warn")
            .stdin(Stdio::null())
            .stdout(File::create(&log)?)
            .stderr(File::create(&log)?)
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("{} could not be started", self.name()))?;
        let mut child = child;
        listens(&mut child, address, &log).await?;
        let url = (self == Self::Postgres).then_some(url);
        Ok(Running {
            address,
            url,
            who: Who::Peer(child),
        })
    }

    fn settings(self, address: SocketAddr, data: &Path, url: &str) -> String {
        let (port, data) = (address.port(), data.display());
        match self {
            Self::Rnostr => format!(
                "[data]\npath = \"{data}\"\n\
                 [network]\nhost = \"127.0.0.1\"\nport = {port}\n\
                 [rate_limiter]\nenabled = false\n"
            ),
            Self::Postgres => format!(
                "[network]\naddress = \"127.0.0.1\"\nport = {port}\n\
                 [database]\nengine = \"postgres\"\nconnection = \"{url}\"\n"
            ),
            Self::Ours | Self::Sqlite => format!(
                "[network]\naddress = \"127.0.0.1\"\nport = {port}\n\
                 [database]\nengine = \"sqlite\"\ndata_directory = \"{data}\"\n"
            ),
        }
    }
}

/// A relay that listens. Dropping it kills it.
pub(super) struct Running {
    pub(super) address: SocketAddr,
    /// Its database, if it has one on the server.
    pub(super) url: Option<String>,
    who: Who,
}

enum Who {
    Ours(Box<Site>, Process),
    Peer(Child),
}

impl Running {
    /// Ours.
    pub(super) async fn ours(
        ground: Ground<'_>,
        server: &PgPool,
        database: &Schema,
    ) -> anyhow::Result<Self> {
        let made = Site::make(ground, server, database, PERMISSION);
        let site = Box::pin(made).await?.quiet();
        let site = SETTINGS
            .iter()
            .fold(site, |site, (name, value)| site.with(name, value));
        let process = site.serve(SERVICE, &[]).await?;
        Ok(Self {
            address: process.address(),
            url: Some(site.url.clone()),
            who: Who::Ours(Box::new(site), process),
        })
    }

    /// What a search is let in with; nothing if it can't search.
    pub(super) fn api_key(&self) -> &str {
        match &self.who {
            Who::Ours(_, process) => process.api_key(),
            Who::Peer(_) => "",
        }
    }

    /// Runs a command of our executable on its database.
    pub(super) async fn tell(&self, words: &[&str]) -> anyhow::Result<()> {
        match &self.who {
            Who::Ours(site, _) => site.tell(words).await.map(drop),
            Who::Peer(_) => bail!("only ours has commands"),
        }
    }

    pub(super) async fn stop(self) -> anyhow::Result<()> {
        match self.who {
            Who::Ours(_, process) => process.stop().await,
            Who::Peer(mut child) => Ok(child.kill().await?),
        }
    }
}

async fn listens(child: &mut Child, address: SocketAddr, log: &Path) -> anyhow::Result<()> {
    let deadline = Instant::now() + START_LIMIT;
    let log = log.display();
    while TcpStream::connect(address).await.is_err() {
        if let Some(status) = child.try_wait()? {
            bail!("it ended with {status}, {log} says more");
        }
        ensure!(
            Instant::now() < deadline,
            "nobody listens after {START_LIMIT:?}, {log} says more"
        );
        sleep(LOOK_AGAIN).await;
    }
    Ok(())
}
