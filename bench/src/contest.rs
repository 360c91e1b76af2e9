//! Who takes part, and how they are asked.
//!
//! A contestant is a program with a fixed set of sub-commands ([`Verb`]) that finds its database
//! in `DATABASE_URL` and answers in one line of JSON on standard output. The library takes part
//! like everybody else: as a process of its own ([`crate::ours`]).

use std::{
    fmt,
    path::{Path, PathBuf},
    process::Stdio,
};

use anyhow::{Context as _, bail};
use clap::Subcommand;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use tokio::process::{Child, Command};

/// What a contestant can be asked for.
#[derive(Clone, Copy, Debug, Subcommand)]
pub(crate) enum Verb {
    /// Says its version: [`Version`].
    Version,
    /// Makes its tables in an empty database.
    Setup,
    /// Enqueues no-op jobs in bulk, the fastest documented way.
    Fill {
        /// How many.
        rows: u32,
    },
    /// Works off what is there in one process, and stops: [`Drained`].
    Drain,
    /// The same, with the finished jobs kept: [`Drained`]. Only of the library.
    DrainAndKeep,
    /// Enqueues at a steady rate, ten times a second, while a worker runs: [`Drained`]. Only of
    /// the library.
    Load {
        /// Jobs per second.
        rate: u32,
        /// For how long.
        seconds: u32,
    },
    /// Runs a worker that has nothing to do: [`Idled`]. Only of the library.
    Idle {
        /// For how long.
        seconds: u32,
    },
    /// Enqueues one job per transaction: [`Enqueued`].
    Enqueue {
        /// Connections, each with one transaction at a time.
        clients: u32,
        /// For how long.
        seconds: u32,
    },
    /// Enqueues at a steady rate while a worker runs: [`Waited`].
    Latency {
        /// Jobs per second.
        rate: u32,
        /// For how long.
        seconds: u32,
    },
    /// Writes events, then lets the relay publish them; only the second part is timed, until the
    /// last row is settled: [`Drained`]. The broker is in `TASUKI_TEST_NATS_URL`.
    Outbox {
        /// How many events.
        rows: u32,
        /// Events in one batch.
        batch: u32,
        /// Batches in flight.
        in_flight: u32,
    },
    /// So many callers, each of which starts a saga of three steps that do nothing, waits until it
    /// has ended, and starts the next: [`Through`].
    Saga {
        /// Callers, each with one saga at a time.
        callers: u32,
        /// For how long.
        seconds: u32,
        /// Of which kind the steps are. Only of the library.
        #[arg(default_value = "local")]
        steps: Steps,
    },
    /// Begins sagas of ten steps, each of which writes a row, and goes on with whatever sagas are
    /// there until it is killed. Only of the library.
    SagaWorker {
        /// What the rows say of who wrote them.
        number: u32,
        /// How many.
        sagas: u32,
    },
}

/// What the steps of a saga do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Steps {
    /// Nothing, in the transaction of their record.
    Local,
    /// Nothing, elsewhere: that they are about to be called is recorded before.
    Outside,
    /// They write a row, in the transaction of their record.
    Writing,
}

/// What is measured, and by which verb.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Measure {
    /// Transactions per second that enqueue one job each.
    Enqueue,
    /// Jobs per second, from the start of the worker until the last one is finished durably.
    Drain,
    /// From the call that enqueues to the first line of the handler.
    Latency,
    /// Events per second from the outbox to the broker's disk.
    Publish,
    /// Drain and latency with millions of finished jobs beside them.
    History,
    /// Drain while a snapshot keeps every dead row in place.
    Snapshot,
    /// What a worker costs that has nothing to do.
    Idle,
}

impl Measure {
    /// Those of the rounds, in their order. The others compare the library with itself.
    pub(crate) const ROUNDS: [Self; 4] = [Self::Enqueue, Self::Drain, Self::Latency, Self::Publish];
}

/// A contestant's name and version, and what it runs on.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Version {
    pub(crate) version: String,
}

/// A queue that was worked off.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
pub(crate) struct Drained {
    pub(crate) rows: u32,
    pub(crate) seconds: f64,
}

impl Drained {
    /// The rate, if all of them were done, each once.
    pub(crate) fn per_second(self, who: &Contestant, wanted: u32) -> anyhow::Result<f64> {
        if self.rows != wanted {
            bail!("{} did {} rows of {wanted}", who.name, self.rows);
        }
        Ok(f64::from(self.rows) / self.seconds)
    }
}

/// What a worker cost that had nothing to do.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
pub(crate) struct Idled {
    /// How often it should have looked.
    pub(crate) polls: f64,
    /// What it sent to the server.
    pub(crate) statements: u32,
    /// Time on a processor, in seconds.
    pub(crate) cpu: f64,
}

/// How fast jobs were enqueued.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
pub(crate) struct Enqueued {
    pub(crate) per_second: f64,
}

/// How long jobs waited.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
pub(crate) struct Waited {
    pub(crate) p50_ms: f64,
    pub(crate) p99_ms: f64,
    pub(crate) jobs: u32,
    /// The rate that was reached: below the one asked for, the contestant could not keep up.
    pub(crate) per_second: f64,
}

/// How sagas went.
#[derive(Clone, Copy, Debug, Deserialize)]
pub(crate) struct Through {
    pub(crate) per_second: f64,
    pub(crate) p50_ms: f64,
    pub(crate) p99_ms: f64,
}

