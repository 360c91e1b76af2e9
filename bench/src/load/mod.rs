//! `tasuki-bench load`: requests to the entitlement service, from a process with one thread.
//!
//! Without a rate, every connection sends its next request when the last one is answered. With
//! one, requests leave on a schedule, whatever became of those before them, and the time of each
//! runs from when it was due: a service that falls behind can't make its own figures better.
//!
//! A request that is not answered with 2xx ends the load, and with it the scenario.

pub(crate) mod http;

use std::{io::Write as _, net::SocketAddr, process::Stdio, time::Duration};

use anyhow::{Context as _, ensure};
use clap::{Args, ValueEnum};
use fastrand::Rng;
use futures_util::future::try_join_all;
use serde::{Deserialize, Serialize};
use tokio::{
    process::Command,
    time::{Instant, sleep_until, timeout},
};

use self::http::Connection;
use crate::{figures::percentile, site::Process};

/// How much longer than asked for a load may take before it is given up.
const PATIENCE: Duration = Duration::from_secs(30);
/// Keys and SKUs are numbers up to here, by chance: none comes twice.
const MANY_KEYS: u64 = 1_000_000_000_000_000_000;
const MANY_SKUS: u64 = 1_000_000_000_000;

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum What {
    /// One grant after the other, to neighbours of the users, of SKUs that they don't have.
    Grants,
    /// What one of the users has.
    Reads,
}

/// How much of it.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct Load {
    /// What is asked for.
    pub(crate) what: What,
    /// Connections, each with one request at a time.
    #[arg(long)]
    pub(crate) connections: u32,
    /// For how long.
    #[arg(long)]
    pub(crate) seconds: u32,
    /// For how long before that, without counting.
    #[arg(long)]
    pub(crate) warm_up: u32,
    /// Users to choose from.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) users: u32,
    /// Requests per second in all, on a schedule.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) rate: Option<u32>,
}

/// Whom it is asked.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Where the service listens.
    #[arg(long)]
    address: SocketAddr,
    /// What it lets us in with.
    #[arg(long, env = "TASUKI_API_KEY", hide_env_values = true)]
    api_key: String,
    #[command(flatten)]
    load: Load,
}

/// How a load went.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
pub(crate) struct Told {
    /// All requests, also those that were not counted.
    pub(crate) answered: u32,
    pub(crate) per_second: f64,
    pub(crate) p50_ms: f64,
    pub(crate) p99_ms: f64,
}

impl What {
    const fn name(self) -> &'static str {
        match self {
            Self::Grants => "grants",
            Self::Reads => "reads",
        }
    }
}

impl Load {
    /// Puts this load on a service, from a process of its own.
    pub(crate) async fn on(self, service: &Process) -> anyhow::Result<Told> {
        let told = self.asked(service.address(), service.api_key()).await;
        told.with_context(|| format!("{} says more", service.log().display()))
    }

    async fn asked(self, address: SocketAddr, api_key: &str) -> anyhow::Result<Told> {
        let done = Command::new(std::env::current_exe()?)
            .arg("load")
            .args(self.words())
            .arg("--address")
            .arg(address.to_string())
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
        let mut words = vec![self.what.name().to_owned()];
        for (option, number) in [
            ("--connections", Some(self.connections)),
            ("--seconds", Some(self.seconds)),
            ("--warm-up", Some(self.warm_up)),
            ("--users", Some(self.users)),
            ("--rate", self.rate),
        ] {
            if let Some(number) = number {
                words.extend([option.to_owned(), number.to_string()]);
            }
        }
        words
    }
}

/// Sends what `options` ask for, and says how it went.
pub(crate) async fn run(options: &Options) -> anyhow::Result<Told> {
    let Load {
        seconds, warm_up, ..
    } = options.load;
    let limit = Duration::from_secs(u64::from(warm_up) + u64::from(seconds)) + PATIENCE;
    let counts = timeout(limit, send(options)).await;
    let counts = counts.context("the service did not answer in time")??;
    let answered: u32 = counts.iter().map(|count| count.answered).sum();
    let mut times: Vec<u32> = counts.into_iter().flat_map(|count| count.micros).collect();
    times.sort_unstable();
    let in_time = u32::try_from(times.len())?;
    let millis = |share| percentile(&times, share).map(|micros| f64::from(micros) / 1000.0);
    let (p50, p99) = (millis(50), millis(99));
    let (p50_ms, p99_ms) = p50.zip(p99).context("no request was answered in time")?;
    Ok(Told {
        answered,
        per_second: f64::from(in_time) / f64::from(seconds),
        p50_ms,
        p99_ms,
    })
}

async fn send(options: &Options) -> anyhow::Result<Vec<Count>> {
    let numbers = 0..options.load.connections;
    let clients = try_join_all(numbers.map(|number| Client::open(options, number))).await?;
    let window = Window::from_now(options.load);
    try_join_all(clients.into_iter().map(|client| client.run(window))).await
}

/// When requests are sent, and which of them count.
#[derive(Clone, Copy, Debug)]
struct Window {
    began: Instant,
    /// What is answered from here on counts.
    from: Instant,
    /// Until here; what is answered later does not count, and nothing is sent any more.
    until: Instant,
}

