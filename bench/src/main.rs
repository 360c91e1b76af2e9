//! `tasuki-bench <scenario>`: figures of the library beside its peers' and plain SQL's, from one
//! run on the same servers.
//!
//! `scripts/bench` installs the peers, starts private servers that sync to disk, and runs this.
//! Exit codes: 0 every target that could be measured is met; 1 one is missed; 2 it failed.

mod broker;
mod contest;
mod figures;
mod ours;
mod pgbench;
mod queue;
mod report;
mod store;

use std::process::ExitCode;

use clap::Parser;

/// Load scenarios: the library, its peers and plain SQL in one run.
#[derive(Debug, Parser)]
enum Command {
    /// Enqueue, drain and latency of jobs.
    Queue(Box<queue::Options>),
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

#[tokio::main]
async fn main() -> ExitCode {
    match run(Command::parse()).await {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            eprintln!("tasuki-bench: {error:#}");
            ExitCode::from(2)
        }
    }
}

/// Whether every target that could be measured was met.
async fn run(command: Command) -> anyhow::Result<bool> {
    match command {
        Command::Queue(options) => queue::run(&options).await,
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