/// A program that takes part.
#[derive(Clone, Debug)]
pub(crate) struct Contestant {
    pub(crate) name: &'static str,
    pub(crate) program: PathBuf,
    /// What stands before the verb.
    pub(crate) arguments: Vec<String>,
    /// Of the scenario `queue`.
    pub(crate) measures: &'static [Measure],
}

/// What every peer can do: none has an outbox.
const QUEUE: &[Measure] = &[Measure::Enqueue, Measure::Drain, Measure::Latency];

impl Contestant {
    /// The peers as `scripts/bench` installs them below `home`.
    pub(crate) fn peers(home: &Path) -> Vec<Self> {
        let node = home.join("node");
        let peer = |name, program: PathBuf, script: Option<&str>| Self {
            name,
            program,
            arguments: script
                .map(|script| home.join(name).join(script).to_string_lossy().into_owned())
                .into_iter()
                .collect(),
            measures: QUEUE,
        };
        vec![
            peer(
                "graphile-worker-rust",
                home.join("graphile-worker-rust/bench-graphile-worker"),
                None,
            ),
            peer("graphile-worker-node", node.clone(), Some("main.mjs")),
            peer("pg-boss", node, Some("main.mjs")),
            peer(
                "procrastinate",
                home.join("procrastinate/venv/bin/python"),
                Some("main.py"),
            ),
        ]
    }

    /// The peers of the scenario `saga`.
    pub(crate) fn saga_peers(home: &Path) -> Vec<Self> {
        let peer = |name, program: &str| Self {
            name,
            program: home.join(name).join(program),
            arguments: vec![],
            measures: &[],
        };
        vec![
            peer(crate::targets::DBOS, "bench-dbos"),
            peer("restate", "bench-restate"),
            peer("dtmrs", "bench-dtmrs"),
        ]
    }

    /// The library: this executable again.
    pub(crate) fn ours(program: PathBuf) -> Self {
        Self {
            name: "tasuki",
            program,
            arguments: vec!["ours".to_owned()],
            measures: crate::ours::MEASURES,
        }
    }

    /// Whether it was installed.
    pub(crate) fn is_here(&self) -> bool {
        let script = self.arguments.first().filter(|_| self.name != "tasuki");
        self.program.exists() && script.is_none_or(|script| Path::new(script).exists())
    }

    /// Asks for something that has no answer but success.
    pub(crate) async fn tell(&self, url: &str, verb: Verb) -> anyhow::Result<()> {
        self.call(url, verb).await.map(drop)
    }

    /// Asks for figures.
    pub(crate) async fn ask<T: DeserializeOwned>(
        &self,
        url: &str,
        verb: Verb,
    ) -> anyhow::Result<T> {
        let told = self.call(url, verb).await?;
        let last = told.lines().last().unwrap_or_default();
        serde_json::from_str(last)
            .with_context(|| format!("{} {verb}: `{last}` is no answer", self.name))
    }

    /// Starts what goes on until it is killed. It dies with this process, however that ends.
    pub(crate) fn start(&self, url: &str, verb: Verb) -> anyhow::Result<Child> {
        let command = Command::from(tasuki_stack::mortal(&self.program));
        self.prepared(command, url, verb)
            .stdout(Stdio::null())
            .spawn()
            .with_context(|| format!("{} could not be started", self.program.display()))
    }

    fn prepared(&self, mut command: Command, url: &str, verb: Verb) -> Command {
        command
            .args(&self.arguments)
            .args(verb.words())
            .env("DATABASE_URL", url)
            .stdin(Stdio::null())
            .stderr(Stdio::inherit())
            .kill_on_drop(true);
        command
    }

    async fn call(&self, url: &str, verb: Verb) -> anyhow::Result<String> {
        let done = self
            .prepared(Command::new(&self.program), url, verb)
            .output()
            .await
            .with_context(|| format!("{} could not be started", self.program.display()))?;
        if !done.status.success() {
            bail!("{} {verb} failed: {}", self.name, done.status);
        }
        Ok(String::from_utf8_lossy(&done.stdout).into_owned())
    }
}

impl Verb {
    fn words(self) -> Vec<String> {
        let (name, numbers) = match self {
            Self::Version => ("version", vec![]),
            Self::Setup => ("setup", vec![]),
            Self::Fill { rows } => ("fill", vec![rows]),
            Self::Drain => ("drain", vec![]),
            Self::DrainAndKeep => ("drain-and-keep", vec![]),
            Self::Load { rate, seconds } => ("load", vec![rate, seconds]),
            Self::Idle { seconds } => ("idle", vec![seconds]),
            Self::Enqueue { clients, seconds } => ("enqueue", vec![clients, seconds]),
            Self::Latency { rate, seconds } => ("latency", vec![rate, seconds]),
            Self::Outbox {
                rows,
                batch,
                in_flight,
            } => ("outbox", vec![rows, batch, in_flight]),
            Self::Saga {
                callers, seconds, ..
            } => ("saga", vec![callers, seconds]),
            Self::SagaWorker { number, sagas } => ("saga-worker", vec![number, sagas]),
        };
        let numbers = numbers.iter().map(u32::to_string);
        let steps = match self {
            // Peers have steps of one kind.
            Self::Saga { steps, .. } if steps != Steps::Local => Some(steps.as_str().to_owned()),
            _ => None,
        };
        let words = std::iter::once(name.to_owned()).chain(numbers);
        words.chain(steps).collect()
    }
}

impl Steps {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Outside => "outside",
            Self::Writing => "writing",
        }
    }
}

impl fmt::Display for Verb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.words().join(" "))
    }
}
