//! The scenario `queue`: enqueue, drain and latency, against peers and plain SQL.
//!
//! The runs are interleaved: every contestant has its turn in every round, so that whatever else
//! the machine does meets all of them. Every measurement has a fresh database, brought to rest
//! before the clock starts.

use std::{fs, num::NonZeroU32, path::PathBuf, thread};

use anyhow::Context as _;
use clap::Args;
use sqlx::PgPool;
use tasuki::Schema;

use crate::{
    age,
    broker::{self, Sending},
    contest::{Contestant, Drained, Enqueued, Measure, Verb, Version, Waited},
    figures::{self, Metric, OURS, Runs, Side},
    ours,
    pgbench::Pgbench,
    report::Report,
    store, targets,
};

/// How the scenario runs. The defaults are those of the published figures.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// The server, through a database that is not touched.
    #[arg(long, env = "TASUKI_TEST_DATABASE_URL", hide_env_values = true)]
    database_url: String,
    /// The broker.
    #[arg(long, env = "TASUKI_TEST_NATS_URL", hide_env_values = true)]
    nats_url: String,
    /// Where the peers are installed.
    #[arg(long, default_value = ".tasuki/bench/peers")]
    peers: PathBuf,
    /// Where results go.
    #[arg(long, default_value = ".tasuki/bench/results")]
    results: PathBuf,
    /// What is measured, in words for the report.
    #[arg(long, default_value = "unknown")]
    commit: String,
    /// Only these measures.
    #[arg(long, value_delimiter = ',')]
    only: Vec<Measure>,
    /// Only these contestants; the baselines always run.
    #[arg(long, value_delimiter = ',')]
    who: Vec<String>,
    /// Rounds; figures are medians over them.
    #[arg(long, default_value_t = 5)]
    pub(crate) runs: u32,
    /// Jobs to drain: a multiple of 400.
    #[arg(long, default_value_t = 50_000)]
    pub(crate) jobs: u32,
    /// Connections that enqueue.
    #[arg(long, default_value_t = 16)]
    clients: u32,
    /// How long each round enqueues.
    #[arg(long, default_value_t = 10)]
    pub(crate) seconds: u32,
    /// Jobs per second for latency.
    #[arg(long, default_value_t = 200)]
    pub(crate) rate: u32,
    /// Messages for the broker's baseline.
    #[arg(long, default_value_t = 20_000)]
    messages: u32,
    /// Messages in one atomic batch.
    #[arg(long, default_value = "100")]
    batch: NonZeroU32,
    /// Batches in flight; without batches, messages in flight are this many times the batch.
    #[arg(long, default_value = "4")]
    in_flight: NonZeroU32,
    /// Finished jobs beside the others.
    #[arg(long, default_value_t = 10_000_000)]
    pub(crate) history: u32,
    /// How long a snapshot is held.
    #[arg(long, default_value_t = 600)]
    pub(crate) hold: u32,
}

/// A scenario under way.
pub(crate) struct Scenario<'a> {
    pub(crate) options: &'a Options,
    pub(crate) server: PgPool,
    database: Schema,
    schema: Schema,
    pub(crate) url: String,
    pub(crate) runs: Runs,
}

/// Runs the scenario, prints the tables and says whether no target was missed.
pub(crate) async fn run(options: &Options) -> anyhow::Result<bool> {
    let server = PgPool::connect(&options.database_url).await?;
    let database = Schema::new("tasuki_bench")?;
    let (rest, _) = options
        .database_url
        .rsplit_once('/')
        .context("the database's address has no database in it")?;
    let mut scenario = Scenario {
        options,
        url: format!("{rest}/{database}"),
        server,
        database,
        schema: Schema::new(ours::SCHEMA)?,
        runs: Runs::default(),
    };
    let (here, missing) = options.contestants()?;
    for contestant in &missing {
        eprintln!(
            "\n#### {} is not installed and does NOT take part ####\n",
            contestant.name
        );
    }
    for round in 1..=options.runs {
        scenario.round(round, &here).await?;
    }
    if let Some(ours) = here.iter().find(|contestant| contestant.name == OURS) {
        age::run(&mut scenario, ours).await?;
    }
    scenario.report(&here, &missing).await
}

