//! The scenario `grant`: the services as they are shipped, against plain SQL on the same server.
//!
//! In every round both sides have a turn, and the one that goes first changes: `pgbench` with the
//! reads and writes of one grant as one prepared transaction, and the service through HTTP. Each
//! side has a fresh database with the same rows. Then entitlement and notification run as two
//! processes, and a grant counts when its notification is SENT.
//!
//! What time does to it is asked for apart: `--history` (`history`) and `--soak` (`soak`).

mod end_to_end;
mod history;
mod soak;
mod store;

use std::{fs, path::PathBuf, thread, time::Duration};

use anyhow::ensure;
use clap::{Args, ValueEnum};
use sqlx::PgPool;
use tasuki::Schema;

use crate::{
    figures::{self, Metric, OURS, Runs, Side},
    load::{Load, What},
    pgbench::Pgbench,
    report::Report,
    site::{Ground, Permission, Process, Site},
    store as databases, targets,
};

/// The services that take part; a schema has the name of its service.
const ENTITLEMENT: &str = "entitlement";
const NOTIFICATION: &str = "notification";
/// The API, without workers.
const HTTP_ONLY: [&str; 2] = ["--only", "http"];
const PERMISSION: Permission = Permission {
    service: ENTITLEMENT,
    scopes: &["entitlement:grant", "entitlement:read"],
};

const FILL: &str = include_str!("../../grant/fill.sql");
const MONTHS: &str = include_str!("../../grant/months.sql");

/// How long the service is warmed up before a figure is taken: connections are opened then.
const WARM_UP: u32 = 1;

/// How the scenario runs. The defaults are those of the published figures.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// The server, through a database that is not touched.
    #[arg(long, env = "TASUKI_TEST_DATABASE_URL", hide_env_values = true)]
    database_url: String,
    /// The broker. Its streams are removed.
    #[arg(long, env = "TASUKI_TEST_NATS_URL", hide_env_values = true)]
    nats_url: String,
    /// The key-value store; nothing here uses it, but the configuration wants it.
    #[arg(long, env = "TASUKI_TEST_REDIS_URL", hide_env_values = true)]
    redis_url: String,
    /// The executable that is measured.
    #[arg(long, default_value = "target/release/tasuki")]
    tasuki: PathBuf,
    /// Where results and the logs of the services go.
    #[arg(long, default_value = ".tasuki/bench/results")]
    results: PathBuf,
    /// What is measured, in words for the report.
    #[arg(long, default_value = "unknown")]
    commit: String,
    /// Only these measures.
    #[arg(long, value_delimiter = ',')]
    only: Vec<Measure>,
    /// Rounds; figures are medians over them.
    #[arg(long, default_value_t = 5)]
    runs: u32,
    /// Connections to the service, and clients of pgbench.
    #[arg(long, default_value_t = 64)]
    connections: u32,
    /// How long each of grants, lone grants and reads is measured.
    #[arg(long, default_value_t = 10)]
    seconds: u32,
    /// Users who have five entitlements each.
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..))]
    users: u32,
    /// How long grants go on while all workers run, and how long they are offered at the rate.
    #[arg(long, default_value_t = 30)]
    sustained: u32,
    /// Grants per second for the time from grant to SENT.
    #[arg(long, default_value_t = 200)]
    rate: u32,
    /// Also all of that beside so many entitlements and their audit; ten million, unless it
    /// says otherwise. A multiple of five.
    #[arg(long, num_args = 0..=1, default_missing_value = "10000000")]
    history: Option<u32>,
    /// Also full load for this long, e.g. 10m, with an eye on memory. An hour fills some 30 GB.
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    soak: Option<Duration>,
}

/// What can be measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Measure {
    /// Grants per second on all connections.
    Grants,
    /// How long a grant takes while nobody else asks for one.
    Alone,
    /// Reads of what a user has, per second on all connections.
    Reads,
    /// From the grant to the notification that is SENT.
    EndToEnd,
    /// All of that beside a history; needs `--history`.
    History,
    /// Memory under full load; needs `--soak`.
    Soak,
}

/// What is measured through HTTP and in plain SQL: the figure, and the limit that it is held
/// against.
const ROUNDS: [(Measure, Metric, &str); 3] = [
    (
        Measure::Grants,
        Metric::GrantPerSecond,
        targets::SAME_TRANSACTION,
    ),
    (
        Measure::Alone,
        Metric::GrantAloneP50Ms,
        targets::SAME_TRANSACTION,
    ),
    (Measure::Reads, Metric::ReadPerSecond, targets::SAME_SELECT),
];

/// A scenario under way.
struct Scenario<'a> {
    options: &'a Options,
    server: PgPool,
    /// The one that is made anew for every measurement.
    database: Schema,
    runs: Runs,
}

/// Runs the scenario, prints the tables and says whether no target was missed.
pub(crate) async fn run(options: &Options) -> anyhow::Result<bool> {
    options.check()?;
    fs::create_dir_all(&options.results)?;
    let mut scenario = Scenario {
        options,
        server: PgPool::connect(&options.database_url).await?,
        database: Schema::new("tasuki_bench")?,
        runs: Runs::default(),
    };
    for round in 1..=options.runs {
        scenario.round(round).await?;
    }
    if let Some(rows) = options.history.filter(|_| options.wants(Measure::History)) {
        history::run(&mut scenario, rows).await?;
    }
    if let Some(time) = options.soak.filter(|_| options.wants(Measure::Soak)) {
        soak::run(&mut scenario, time).await?;
    }
    databases::drop_database(&scenario.server, &scenario.database).await?;
    scenario.report().await
}

