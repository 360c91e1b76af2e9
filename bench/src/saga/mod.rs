//! The scenario `saga`: sagas per second and one alone, against peers and plain SQL, and what
//! `kill -9` costs (`kill`).
//!
//! The rounds are those of `queue`: everybody has a turn in every one of them, each with a fresh
//! database that was brought to rest.

pub(crate) mod callers;
mod kill;
pub(crate) mod ours;
mod store;

use std::{collections::BTreeMap, fs, path::PathBuf, thread};

use anyhow::Context as _;
use clap::{Args, ValueEnum};
use sqlx::PgPool;
use tasuki::Schema;

use crate::{
    contest::{Contestant, Steps, Through, Verb, Version},
    figures::{self, Metric, OURS, Runs, Side},
    ours::SCHEMA,
    pgbench::Pgbench,
    report::Report,
    store as databases, targets,
};

/// How the scenario runs. The defaults are those of the published figures.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// The server, through a database that is not touched.
    #[arg(long, env = "TASUKI_TEST_DATABASE_URL", hide_env_values = true)]
    database_url: String,
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
    runs: u32,
    /// Callers, each with one saga at a time.
    #[arg(long, default_value_t = 64)]
    callers: u32,
    /// How long each round calls.
    #[arg(long, default_value_t = 10)]
    seconds: u32,
    /// Sagas that run when their process is killed.
    #[arg(long, default_value_t = 1000)]
    sagas: u32,
}

/// What can be measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Measure {
    /// Sagas per second of all callers.
    Sagas,
    /// How long a saga takes while there is no other.
    Alone,
    /// What a restart and a takeover cost.
    Kill,
}

/// A scenario under way.
struct Scenario<'a> {
    options: &'a Options,
    server: PgPool,
    /// The one that is made anew for every measurement.
    database: Schema,
    schema: Schema,
    url: String,
    runs: Runs,
}

