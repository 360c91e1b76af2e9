//! A private NATS server with JetStream.

mod cluster;
mod config;

use std::{io, ops::Deref, path::PathBuf, sync::Arc, time::Duration};

use async_nats::{Client, ConnectOptions, ServerAddr, jetstream};
use rustix::process::Signal;

pub use self::cluster::NatsCluster;
use self::config::Node;
use crate::{
    Error, Options, Proxy,
    find::{self, Found},
    home::Home,
    port::Owner,
    process::Launch,
    server::{self, Plan, Server},
};

/// How long one connection attempt may take.
const CONNECT: Duration = Duration::from_secs(3);

/// A running NATS server; derefs to [`Server`] for everything that servers have in common.
#[derive(Debug)]
pub struct Nats {
    server: Server,
    node: String,
}

/// Asks whether JetStream is ready.
#[derive(Debug)]
pub(crate) struct Probe {
    credentials: String,
    node: String,
    scope: Scope,
}

/// How much a probe may ask of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scope {
    /// JetStream must answer.
    JetStream,
    /// The connection is enough: one node of a cluster has no JetStream until the
    /// others are there, and these are started one after the other.
    Connection,
}

impl Nats {
    /// Starts NATS alone, in a folder of its own.
    pub async fn start(options: &Options) -> Result<Self, Error> {
        let home = Arc::new(Home::claim(options).await?);
        Self::start_in(&home).await
    }

    pub(crate) async fn start_in(home: &Arc<Home>) -> Result<Self, Error> {
        let found = find::find(&find::NATS, &home.options).await?;
        let server = Server::launch(home, Owner::Nats, |port| {
            let node = Node::single(home.name(), port);
            plan(home, &found, &node, Scope::JetStream)
        })
        .await?;
        let node = home.name().to_owned();
        Ok(Self { server, node })
    }

    /// The address, with user and password if it asks for them. Mind that `async-nats`
    /// does not read them from the address; [`Nats::connect_options`] has them.
    pub fn url(&self) -> String {
        url(&credentials(self.home()), self.port())
    }

    /// The same address through a proxy.
    pub fn url_via(&self, proxy: &Proxy) -> String {
        url(&credentials(self.home()), proxy.addr().port())
    }

    /// The address for the system account, which may ask `$SYS.REQ.SERVER.PING.VARZ` and the like.
    pub fn system_url(&self) -> String {
        let credentials = format!("system:{}@", self.home().secrets.nats_system);
        url(&credentials, self.port())
    }

    /// Options for the client, with user and password if the server asks for them.
    pub fn connect_options(&self) -> ConnectOptions {
        if self.home().is_durable() {
            let password = self.home().secrets.nats.clone();
            ConnectOptions::with_user_and_password("tasuki".to_owned(), password)
        } else {
            ConnectOptions::new()
        }
    }

    /// The folder of its streams, for those who roll it back to an older copy while it is down.
    pub fn store(&self) -> PathBuf {
        self.home().path("nats")
    }

    /// The server's name, as stream and cluster information gives it.
    pub fn node(&self) -> &str {
        &self.node
    }
}

impl Deref for Nats {
    type Target = Server;

    fn deref(&self) -> &Server {
        &self.server
    }
}

impl Probe {
    pub(crate) async fn ask(&self, port: u16) -> Result<(), String> {
        let client = connect(&url(&self.credentials, port)).await?;
        if client.server_info().server_name != self.node {
            return Err("another NATS server answers on its port".to_owned());
        }
        if self.scope == Scope::Connection {
            return Ok(());
        }
        match jetstream::new(client).query_account().await {
            Ok(_account) => Ok(()),
            Err(error) => Err(error.to_string()),
        }
    }
}

/// A connection for a few questions.
async fn connect(url: &str) -> Result<Client, String> {
    let address: ServerAddr = url.parse().map_err(|error: io::Error| error.to_string())?;
    let options = match (address.username(), address.password()) {
        (Some(user), Some(password)) => {
            ConnectOptions::with_user_and_password(user.to_owned(), password.to_owned())
        }
        _ => ConnectOptions::new(),
    };
    options
        .connection_timeout(CONNECT)
        .max_reconnects(1)
        .ignore_discovered_servers()
        .connect(address)
        .await
        .map_err(|error| error.to_string())
}

fn plan(home: &Home, found: &Found, node: &Node, scope: Scope) -> Result<Plan, Error> {
    let data = home.make(&node.file)?;
    let conf = format!("{}.conf", node.file);
    let conf = home.write_private(&conf, &config::text(home, node, &data))?;
    Ok(Plan {
        name: "NATS",
        version: found.version.clone(),
        port: node.port,
        log: home.path(format!("{}.log", node.file)),
        launch: Launch {
            program: found.path.clone(),
            arguments: vec!["-c".into(), conf.into()],
            environment: Vec::new(),
            dir: data,
            user: None,
        },
        probe: server::Probe::Nats(Probe {
            credentials: credentials(home),
            node: node.name.clone(),
            scope,
        }),
        stop: Signal::TERM,
        farewell: None,
    })
}

fn credentials(home: &Home) -> String {
    if home.is_durable() {
        format!("tasuki:{}@", home.secrets.nats)
    } else {
        String::new()
    }
}

fn url(credentials: &str, port: u16) -> String {
    format!("nats://{credentials}127.0.0.1:{port}")
}
