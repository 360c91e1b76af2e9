//! `tasuki-bench relay-load`: what clients of a relay do, from a process with one thread.
//!
//! Events come from a deck (`super::deck`) and are the same bytes for every relay. What an event
//! takes counts from when it was due, so a relay that falls behind can't make its figures better. An event
//! that is refused ends the load, and with it the scenario; one that is lost is counted.

mod fan_out;
mod publish;
mod query;
mod search;
mod socket;

use std::{net::SocketAddr, path::PathBuf, process::Stdio, time::Duration};

use anyhow::{Context as _, ensure};
use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};
use tokio::{process::Command, time::timeout};

use super::deck;
use crate::figures;

/// How much longer than asked for a load may take before it is given up.
const PATIENCE: Duration = Duration::from_secs(300);

/// What clients do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum What {
    /// They publish, so many at a time on each connection.
    Publish,
    /// They ask for what is stored, one question at a time on each connection.
    Query,
    /// They listen, while one publishes at a rate.
    FanOut,
    /// One publishes at a rate; others search for what was just stored.
    Visible,
    /// They search.
    Search,
}

/// How much of it.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct Load {
    /// What is done.
    pub(crate) what: What,
    #[arg(long)]
    pub(crate) connections: u32,
    /// Events on their way on one connection.
    #[arg(long)]
    pub(crate) in_flight: usize,
    /// For how long at most.
    #[arg(long)]
    pub(crate) seconds: u32,
    /// Events per second.
    #[arg(long)]
    pub(crate) rate: u32,
    /// Which events: the first.
    #[arg(long)]
    pub(crate) from: usize,
    /// And how many.
    #[arg(long)]
    pub(crate) count: usize,
}

/// On whom.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Where the relay listens.
    #[arg(long)]
    address: SocketAddr,
    /// Signed events, one on a line.
    #[arg(long)]
    deck: PathBuf,
    /// What searches are let in with.
    #[arg(
        long,
        env = "TASUKI_API_KEY",
        hide_env_values = true,
        default_value = ""
    )]
    api_key: String,
    #[command(flatten)]
    load: Load,
}

/// How it went.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
pub(crate) struct Told {
    /// Events published, questions answered, or events told.
    pub(crate) count: u32,
    /// What should have come, and did not.
    pub(crate) lost: u32,
    /// Events in all answers.
    pub(crate) found: u32,
    pub(crate) per_second: f64,
    pub(crate) p50_ms: f64,
    pub(crate) p95_ms: f64,
    pub(crate) p99_ms: f64,
}

impl Load {
    /// Puts this load on a relay, from a process of its own.
    pub(crate) async fn on(
        self,
        address: SocketAddr,
        deck: &std::path::Path,
        api_key: &str,
    ) -> anyhow::Result<Told> {
        let done = Command::new(std::env::current_exe()?)
            .arg("relay-load")
            .args(self.words())
            .arg("--address")
            .arg(address.to_string())
            .arg("--deck")
            .arg(deck)
            .env("TASUKI_API_KEY", api_key)
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .output()
            .await
            .context("the load could not be started")?;
        let why = String::from_utf8_lossy(&done.stderr);
        ensure!(done.status.success(), "the load failed: {}", why.trim());
        let told = String::from_utf8_lossy(&done.stdout);
        serde_json::from_str(told.trim()).with_context(|| format!("`{told}` is no answer"))
    }

    fn words(self) -> Vec<String> {
        let name = self.what.to_possible_value();
        let name = name.map(|it| it.get_name().to_owned()).unwrap_or_default();
        let mut words = vec![name];
        for (option, number) in [
            ("--connections", self.connections.to_string()),
            ("--in-flight", self.in_flight.to_string()),
            ("--seconds", self.seconds.to_string()),
            ("--rate", self.rate.to_string()),
            ("--from", self.from.to_string()),
            ("--count", self.count.to_string()),
        ] {
            words.extend([option.to_owned(), number]);
        }
        words
    }
}

/// Does what `options` ask for, and says how it went.
pub(crate) async fn run(options: &Options) -> anyhow::Result<Told> {
    let load = options.load;
    let limit = Duration::from_secs(load.seconds.into()) + PATIENCE;
    let told = async {
        let events = deck::read(&options.deck, load.from, load.count)?;
        ensure!(
            events.len() == load.count,
            "the deck has {} events of {}",
            events.len(),
            load.count
        );
        match load.what {
            What::Publish => publish::run(options.address, load, &events).await,
            What::Query => query::run(options.address, load, &events).await,
            What::FanOut => fan_out::run(options.address, load, &events).await,
            What::Visible => search::visible(options, &events).await,
            What::Search => search::questions(options).await,
        }
    };
    timeout(limit, told)
        .await
        .context("the relay did not answer in time")?
}

impl Told {
    /// From how long each took, and how long all of it.
    fn of(mut times: Vec<Duration>, all: Duration) -> anyhow::Result<Self> {
        times.sort_unstable();
        let millis = |share| {
            let time = figures::percentile(&times, share);
            time.map_or(0.0, |time| time.as_secs_f64() * 1000.0)
        };
        Ok(Self {
            count: u32::try_from(times.len())?,
            lost: 0,
            found: 0,
            per_second: f64::from(u32::try_from(times.len())?) / all.as_secs_f64(),
            p50_ms: millis(50),
            p95_ms: millis(95),
            p99_ms: millis(99),
        })
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        options: Options,
    }

    #[test]
    fn a_load_is_understood_as_it_was_said() {
        for what in What::value_variants() {
            let load = Load {
                what: *what,
                connections: 8,
                in_flight: 64,
                seconds: 10,
                rate: 500,
                from: 20_000,
                count: 5_000,
            };
            let mut words = vec!["relay-load".to_owned()];
            words.extend(load.words());
            words.extend(["--address", "127.0.0.1:1", "--deck", "d"].map(str::to_owned));
            let heard = Line::try_parse_from(words).unwrap().options.load;
            assert_eq!(heard.words(), load.words());
        }
    }

    #[test]
    fn figures_are_of_all_times() {
        let times = (1..=100).map(Duration::from_millis).collect();
        let told = Told::of(times, Duration::from_secs(2)).unwrap();
        assert_eq!((told.count, told.per_second), (100, 50.0));
        assert_eq!((told.p50_ms, told.p95_ms, told.p99_ms), (51.0, 96.0, 100.0));
    }
}
