//! The scenario `relay`: the relay of the community node beside other relays, with the same signed
//! events, on the same machine.
//!
//! In every round each of them has a turn, beginning with nothing stored: it takes events in, many
//! at a time, then answers questions about them, takes events in one at a time, and tells listeners
//! what is new. What only ours has, search, is held against limits and against what its index costs
//! in plain SQL.

mod deck;
mod index;
pub(crate) mod load;
pub(crate) mod outside;
mod relays;
mod store;
mod words;

use std::{collections::BTreeMap, fs, ops::Range, path::PathBuf, thread};

use clap::{Args, ValueEnum};
use sqlx::PgPool;
use tasuki::Schema;

use self::{
    load::{Load, Told, What},
    relays::{Relay, Running},
};
use crate::{
    figures::{self, Metric, Runs, Side},
    report::Report,
    site::Ground,
    store as databases, targets,
};

/// The database of a relay, made anew for every turn.
const DATABASE: &str = "tasuki_bench";
/// Connections that publish or ask.
const CONNECTIONS: u32 = 8;
const IN_FLIGHT: usize = 64;
/// How long all events may take, in seconds: a slow peer's figure is a figure, too.
const INGEST_LIMIT: u32 = 1_800;
/// Who is told what is new.
const LISTENERS: u32 = 100;
/// At which rates, and how soon.
const SLOW: u32 = 50;
const FAST: u32 = 500;
const SLOW_P99_MS: f64 = 6.0;
const FAST_P99_MS: f64 = 20.0;
/// Who searches for what was just stored, and how soon it is found.
const SEARCHERS: u32 = 8;
const VISIBLE_P99_MS: f64 = 200.0;
/// More than anybody accepts one by one in a second.
const ALONE_PER_SECOND: u32 = 6_000;

/// How the scenario runs. The defaults are those of the published figures.
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
    /// Where the peers are installed.
    #[arg(long, default_value = ".tasuki/bench/peers")]
    peers: PathBuf,
    /// Where results and the logs of the relays go.
    #[arg(long, default_value = ".tasuki/bench/results")]
    results: PathBuf,
    /// What is measured, in words for the report.
    #[arg(long, default_value = "unknown")]
    commit: String,
    /// Only these measures.
    #[arg(long, value_delimiter = ',')]
    only: Vec<Measure>,
    /// Only these relays.
    #[arg(long, value_delimiter = ',')]
    who: Vec<String>,
    /// Rounds; figures are medians over them.
    #[arg(long, default_value_t = 5)]
    runs: u32,
    /// Events that are taken in many at a time, and then asked for.
    #[arg(long, default_value_t = 20_000)]
    events: u32,
    /// How long each of the others is measured.
    #[arg(long, default_value_t = 10)]
    seconds: u32,
    /// Events in the index that is searched and made anew.
    #[arg(long, default_value_t = 1_000_000)]
    documents: u32,
}

/// What can be measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Measure {
    /// Events taken in, 64 on their way on each connection.
    Ingest,
    /// Questions about what is stored.
    Query,
    /// Events taken in, one on its way on each connection.
    Alone,
    /// What a hundred listeners are told.
    FanOut,
    /// From stored to found. Only of ours.
    Visible,
    /// Search, and the index made anew. Only of ours.
    Index,
}

impl Measure {
    const ROUNDS: [Self; 5] = [
        Self::Ingest,
        Self::Query,
        Self::Alone,
        Self::FanOut,
        Self::Visible,
    ];
}

/// A scenario under way.
struct Scenario<'a> {
    options: &'a Options,
    server: PgPool,
    database: Schema,
    deck: PathBuf,
    runs: Runs,
}

