//! A process to be killed: it moves units between two databases by two-phase commit, or ends what
//! others left behind.
//!
//! One unit leaves east, arrives in west, and is counted in the log's own database. It dies or
//! stops at the crash point that it was given.

mod store;

use std::time::Duration;

use anyhow::Result;
use clap::Parser;
use sqlx::PgPool;
use tasuki::twopc::{Coordinator, Database};
use tasuki::worker::Supervisor;
use tasuki::{Clock, Schema};
use tokio::signal::unix::{SignalKind, signal};

/// How long a participant may take to answer.
const TIMEOUT: Duration = Duration::from_secs(2);

/// One process.
#[derive(Parser)]
struct Node {
    /// The database of the log, with the library's tables in schema `app`.
    #[arg(long)]
    log: String,
    /// Where units leave.
    #[arg(long)]
    east: String,
    /// Where they arrive.
    #[arg(long)]
    west: String,
    /// Moves this many units, one after the other, and ends. Otherwise it recovers until it is told
    /// to stop.
    #[arg(long)]
    transfers: Option<u32>,
    /// Counts them in the log's own database, too.
    #[arg(long)]
    here: bool,
    /// Where to die.
    #[arg(long)]
    crash_at: Option<String>,
    /// Where to stop, until somebody lets it continue.
    #[arg(long)]
    pause_at: Option<String>,
    /// At which time of coming there.
    #[arg(long, default_value_t = 1)]
    nth: u32,
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> Result<()> {
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .init();
    let node = Node::parse();
    if let Some(point) = &node.crash_at {
        tasuki::testing::crash_at(point, node.nth);
    }
    if let Some(point) = &node.pause_at {
        tasuki::testing::pause_at(point, node.nth);
    }
    let log = PgPool::connect(&node.log).await?;
    let east = Database::new("east", PgPool::connect(&node.east).await?)?;
    let west = Database::new("west", PgPool::connect(&node.west).await?)?;
    let coordinator = Coordinator::new(&Schema::new("app")?, log)
        .timeout(TIMEOUT)
        .poll(TIMEOUT / 20)
        .sweep_every(TIMEOUT / 10)
        .database(&east)?
        .database(&west)?;
    coordinator.check().await?;
    println!("ready");
    if let Some(transfers) = node.transfers {
        for _ in 0..transfers {
            let mut tx = coordinator.begin("transfer").await?;
            store::add(tx.on(&east).await?, -1).await?;
            store::add(tx.on(&west).await?, 1).await?;
            if node.here {
                store::add(tx.here().await?, 1).await?;
            }
            let ended = tx.commit().await;
            eprintln!("{ended:?}");
        }
        return Ok(());
    }
    let supervisor = Supervisor::new(Clock::system());
    supervisor.start(coordinator.recovery());
    supervisor.start(coordinator.sweep());
    signal(SignalKind::terminate())?.recv().await;
    let stopped = supervisor.stop(Duration::from_secs(10)).await;
    eprintln!("{stopped:?}");
    Ok(())
}
