//! Private PostgreSQL, NATS JetStream and Redis: start them, stop them, break them.
//!
//! A [`Stack`] is what `make run`, the tests and the fault suite stand on. It finds the
//! servers on the machine, starts each on a loopback port with its data below one
//! folder, and returns when all of them answer over their own protocols. One server alone
//! is started by [`Postgres::start`], [`Nats::start`] or [`Redis::start`],
//! and a pooler in front of a database by [`PgBouncer::start`].
//!
//! What it promises:
//! - no server outlives its owner, not even one that is killed with SIGKILL;
//! - the next start on the same folder finds its data and its ports again;
//! - two stacks never share a folder, and any number of them run side by side;
//! - what goes wrong is told in one sentence that says what to do.
//!
//! To break things there are [`Server::kill`], [`Server::pause`], [`Server::restart`], a
//! [`Proxy`] in front of each server, a [`NatsCluster`] of three nodes, and a
//! [`Standby`] that can take the place of its primary.
//!
//! Not here: databases, streams and keys of single tests (`tasuki-testkit`), and servers
//! that somebody else runs.

mod error;
mod find;
mod home;
mod log;
mod nats;
mod options;
mod pgbouncer;
mod port;
mod postgres;
mod process;
mod procfs;
mod proxy;
mod quote;
mod random;
mod redis;
mod server;
mod user;
mod warden;

use std::{path::Path, process::Command, sync::Arc};

use self::home::Home;
pub use self::{
    error::Error,
    nats::{Nats, NatsCluster},
    options::{Options, Ports},
    pgbouncer::PgBouncer,
    port::free_port,
    postgres::{Postgres, Replication, Standby},
    proxy::Proxy,
    redis::Redis,
    server::Server,
};

/// A private PostgreSQL, NATS and Redis. Dropping it kills them.
#[derive(Debug)]
pub struct Stack {
    /// The database.
    pub postgres: Postgres,
    /// The broker.
    pub nats: Nats,
    /// The key-value store.
    pub redis: Redis,
}

impl Stack {
    /// Starts all three, and returns when all of them are ready.
    pub async fn start(options: Options) -> Result<Self, Error> {
        let home = Arc::new(Home::claim(&options).await?);
        let (postgres, nats, redis) = tokio::try_join!(
            Box::pin(Postgres::start_in(&home)),
            Box::pin(Nats::start_in(&home)),
            Box::pin(Redis::start_in(&home)),
        )?;
        Ok(Self {
            postgres,
            nats,
            redis,
        })
    }

    /// Stops all three in an orderly way.
    pub async fn stop(self) -> Result<(), Error> {
        let stopped = tokio::join!(self.postgres.stop(), self.nats.stop(), self.redis.stop());
        stopped.0.and(stopped.1).and(stopped.2)
    }

    /// Stops all three and removes the folder.
    pub async fn remove(self) -> Result<(), Error> {
        self.postgres.home().discard();
        self.stop().await
    }
}

/// A command that runs `program` in our process group and dies with the thread that starts
/// it, even when we are killed. Start it from a thread that lives as long as the process.
pub fn mortal(program: &Path) -> Command {
    process::guarded(program, None)
}