impl Options {
    /// A measure that was asked for and would be left out is an error, not an empty table.
    fn check(&self) -> anyhow::Result<()> {
        for (measure, option, given) in [
            (Measure::History, "--history", self.history.is_some()),
            (Measure::Soak, "--soak", self.soak.is_some()),
        ] {
            let asked = self.only.contains(&measure);
            ensure!(given || !asked, "{measure:?} needs {option}");
        }
        Ok(())
    }

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

    /// The full load of grants on all connections.
    fn full_load(&self, seconds: u32) -> Load {
        Load {
            what: What::Grants,
            connections: self.connections,
            seconds,
            warm_up: 0,
            users: self.users,
            rate: None,
        }
    }
}

impl Scenario<'_> {
    async fn round(&mut self, round: u32) -> anyhow::Result<()> {
        let mut sides = [Side::Baseline, Side::Ours];
        // Who comes first has a quieter disk, or a colder one: they take turns at that, too.
        if round.is_multiple_of(2) {
            sides.reverse();
        }
        for side in sides {
            self.side(round, side).await?;
        }
        if self.options.wants(Measure::EndToEnd) {
            eprintln!("round {round}: EndToEnd");
            end_to_end::run(self).await?;
        }
        Ok(())
    }

    /// The turn of one side, on a database of its own.
    async fn side(&mut self, round: u32, side: Side) -> anyhow::Result<()> {
        let mut wanted = ROUNDS.to_vec();
        wanted.retain(|(measure, ..)| self.options.wants(*measure));
        if wanted.is_empty() {
            return Ok(());
        }
        let users = self.options.users;
        let site = self.site(&self.database, users).await?;
        let service = match side {
            Side::Ours => Some(site.serve(ENTITLEMENT, &HTTP_ONLY).await?),
            Side::Peer | Side::Baseline => None,
        };
        for (measure, metric, limit) in wanted {
            eprintln!("round {round}: {measure:?}, {side:?}");
            databases::settle(&site.url).await?;
            let Some(service) = &service else {
                let number = self.in_plain_sql(&site, measure).await?;
                self.runs.add(metric, side, limit, number);
                continue;
            };
            let number = self.through_http(service, measure, users).await?;
            self.runs.add(metric, side, OURS, number);
            if measure == Measure::Grants {
                let (metric, who) = (Metric::SentPerSecond, targets::GRANTS_ALONE);
                self.runs.add(metric, Side::Baseline, who, number);
            }
        }
        match service {
            Some(service) => service.stop().await,
            None => Ok(()),
        }
    }

    /// A fresh database with the platform's tables, and so many users with five entitlements.
    async fn site(&self, database: &Schema, users: u32) -> anyhow::Result<Site> {
        let ground = self.options.ground();
        let site = Box::pin(Site::make(ground, &self.server, database, PERMISSION)).await?;
        databases::run_file(&site.url, MONTHS.to_owned()).await?;
        let fill = FILL.replace(":users", &users.to_string());
        databases::run_file(&site.url, fill).await?;
        databases::settle(&site.url).await?;
        Ok(site)
    }

    async fn in_plain_sql(&self, site: &Site, measure: Measure) -> anyhow::Result<f64> {
        let Options {
            connections,
            seconds,
            users,
            ..
        } = *self.options;
        let schema = Schema::new(ENTITLEMENT)?;
        let pgbench = Pgbench {
            url: &site.url,
            schema: &schema,
            folder: &self.options.results,
        };
        match measure {
            Measure::Alone => pgbench.grant_alone(seconds, users).await,
            Measure::Reads => pgbench.read(connections, seconds, users).await,
            _ => pgbench.grant(connections, seconds, users).await,
        }
    }

    async fn through_http(
        &self,
        service: &Process,
        measure: Measure,
        users: u32,
    ) -> anyhow::Result<f64> {
        let load = Load {
            warm_up: WARM_UP,
            users,
            ..self.options.full_load(self.options.seconds)
        };
        Ok(match measure {
            Measure::Alone => {
                let connections = 1;
                let alone = Load {
                    connections,
                    ..load
                };
                alone.on(service).await?.p50_ms
            }
            Measure::Reads => {
                let what = What::Reads;
                (Load { what, ..load }).on(service).await?.per_second
            }
            _ => load.on(service).await?.per_second,
        })
    }

    async fn report(self) -> anyhow::Result<bool> {
        let options = self.options;
        let figures = self.runs.figures();
        let version = concat!("tasuki ", env!("CARGO_PKG_VERSION")).to_owned();
        let soak = options.soak.map_or(0, |time| time.as_secs());
        let report = Report {
            scenario: "grant",
            at: databases::now(&self.server).await?,
            commit: options.commit.clone(),
            cores: thread::available_parallelism()?.get(),
            options: [
                ("runs", options.runs),
                ("connections", options.connections),
                ("seconds", options.seconds),
                ("users", options.users),
                ("sustained", options.sustained),
                ("rate", options.rate),
                ("history", options.history.unwrap_or_default()),
                ("soak", u32::try_from(soak)?),
            ]
            .into(),
            server: databases::settings(&self.server).await?,
            versions: [(OURS, version)].into(),
            missing: vec![],
            verdicts: figures::verdicts(&figures, &targets::GRANT),
            figures,
        };
        println!("{}", report.markdown());
        eprintln!("written to {}", report.save(&options.results)?);
        Ok(!report.misses_a_target())
    }
}
