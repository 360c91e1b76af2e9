//! Three JetStream nodes that keep every message of an R3 stream three times.
//!
//! Any one of them may be killed or paused without losing what was acknowledged.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use async_nats::jetstream::{self, stream};
use tokio::time::{sleep, timeout};

use super::{
    Nats, Scope,
    config::{Node, Routes},
    connect, plan,
};
use crate::{
    Error, Options,
    find::{self, Found},
    home::Home,
    port::free_port,
    server::Server,
};

const NODES: usize = 3;

/// How long the nodes may take to elect a leader and make a stream.
const READY_DEADLINE: Duration = Duration::from_secs(90);
/// How long one request to the cluster may take.
const ASK_DEADLINE: Duration = Duration::from_secs(5);
const ASK_EVERY: Duration = Duration::from_millis(100);
/// How many times the ports may be lost to other programs.
const PORT_TRIES: usize = 5;

/// A stream that is made and removed to see whether the cluster is ready.
const TRIAL: &str = "tasuki-stack-trial";

/// A running cluster of three nodes; dropping it kills them.
#[derive(Debug)]
pub struct NatsCluster {
    nodes: Vec<Nats>,
}

impl NatsCluster {
    /// Starts three nodes, and waits until a stream with three replicas can be made.
    pub async fn start(options: &Options) -> Result<Self, Error> {
        let home = Arc::new(Home::claim(options).await?);
        let found = find::find(&find::NATS, options).await?;
        let mut tries = 0;
        let cluster = loop {
            tries += 1;
            match Self::start_nodes(&home, &found).await {
                Err(Error::PortTaken { .. }) if tries < PORT_TRIES => {}
                other => break other?,
            }
        };
        cluster.wait_until_ready().await?;
        Ok(cluster)
    }

    /// The nodes, to connect to and to break.
    pub fn nodes(&self) -> &[Nats] {
        &self.nodes
    }

    /// The addresses of all nodes; a client should know them all.
    pub fn urls(&self) -> Vec<String> {
        self.nodes.iter().map(Nats::url).collect()
    }

    /// The node that leads a stream, asked of whichever node answers; `None` while the
    /// others are electing one.
    pub async fn leader_of(&self, stream: &str) -> Result<Option<&Nats>, Error> {
        let mut why = "no node runs".to_owned();
        for node in self.nodes.iter().filter(|node| node.is_running()) {
            match timeout(ASK_DEADLINE, leader(node, stream)).await {
                Ok(Ok(name)) => {
                    return Ok(self
                        .nodes
                        .iter()
                        .find(|node| Some(node.node()) == name.as_deref()));
                }
                Ok(Err(answer)) => why = answer,
                Err(_elapsed) => why = "no answer".to_owned(),
            }
        }
        Err(Error::Refused {
            server: "the NATS cluster",
            what: "tell the leader of a stream",
            why,
        })
    }

    /// Stops all nodes in an orderly way.
    pub async fn stop(self) -> Result<(), Error> {
        for node in &self.nodes {
            node.stop().await?;
        }
        Ok(())
    }

    async fn start_nodes(home: &Arc<Home>, found: &Found) -> Result<Self, Error> {
        let mut routes = Vec::new();
        while routes.len() < NODES {
            let port = free_port()?;
            if !routes.contains(&port) {
                routes.push(port);
            }
        }
        let mut nodes = Vec::new();
        for (index, route) in routes.iter().enumerate() {
            let node = Node {
                name: format!("{}-{}", home.name(), index + 1),
                file: format!("nats-{}", index + 1),
                port: other_port(&routes)?,
                cluster: Some(Routes {
                    port: *route,
                    others: routes
                        .iter()
                        .copied()
                        .filter(|port| port != route)
                        .collect(),
                }),
            };
            let server = Server::new(home, plan(home, found, &node, Scope::Connection)?);
            server.start().await?;
            nodes.push(Nats {
                server,
                node: node.name,
            });
        }
        Ok(Self { nodes })
    }

    async fn wait_until_ready(&self) -> Result<(), Error> {
        let deadline = Instant::now() + READY_DEADLINE;
        let Some(node) = self.nodes.first() else {
            return Ok(());
        };
        loop {
            let why = match timeout(ASK_DEADLINE, try_stream(node)).await {
                Ok(Ok(())) => return Ok(()),
                Ok(Err(answer)) => answer,
                Err(_elapsed) => "no answer".to_owned(),
            };
            if Instant::now() >= deadline {
                return Err(Error::NotReady {
                    server: "the NATS cluster",
                    waited: READY_DEADLINE,
                    why,
                    log: node.log().to_owned(),
                });
            }
            sleep(ASK_EVERY).await;
        }
    }
}

fn other_port(taken: &[u16]) -> Result<u16, Error> {
    loop {
        let port = free_port()?;
        if !taken.contains(&port) {
            return Ok(port);
        }
    }
}

async fn try_stream(node: &Nats) -> Result<(), String> {
    let context = jetstream::new(connect(&node.url()).await?);
    let config = stream::Config {
        name: TRIAL.to_owned(),
        num_replicas: NODES,
        ..stream::Config::default()
    };
    let made = context.get_or_create_stream(config).await;
    made.map_err(|error| error.to_string())?;
    let removed = context.delete_stream(TRIAL).await;
    removed.map(|_status| ()).map_err(|error| error.to_string())
}

async fn leader(node: &Nats, stream: &str) -> Result<Option<String>, String> {
    let context = jetstream::new(connect(&node.url()).await?);
    let stream = context.get_stream(stream).await;
    let info = stream.map_err(|error| error.to_string())?;
    let cluster = info.cached_info().cluster.as_ref();
    Ok(cluster.and_then(|cluster| cluster.leader.clone()))
}
