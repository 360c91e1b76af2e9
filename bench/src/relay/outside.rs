//! `nostr-bench`, a client of somebody else's from the crate registry, against our relay: it says what it
//! measures in its own words, and what it counts as a failure is one here.
//!
//! Its mode `echo` is left out: there a server sends back whatever it is sent, which no relay does.

use std::{path::PathBuf, process::Stdio, time::Duration};

use anyhow::{Context as _, ensure};
use clap::{Args, value_parser};
use serde::Deserialize;
use sqlx::PgPool;
use tasuki::Schema;
use tokio::{
    io::{AsyncBufReadExt as _, BufReader},
    process::Command,
    time::timeout,
};

use super::{DATABASE, relays::Running};
use crate::{site::Ground, store as databases};

/// What it does: it connects, publishes, asks.
const MODES: [&str; 3] = ["connect", "event", "req"];
/// How much longer than it was told a mode may take.
const MORE: Duration = Duration::from_secs(30);

/// What `nostr-bench` is to do, and where.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// The server, through a database that is not touched.
    #[arg(long, env = "TASUKI_TEST_DATABASE_URL", hide_env_values = true)]
    database_url: String,
    /// The broker; nothing here uses it, but the configuration wants it. Its streams are removed.
    #[arg(long, env = "TASUKI_TEST_NATS_URL", hide_env_values = true)]
    nats_url: String,
    /// The key-value store; nothing here uses it, but the configuration wants it.
    #[arg(long, env = "TASUKI_TEST_REDIS_URL", hide_env_values = true)]
    redis_url: String,
    /// The executable that is measured.
    #[arg(long, default_value = "target/release/tasuki")]
    tasuki: PathBuf,
    /// The executable that measures.
    #[arg(long, default_value = ".tasuki/bench/nostr-bench/bin/nostr-bench")]
    program: PathBuf,
    /// Where the log of the relay goes.
    #[arg(long, default_value = ".tasuki/bench/results")]
    results: PathBuf,
    /// What is measured, in words.
    #[arg(long, default_value = "unknown")]
    commit: String,
    /// Clients at a time.
    #[arg(long, default_value_t = 100)]
    clients: u32,
    /// How long each of its modes goes on: it says something every two seconds.
    #[arg(long, default_value_t = 10, value_parser = value_parser!(u32).range(4..=600))]
    seconds: u32,
}

/// A line of its, as far as it matters here.
#[derive(Debug, Default, Deserialize)]
struct Line {
    connect_stats: Connections,
    message_stats: Option<Messages>,
}

#[derive(Debug, Default, Deserialize)]
struct Connections {
    /// Those that were there.
    success_time: Times,
    error: u64,
    lost: u64,
}

#[derive(Debug, Default, Deserialize)]
struct Messages {
    complete: u64,
    error: u64,
}

#[derive(Debug, Default, Deserialize)]
struct Times {
    count: u64,
}

impl Line {
    /// What is wrong with it; nothing if all is well.
    fn fault(&self) -> Option<String> {
        let Connections {
            success_time: Times { count },
            error,
            lost,
        } = self.connect_stats;
        if count == 0 || error + lost > 0 {
            let words = format!("{count} connected, {error} could not, {lost} were cut off");
            return Some(words);
        }
        let messages = self.message_stats.as_ref()?;
        let Messages { complete, error } = messages;
        let is_fault = *complete == 0 || *error > 0;
        is_fault.then(|| format!("{complete} were answered, {error} of them were refused"))
    }
}

/// Runs all of it, and says whether nothing has failed.
pub(crate) async fn run(options: &Options) -> anyhow::Result<bool> {
    std::fs::create_dir_all(&options.results)?;
    let server = PgPool::connect(&options.database_url).await?;
    let database = Schema::new(DATABASE)?;
    let ground = Ground {
        database_url: &options.database_url,
        nats_url: &options.nats_url,
        redis_url: &options.redis_url,
        tasuki: &options.tasuki,
        logs: &options.results,
    };
    let running = Box::pin(Running::ours(ground, &server, &database)).await?;
    println!("# nostr-bench against tasuki {}", options.commit);
    let url = format!("ws://{}/", running.address);
    let mut faults = Vec::new();
    for mode in MODES {
        let last = turn(options, mode, &url).await?;
        faults.extend(last.fault().map(|fault| format!("{mode}: {fault}")));
    }
    running.stop().await?;
    databases::drop_database(&server, &database).await?;
    for fault in &faults {
        eprintln!("#### {fault} ####");
    }
    Ok(faults.is_empty())
}

/// One of its modes; its last line.
async fn turn(options: &Options, mode: &str, url: &str) -> anyhow::Result<Line> {
    let (clients, seconds) = (options.clients.to_string(), options.seconds.to_string());
    let program = options.program.display();
    println!("\n## nostr-bench {mode} --count {clients} --rate {clients} --keepalive {seconds}");
    let mut child = Command::new(&options.program)
        .args([mode, url, "--json"])
        .args(["--count", &clients, "--rate", &clients])
        .args(["--keepalive", &seconds])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .with_context(|| format!("{program} could not be started"))?;
    let out = child.stdout.take().context("it has no output")?;
    let read = async {
        let (mut lines, mut last) = (BufReader::new(out).lines(), None);
        while let Some(line) = lines.next_line().await? {
            // The first says what it was told.
            if line.starts_with('{') {
                println!("{line}");
                last = Some(serde_json::from_str::<Line>(&line)?);
            }
        }
        let status = child.wait().await?;
        ensure!(status.success(), "{program} {mode} ended with {status}");
        last.with_context(|| format!("{program} {mode} said nothing"))
    };
    let limit = Duration::from_secs(options.seconds.into()) + MORE;
    timeout(limit, read)
        .await
        .with_context(|| format!("{program} {mode} does not end"))?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_it_counts_as_a_failure_is_one() {
        let fault = |connections: &str, messages: &str| {
            let line = format!(
                r#"{{"elapsed":1,"connect_stats":{{"total":2,{connections}}},"message_stats":{messages}}}"#
            );
            serde_json::from_str::<Line>(&line).unwrap().fault()
        };
        let fine = r#""error":0,"lost":0,"success_time":{"count":2,"avg":1}"#;
        assert_eq!(fault(fine, "null"), None);
        assert_eq!(fault(fine, r#"{"complete":9,"error":0}"#), None);
        for messages in [r#"{"complete":9,"error":1}"#, r#"{"complete":0,"error":0}"#] {
            assert!(fault(fine, messages).is_some(), "{messages}");
        }
        for connections in [
            r#""error":1,"lost":0,"success_time":{"count":2}"#,
            r#""error":0,"lost":1,"success_time":{"count":2}"#,
            r#""error":0,"lost":0,"success_time":{"count":0}"#,
        ] {
            assert!(fault(connections, "null").is_some(), "{connections}");
        }
    }
}