/// Runs the scenario, prints the tables and says whether no target was missed.
pub(crate) async fn run(options: &Options) -> anyhow::Result<bool> {
    fs::create_dir_all(&options.results)?;
    let mut scenario = Scenario {
        options,
        server: PgPool::connect(&options.database_url).await?,
        database: Schema::new(DATABASE)?,
        deck: std::path::absolute(options.results.join("relay.deck"))?,
        runs: Runs::default(),
    };
    let (here, missing) = scenario.relays();
    for relay in &missing {
        let name = relay.name();
        eprintln!("\n#### {name} is not installed and does NOT take part ####\n");
    }
    let count = usize::try_from(options.places().end)?;
    eprintln!("signing {count} events");
    deck::make(
        &scenario.deck,
        count,
        databases::seconds(&scenario.server).await?,
    )?;
    for round in 1..=options.runs {
        for relay in &here {
            scenario.turn(round, *relay).await?;
        }
    }
    if here.contains(&Relay::Ours) && options.wants(Measure::Index) {
        Box::pin(index::run(&mut scenario)).await?;
    }
    databases::drop_database(&scenario.server, &scenario.database).await?;
    deck::forget(&scenario.deck)?;
    scenario.report(&here, &missing).await
}

impl Options {
    fn wants(&self, measure: Measure) -> bool {
        self.only.is_empty() || self.only.contains(&measure)
    }

    fn ground(&self) -> Ground<'_> {
        Ground {
            database_url: &self.database_url,
            nats_url: &self.nats_url,
            redis_url: &self.redis_url,
            tasuki: &self.tasuki,
            logs: &self.results,
        }
    }

    /// Where in the deck the events of each part are: no event is published twice.
    fn part(&self, what: What, rate: u32) -> Range<u32> {
        let mut from = self.events;
        for (part, count) in [
            ((What::Publish, 1), ALONE_PER_SECOND * self.seconds),
            ((What::FanOut, SLOW), SLOW * self.seconds),
            ((What::FanOut, FAST), FAST * self.seconds),
            ((What::Visible, FAST), FAST * self.seconds),
        ] {
            if part == (what, rate) {
                return from..from + count;
            }
            from += count;
        }
        // All of it, or what is stored.
        0..if what == What::Query {
            self.events
        } else {
            from
        }
    }

    /// The whole deck.
    fn places(&self) -> Range<u32> {
        self.part(What::Search, 0)
    }

    fn load(&self, what: What, places: Range<u32>) -> Load {
        let place = |number: u32| usize::try_from(number).unwrap_or(usize::MAX);
        Load {
            what,
            connections: CONNECTIONS,
            in_flight: 1,
            seconds: self.seconds,
            rate: FAST,
            from: place(places.start),
            count: places.len(),
        }
    }
}