/// Runs the scenario, prints the tables and says whether no target was missed.
pub(crate) async fn run(options: &Options) -> anyhow::Result<bool> {
    fs::create_dir_all(&options.results)?;
    let database = Schema::new("tasuki_bench")?;
    let (rest, _) = options
        .database_url
        .rsplit_once('/')
        .context("the database's address has no database in it")?;
    let mut scenario = Scenario {
        options,
        server: PgPool::connect(&options.database_url).await?,
        url: format!("{rest}/{database}"),
        database,
        schema: Schema::new(SCHEMA)?,
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
    databases::drop_database(&scenario.server, &scenario.database).await?;
    scenario.report(&here, &missing).await
}

impl Options {
    /// Who takes part, and who would have.
    fn contestants(&self) -> anyhow::Result<(Vec<Contestant>, Vec<Contestant>)> {
        let mut all = vec![Contestant::ours(std::env::current_exe()?)];
        // Their own folder is not ours: the path must hold from anywhere.
        let home = std::path::absolute(&self.peers)?;
        all.extend(Contestant::saga_peers(&home));
        all.retain(|c| self.who.is_empty() || self.who.iter().any(|who| who == c.name));
        Ok(all.into_iter().partition(Contestant::is_here))
    }

    fn wants(&self, measure: Measure) -> bool {
        self.only.is_empty() || self.only.contains(&measure)
    }
}

impl Scenario<'_> {
    async fn round(&mut self, round: u32, contestants: &[Contestant]) -> anyhow::Result<()> {
        let ours = contestants.iter().find(|who| who.name == OURS);
        if self.options.wants(Measure::Sagas) {
            for who in contestants {
                say(round, Measure::Sagas, who.name);
                self.sagas(who).await?;
            }
            if let Some(ours) = ours {
                say(round, Measure::Sagas, "other steps");
                self.other_steps(ours).await?;
            }
            say(round, Measure::Sagas, "baselines");
            self.plain_sql().await?;
        }
        if self.options.wants(Measure::Alone) {
            for who in contestants {
                say(round, Measure::Alone, who.name);
                self.alone(who).await?;
            }
        }
        if let Some(ours) = ours.filter(|_| self.options.wants(Measure::Kill)) {
            say(round, Measure::Kill, OURS);
            kill::run(self, ours).await?;
        }
        Ok(())
    }

    /// A fresh database with the tables of a contestant.
    async fn fresh(&self, who: &Contestant) -> anyhow::Result<()> {
        databases::recreate(&self.server, &self.database).await?;
        who.tell(&self.url, Verb::Setup).await
    }

    /// The numbers of one run, in a database that is fresh by now.
    async fn ask(&self, who: &Contestant, verb: Verb) -> anyhow::Result<Through> {
        databases::settle(&self.url).await?;
        who.ask(&self.url, verb).await
    }

    async fn sagas(&mut self, who: &Contestant) -> anyhow::Result<()> {
        self.fresh(who).await?;
        let verb = self.verb(Steps::Local, self.options.callers);
        let told = self.ask(who, verb).await?;
        let metric = Metric::SagaPerSecond;
        self.runs.add(metric, side(who), who.name, told.per_second);
        Ok(())
    }

    async fn alone(&mut self, who: &Contestant) -> anyhow::Result<()> {
        self.fresh(who).await?;
        let told = self.ask(who, self.verb(Steps::Local, 1)).await?;
        for (metric, number) in [
            (Metric::SagaAloneP50Ms, told.p50_ms),
            (Metric::SagaAloneP99Ms, told.p99_ms),
        ] {
            self.runs.add(metric, side(who), who.name, number);
        }
        Ok(())
    }

    /// The library with steps that have more to do. They have no target.
    async fn other_steps(&mut self, ours: &Contestant) -> anyhow::Result<()> {
        for (steps, name) in [
            (Steps::Outside, targets::OUTSIDE),
            (Steps::Writing, targets::WRITING),
        ] {
            self.fresh(ours).await?;
            store::make_effects(&self.url, &self.schema).await?;
            let verb = self.verb(steps, self.options.callers);
            let told = self.ask(ours, verb).await?;
            let metric = Metric::SagaPerSecond;
            self.runs.add(metric, Side::Baseline, name, told.per_second);
        }
        Ok(())
    }

    async fn plain_sql(&mut self) -> anyhow::Result<()> {
        let Options {
            callers, seconds, ..
        } = *self.options;
        for name in [targets::COMMIT_EACH, targets::COMMITS_SHARED] {
            databases::recreate(&self.server, &self.database).await?;
            crate::ours::setup(&self.url).await?;
            databases::settle(&self.url).await?;
            let pgbench = Pgbench {
                url: &self.url,
                schema: &self.schema,
                folder: &self.options.results,
            };
            let rate = match name {
                targets::COMMIT_EACH => pgbench.sagas(callers, seconds).await?,
                _ => pgbench.sagas_together(callers, seconds).await?,
            };
            let metric = Metric::SagaPerSecond;
            self.runs.add(metric, Side::Baseline, name, rate);
        }
        Ok(())
    }

    fn verb(&self, steps: Steps, callers: u32) -> Verb {
        let seconds = self.options.seconds;
        Verb::Saga {
            steps,
            callers,
            seconds,
        }
    }

    async fn report(self, here: &[Contestant], missing: &[Contestant]) -> anyhow::Result<bool> {
        let options = self.options;
        let mut versions = BTreeMap::new();
        for contestant in here {
            let told: Version = contestant.ask(&self.url, Verb::Version).await?;
            versions.insert(contestant.name, told.version);
        }
        let figures = self.runs.figures();
        let report = Report {
            scenario: "saga",
            at: databases::now(&self.server).await?,
            commit: options.commit.clone(),
            cores: thread::available_parallelism()?.get(),
            options: [
                ("runs", options.runs),
                ("callers", options.callers),
                ("seconds", options.seconds),
                ("sagas", options.sagas),
            ]
            .into(),
            server: databases::settings(&self.server).await?,
            versions,
            missing: missing.iter().map(|contestant| contestant.name).collect(),
            verdicts: figures::verdicts(&figures, &targets::SAGA),
            figures,
        };
        println!("{}", report.markdown());
        eprintln!("written to {}", report.save(&options.results)?);
        Ok(!report.misses_a_target())
    }
}

fn side(who: &Contestant) -> Side {
    if who.name == OURS {
        Side::Ours
    } else {
        Side::Peer
    }
}

fn say(round: u32, measure: Measure, who: &str) {
    eprintln!("round {round}: {measure:?}, {who}");
}