impl Options {
    /// Who takes part, and who would have.
    fn contestants(&self) -> anyhow::Result<(Vec<Contestant>, Vec<Contestant>)> {
        let mut all = vec![Contestant::ours(std::env::current_exe()?)];
        // Their own folder is not ours: the path must hold from anywhere.
        let home = std::path::absolute(&self.peers)?;
        all.extend(Contestant::peers(&home));
        all.retain(|c| self.who.is_empty() || self.who.iter().any(|who| who == c.name));
        Ok(all.into_iter().partition(Contestant::is_here))
    }

    pub(crate) fn measures(&self, measure: Measure) -> bool {
        self.only.is_empty() || self.only.contains(&measure)
    }
}

impl Scenario<'_> {
    async fn round(&mut self, round: u32, contestants: &[Contestant]) -> anyhow::Result<()> {
        for measure in Measure::ROUNDS {
            if !self.options.measures(measure) {
                continue;
            }
            for contestant in contestants {
                if contestant.measures.contains(&measure) {
                    say(round, measure, contestant.name);
                    self.measure(contestant, measure).await?;
                }
            }
            say(round, measure, "baselines");
            match measure {
                Measure::Enqueue => self.plain_inserts().await?,
                Measure::Drain => {
                    self.plain_claims(1, targets::CLAIM_ONE).await?;
                    self.plain_claims(4, targets::CLAIM_FOUR).await?;
                }
                Measure::Publish => self.bare_publisher().await?,
                // Nothing waits less than what is not there.
                Measure::Latency | Measure::History | Measure::Snapshot | Measure::Idle => {}
            }
        }
        store::drop_database(&self.server, &self.database).await?;
        Ok(())
    }

    /// One contestant, one measure, one fresh database.
    async fn measure(&mut self, who: &Contestant, measure: Measure) -> anyhow::Result<()> {
        store::recreate(&self.server, &self.database).await?;
        who.tell(&self.url, Verb::Setup).await?;
        if measure == Measure::Drain {
            let rows = self.options.jobs;
            who.tell(&self.url, Verb::Fill { rows }).await?;
        }
        store::settle(&self.url).await?;
        let side = if who.name == OURS {
            Side::Ours
        } else {
            Side::Peer
        };
        for (metric, number) in self.ask(who, measure).await? {
            self.runs.add(metric, side, who.name, number);
        }
        Ok(())
    }

    /// The numbers of one run.
    async fn ask(&self, who: &Contestant, measure: Measure) -> anyhow::Result<Vec<(Metric, f64)>> {
        let (options, url) = (self.options, self.url.as_str());
        let seconds = options.seconds;
        let numbers = match measure {
            Measure::Enqueue => {
                let clients = options.clients;
                let told: Enqueued = who.ask(url, Verb::Enqueue { clients, seconds }).await?;
                vec![(Metric::EnqueuePerSecond, told.per_second)]
            }
            Measure::Drain => {
                let told: Drained = who.ask(url, Verb::Drain).await?;
                vec![(Metric::DrainPerSecond, told.per_second(who, options.jobs)?)]
            }
            Measure::Latency => {
                let rate = options.rate;
                let told: Waited = who.ask(url, Verb::Latency { rate, seconds }).await?;
                if told.per_second < f64::from(rate) * 0.98 {
                    let (name, reached) = (who.name, told.per_second);
                    eprintln!("#### {name} kept up with {reached:.0}/s of {rate}/s only ####");
                }
                vec![
                    (Metric::LatencyP50Ms, told.p50_ms),
                    (Metric::LatencyP99Ms, told.p99_ms),
                ]
            }
            Measure::Publish => {
                let rows = options.messages;
                let verb = Verb::Outbox {
                    rows,
                    batch: options.batch.get(),
                    in_flight: options.in_flight.get(),
                };
                let told: Drained = who.ask(url, verb).await?;
                vec![(Metric::PublishPerSecond, told.per_second(who, rows)?)]
            }
            Measure::History | Measure::Snapshot | Measure::Idle => vec![],
        };
        Ok(numbers)
    }

    /// A fresh database with the library's tables.
    pub(crate) async fn tables(&self) -> anyhow::Result<()> {
        store::recreate(&self.server, &self.database).await?;
        ours::setup(&self.url).await
    }

    fn pgbench(&self) -> anyhow::Result<Pgbench<'_>> {
        fs::create_dir_all(&self.options.results)?;
        Ok(Pgbench {
            url: &self.url,
            schema: &self.schema,
            folder: &self.options.results,
        })
    }

    async fn plain_inserts(&mut self) -> anyhow::Result<()> {
        let Options {
            clients, seconds, ..
        } = *self.options;
        self.tables().await?;
        store::settle(&self.url).await?;
        let alone = self.pgbench()?.insert(clients, seconds).await?;
        self.tables().await?;
        store::settle(&self.url).await?;
        let pgbench = self.pgbench()?;
        let in_transaction = pgbench.insert_in_transaction(clients, seconds).await?;
        let mut add = |who, number| {
            let metric = Metric::EnqueuePerSecond;
            self.runs.add(metric, Side::Baseline, who, number);
        };
        add(targets::INSERT, alone);
        add(targets::INSERT_IN_TRANSACTION, in_transaction);
        Ok(())
    }

    async fn plain_claims(&mut self, connections: u32, name: &str) -> anyhow::Result<()> {
        let jobs = self.options.jobs;
        self.tables().await?;
        self.pgbench()?.fill(jobs).await?;
        store::settle(&self.url).await?;
        let rate = self
            .pgbench()?
            .claim_and_finalize(connections, jobs)
            .await?;
        self.runs
            .add(Metric::DrainPerSecond, Side::Baseline, name, rate);
        Ok(())
    }

    async fn bare_publisher(&mut self) -> anyhow::Result<()> {
        let Options {
            nats_url,
            messages,
            batch,
            in_flight,
            ..
        } = self.options;
        let alone = batch.saturating_mul(*in_flight);
        for (sending, in_flight, name) in [
            (Sending::Single, alone, targets::PUBLISH_SINGLE),
            (
                Sending::Batches(*batch),
                *in_flight,
                targets::PUBLISH_BATCHES,
            ),
        ] {
            let rate = broker::publish(nats_url, *messages, sending, in_flight).await?;
            let metric = Metric::PublishPerSecond;
            self.runs.add(metric, Side::Baseline, name, rate);
        }
        Ok(())
    }

    async fn report(self, here: &[Contestant], missing: &[Contestant]) -> anyhow::Result<bool> {
        let options = self.options;
        let mut versions = std::collections::BTreeMap::new();
        for contestant in here {
            let told: Version = contestant.ask(&self.url, Verb::Version).await?;
            versions.insert(contestant.name, told.version);
        }
        let figures = self.runs.figures();
        let report = Report {
            scenario: "queue",
            at: store::now(&self.server).await?,
            commit: options.commit.clone(),
            cores: thread::available_parallelism()?.get(),
            options: [
                ("runs", options.runs),
                ("jobs", options.jobs),
                ("clients", options.clients),
                ("seconds", options.seconds),
                ("rate", options.rate),
                ("messages", options.messages),
                ("batch", options.batch.get()),
                ("in_flight", options.in_flight.get()),
                ("history", options.history),
                ("hold", options.hold),
            ]
            .into(),
            server: store::settings(&self.server).await?,
            versions,
            missing: missing.iter().map(|contestant| contestant.name).collect(),
            verdicts: figures::verdicts(&figures, &targets::QUEUE),
            figures,
        };
        println!("{}", report.markdown());
        eprintln!("written to {}", report.save(&options.results)?);
        Ok(!report.misses_a_target())
    }
}

fn say(round: u32, measure: Measure, who: &str) {
    eprintln!("round {round}: {measure:?}, {who}");
}