impl Window {
    fn from_now(load: Load) -> Self {
        let began = Instant::now();
        let from = began + Duration::from_secs(load.warm_up.into());
        let until = from + Duration::from_secs(load.seconds.into());
        Self { began, from, until }
    }
}

/// What one connection saw.
#[derive(Debug, Default)]
struct Count {
    answered: u32,
    /// How long those took that count.
    micros: Vec<u32>,
}

impl Count {
    /// Adds a request that was due at `due`, and was answered just now.
    fn add(&mut self, due: Instant, window: Window) {
        let now = Instant::now();
        self.answered += 1;
        if (window.from..=window.until).contains(&now) {
            let micros = now.duration_since(due).as_micros();
            self.micros.push(u32::try_from(micros).unwrap_or(u32::MAX));
        }
    }
}

/// One connection, and what it asks for.
#[derive(Debug)]
struct Client {
    connection: Connection,
    number: u32,
    load: Load,
    /// What every request says.
    headers: String,
    random: Rng,
    request: Vec<u8>,
    body: Vec<u8>,
}

impl Client {
    async fn open(options: &Options, number: u32) -> anyhow::Result<Self> {
        let (address, key) = (options.address, &options.api_key);
        Ok(Self {
            connection: Connection::open(address).await?,
            number,
            load: options.load,
            headers: format!("Host: {address}\r\nAuthorization: Bearer {key}\r\n"),
            random: Rng::new(),
            request: Vec::new(),
            body: Vec::new(),
        })
    }

    async fn run(self, window: Window) -> anyhow::Result<Count> {
        match self.load.rate {
            Some(rate) => self.on_schedule(window, rate).await,
            None => self.in_turn(window).await,
        }
    }

    async fn in_turn(mut self, window: Window) -> anyhow::Result<Count> {
        let mut count = Count::default();
        loop {
            let now = Instant::now();
            if now >= window.until {
                return Ok(count);
            }
            self.ask().await?;
            count.add(now, window);
        }
    }

    /// Connections take turns: the requests of one are as far apart as there are connections.
    async fn on_schedule(mut self, window: Window, rate: u32) -> anyhow::Result<Count> {
        let mut count = Count::default();
        let step = usize::try_from(self.load.connections)?;
        for turn in (self.number..).step_by(step) {
            let after = Duration::from_secs_f64(f64::from(turn) / f64::from(rate));
            let due = window.began + after;
            if due >= window.until {
                break;
            }
            sleep_until(due).await;
            self.ask().await?;
            count.add(due, window);
        }
        Ok(count)
    }

    async fn ask(&mut self) -> anyhow::Result<()> {
        self.prepare()?;
        let answer = self.connection.ask(&self.request).await?;
        ensure!(
            (200..300).contains(&answer.status),
            "{} were answered with {}: {}",
            self.load.what.name(),
            answer.status,
            String::from_utf8_lossy(answer.body)
        );
        Ok(())
    }

    /// Writes the next request. The names are those of `bench/grant/*.sql`.
    fn prepare(&mut self) -> std::io::Result<()> {
        let Self {
            load,
            headers,
            random,
            request,
            body,
            ..
        } = self;
        let user = random.u32(1..=load.users);
        request.clear();
        match load.what {
            What::Reads => write!(
                request,
                "GET /v1/users/user-{user}/entitlements HTTP/1.1\r\n{headers}\r\n"
            ),
            What::Grants => {
                let (key, sku) = (random.u64(1..=MANY_KEYS), random.u64(1..=MANY_SKUS));
                body.clear();
                write!(
                    body,
                    r#"{{"user_id":"user-{user}x","stock_keeping_unit":"sku-{sku}","reason":"purchase","purchase_id":"order-{sku}"}}"#
                )?;
                let length = body.len();
                write!(
                    request,
                    "POST /v1/entitlements/grants HTTP/1.1\r\n{headers}\
                     Idempotency-Key: bench-{key}\r\nContent-Type: application/json\r\n\
                     Content-Length: {length}\r\n\r\n"
                )?;
                request.extend_from_slice(body);
                Ok(())
            }
        }
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
        let said = Load {
            what: What::Reads,
            connections: 64,
            seconds: 10,
            warm_up: 1,
            users: 7,
            rate: Some(200),
        };
        for load in [said, Load { rate: None, ..said }] {
            let mut words = vec!["load".to_owned()];
            words.extend(load.words());
            words.extend(["--address", "127.0.0.1:1", "--api-key", "k"].map(str::to_owned));
            let heard = Line::try_parse_from(words).unwrap().options.load;
            assert_eq!(heard.words(), load.words());
        }
    }

    #[test]
    fn only_what_is_answered_within_the_window_counts() {
        let now = Instant::now();
        let (past, future) = (
            now - Duration::from_secs(2),
            now + Duration::from_secs(3600),
        );
        let window = |from, until| Window {
            began: past,
            from,
            until,
        };
        let mut count = Count::default();
        count.add(past, window(future, future));
        count.add(past, window(past, past));
        assert_eq!((count.answered, count.micros.len()), (2, 0));
        count.add(past, window(past, future));
        assert_eq!((count.answered, count.micros.len()), (3, 1));
    }
}
