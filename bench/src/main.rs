//! `tasuki-bench <scenario>`: figures of the library beside its peers' and plain SQL's, from one
//! run on the same servers.
//!
//! `scripts/bench` installs the peers, starts private servers that sync to disk, and runs this.
//! Exit codes: 0 every target that could be measured is met; 1 one is missed; 2 it failed.

mod age;
mod broker;
mod contest;
mod figures;
mod grant;
mod load;
mod ours;
mod pgbench;
mod queue;
mod relay;
mod report;
mod saga;
mod site;
mod store;
mod targets;

use std::process::ExitCode;

use clap::Parser;
use tokio::runtime::Builder;

/// Load scenarios: the library, its peers and plain SQL in one run.
#[derive(Debug, Parser)]
enum Command {
    /// Enqueue, drain and latency of jobs.
    Queue(Box<queue::Options>),
    /// Grants through HTTP until the notification is sent, and reads.
    Grant(Box<grant::Options>),
    /// Sagas per second, one alone, and what `kill -9` costs.
    Saga(Box<saga::Options>),
    /// Events through the relay of the community node and others: in, out, found.
    Relay(Box<relay::Options>),
    /// The relay of the community node as `nostr-bench` sees it.
    NostrBench(Box<relay::outside::Options>),
    /// Clients of a relay; the scenario calls this.
    RelayLoad(Box<relay::load::Options>),
    /// Requests to a service; the scenarios call this.
    Load(Box<load::Options>),
    /// The library as a contestant; the scenarios call this.
    Ours {
        /// The database of the run.
        #[arg(long, env = "DATABASE_URL", hide_env_values = true)]
        database_url: String,
        /// The broker of the run, where one takes part.
        #[arg(long, env = "TASUKI_TEST_NATS_URL", hide_env_values = true)]
        nats_url: Option<String>,
        #[command(subcommand)]
        verb: contest::Verb,
    },
}

fn main() -> ExitCode {
    match start(Command::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            eprintln!("tasuki-bench: {error:#}");
            ExitCode::from(2)
        }
    }
}

fn start(command: Command) -> anyhow::Result<bool> {
    // Whoever makes the load has one thread, and leaves the rest to what is measured.
    let makes_load = matches!(
        command,
        Command::Load(_)
            | Command::RelayLoad(_)
            | Command::Ours {
                verb: contest::Verb::Enqueue { .. },
                ..
            }
    );
    let mut runtime = if makes_load {
        Builder::new_current_thread()
    } else {
        Builder::new_multi_thread()
    };
    runtime.enable_all().build()?.block_on(run(command))
}

/// Whether every target that could be measured was met.
async fn run(command: Command) -> anyhow::Result<bool> {
    match command {
        Command::Queue(options) => queue::run(&options).await,
        Command::Grant(options) => Box::pin(grant::run(&options)).await,
        Command::Saga(options) => Box::pin(saga::run(&options)).await,
        Command::Relay(options) => Box::pin(relay::run(&options)).await,
        Command::NostrBench(options) => Box::pin(relay::outside::run(&options)).await,
        Command::RelayLoad(options) => {
            let told = relay::load::run(&options).await?;
            println!("{}", serde_json::to_string(&told)?);
            Ok(true)
        }
        Command::Load(options) => {
            let told = load::run(&options).await?;
            println!("{}", serde_json::to_string(&told)?);
            Ok(true)
        }
        Command::Ours {
            database_url,
            nats_url,
            verb,
        } => {
            if let Some(line) = ours::run(&database_url, nats_url.as_deref(), verb).await? {
                println!("{line}");
            }
            Ok(true)
        }
    }
}