impl Scenario<'_> {
    /// Who takes part, and who would have.
    fn relays(&self) -> (Vec<Relay>, Vec<Relay>) {
        let who = &self.options.who;
        let mut all = Relay::ALL.to_vec();
        all.retain(|relay| who.is_empty() || who.iter().any(|name| name == relay.name()));
        all.into_iter().partition(|relay| relay.is_here(self))
    }

    /// All that one relay does in a round.
    async fn turn(&mut self, round: u32, relay: Relay) -> anyhow::Result<()> {
        let options = self.options;
        let mut wanted = Measure::ROUNDS.to_vec();
        wanted.retain(|it| options.wants(*it));
        if wanted.is_empty() || (wanted == [Measure::Visible] && relay != Relay::Ours) {
            return Ok(());
        }
        let running = Box::pin(relay.start(self)).await?;
        settle(&running).await?;
        // Whatever is measured: that much is stored.
        say(round, Measure::Ingest, relay);
        let ingest = Load {
            in_flight: IN_FLIGHT,
            seconds: INGEST_LIMIT,
            ..options.load(What::Publish, 0..options.events)
        };
        let told = self.put(&running, ingest).await?;
        if options.wants(Measure::Ingest) {
            self.add(Metric::RelayIngestPerSecond, relay, told.per_second);
        }
        wanted.retain(|measure| *measure != Measure::Ingest);
        for measure in wanted {
            if measure == Measure::Visible && relay != Relay::Ours {
                continue;
            }
            say(round, measure, relay);
            settle(&running).await?;
            self.measure(measure, relay, &running).await?;
        }
        running.stop().await
    }

    async fn measure(
        &mut self,
        measure: Measure,
        relay: Relay,
        running: &Running,
    ) -> anyhow::Result<()> {
        let options = self.options;
        match measure {
            Measure::Ingest | Measure::Index => {}
            Measure::Query => {
                let load = options.load(What::Query, 0..options.events);
                let told = self.put(running, load).await?;
                self.add(Metric::RelayQueryPerSecond, relay, told.per_second);
                let each = f64::from(told.found) / f64::from(told.count);
                self.add(Metric::RelayQueryFound, relay, each);
            }
            Measure::Alone => {
                let load = options.load(What::Publish, options.part(What::Publish, 1));
                let told = self.put(running, load).await?;
                self.add(Metric::RelayAlonePerSecond, relay, told.per_second);
            }
            Measure::FanOut => {
                for (rate, metric, limit) in [
                    (SLOW, Metric::RelaySlowP99Ms, SLOW_P99_MS),
                    (FAST, Metric::RelayFastP99Ms, FAST_P99_MS),
                ] {
                    self.fan_out(relay, running, rate, metric).await?;
                    self.limit(metric, relay, limit);
                }
                self.limit(Metric::RelayLost, relay, 1.0);
            }
            Measure::Visible => {
                let load = Load {
                    connections: SEARCHERS,
                    ..options.load(What::Visible, options.part(What::Visible, FAST))
                };
                let told = self.put(running, load).await?;
                self.add(Metric::RelayVisibleP50Ms, relay, told.p50_ms);
                self.add(Metric::RelayVisibleP99Ms, relay, told.p99_ms);
                self.limit(Metric::RelayVisibleP99Ms, relay, VISIBLE_P99_MS);
            }
        }
        Ok(())
    }

    async fn fan_out(
        &mut self,
        relay: Relay,
        running: &Running,
        rate: u32,
        metric: Metric,
    ) -> anyhow::Result<()> {
        let load = Load {
            connections: LISTENERS,
            rate,
            ..self
                .options
                .load(What::FanOut, self.options.part(What::FanOut, rate))
        };
        let told = self.put(running, load).await?;
        self.add(metric, relay, told.p99_ms);
        self.add(Metric::RelayLost, relay, told.lost.into());
        if told.lost > 0 {
            let (name, lost) = (relay.name(), told.lost);
            eprintln!("#### {name} lost {lost} events at {rate}/s, or was late for them ####");
        }
        Ok(())
    }

    async fn put(&self, running: &Running, load: Load) -> anyhow::Result<Told> {
        load.on(running.address, &self.deck, running.api_key())
            .await
    }

    fn add(&mut self, metric: Metric, relay: Relay, number: f64) {
        self.runs.add(metric, relay.side(), relay.name(), number);
    }

    /// What a figure of ours is held against.
    fn limit(&mut self, metric: Metric, relay: Relay, number: f64) {
        if relay == Relay::Ours {
            let side = Side::Baseline;
            self.runs.add(metric, side, targets::LIMIT, number);
        }
    }

    async fn report(self, here: &[Relay], missing: &[Relay]) -> anyhow::Result<bool> {
        let options = self.options;
        let figures = self.runs.figures();
        let versions: BTreeMap<_, _> = here
            .iter()
            .map(|relay| (relay.name(), relay.title().to_owned()))
            .collect();
        let report = Report {
            scenario: "relay",
            at: databases::now(&self.server).await?,
            commit: options.commit.clone(),
            cores: thread::available_parallelism()?.get(),
            options: [
                ("runs", options.runs),
                ("events", options.events),
                ("seconds", options.seconds),
                ("documents", options.documents),
            ]
            .into(),
            server: databases::settings(&self.server).await?,
            versions,
            missing: missing.iter().map(|relay| relay.name()).collect(),
            verdicts: figures::verdicts(&figures, &targets::RELAY),
            figures,
        };
        println!("{}", report.markdown());
        println!("**strfry did not take part: it is in no registry of packages.**\n");
        eprintln!("written to {}", report.save(&options.results)?);
        Ok(!report.misses_a_target())
    }
}

/// Brings the database of a relay to rest, if it has one on the server.
async fn settle(running: &Running) -> anyhow::Result<()> {
    if let Some(url) = &running.url {
        databases::settle(url).await?;
    }
    Ok(())
}

fn say(round: u32, measure: Measure, relay: Relay) {
    eprintln!("round {round}: {measure:?}, {}", relay.name());
}
