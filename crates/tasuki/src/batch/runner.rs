//! The worker that runs batches.

use std::any::Any;
use std::panic::AssertUnwindSafe;
use std::slice;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use tracing::Instrument;

use super::queue::{Caller, Queue, Waiting};
use super::{Error, Group, Options, Outcome};
use crate::worker::{self, Tick, Wake, Worker};

/// Commands by batcher and how they ended: `done`, `refused`, `failed`, `panicked`,
/// `overloaded`, `stopped`, `cut`, `miscounted`.
const COMMANDS_TOTAL: &str = "tasuki_batch_commands_total";
/// How many commands each batch had, by batcher.
const SIZE_COMMANDS: &str = "tasuki_batch_size_commands";
/// How long commands waited before they were taken, by batcher.
const WAIT_SECONDS: &str = "tasuki_batch_wait_seconds";
/// Batches that failed as a whole and were run one by one, by batcher.
const SPLITS_TOTAL: &str = "tasuki_batch_splits_total";

/// How often an idle runner looks by itself. A wake comes with every command.
const POLL: Duration = Duration::from_secs(1);

pub(super) struct Runner<G: Group> {
    name: String,
    batcher: String,
    group: Arc<G>,
    options: Options,
    queue: Arc<Queue<G>>,
    wake: Wake,
}

/// Why a whole batch has no verdicts.
enum Trouble<E> {
    Failed(E),
    Panicked,
    Miscounted(usize),
}

type Verdicts<G> = Vec<Result<<G as Group>::Reply, <G as Group>::Error>>;

impl<G: Group> Runner<G> {
    pub(super) fn new(
        name: String,
        batcher: &str,
        group: Arc<G>,
        options: Options,
        queue: Arc<Queue<G>>,
        wake: &Wake,
    ) -> Self {
        queue.runner_began();
        Self {
            name,
            batcher: batcher.to_owned(),
            group,
            options,
            queue,
            wake: wake.clone(),
        }
    }

    fn count_splits(&self, splits: u64) {
        metrics::counter!(SPLITS_TOTAL, "batch" => self.batcher.clone()).increment(splits);
    }

    /// Runs what waits, up to a batch of it, and says whether anything did.
    async fn run_batch(&self) -> Tick {
        let taken = self.queue.take(self.options.max_batch);
        if taken.is_empty() {
            // There from the beginning, and not only after the first.
            self.count_splits(0);
            return Tick::Idle;
        }
        let span =
            tracing::info_span!("batch", batch.name = %self.batcher, batch.size = taken.len());
        self.report(&taken);
        let mut commands = Vec::with_capacity(taken.len());
        let mut callers = Vec::with_capacity(taken.len());
        for Waiting { command, caller } in taken {
            span.follows_from(&caller.span);
            commands.push(command);
            callers.push(caller);
        }
        self.run(&commands, callers).instrument(span).await;
        Tick::Worked
    }

    async fn run(&self, commands: &[G::Command], callers: Vec<Caller<G>>) {
        let trouble = match self.attempt(commands).await {
            Ok(verdicts) => {
                for (caller, verdict) in callers.into_iter().zip(verdicts) {
                    answer(caller, verdict.map_err(Error::Refused));
                }
                return;
            }
            Err(trouble) => trouble,
        };
        match trouble {
            Trouble::Failed(error) if self.is_final(commands, &error) => {
                let error = Arc::new(error);
                for caller in callers {
                    answer(caller, Err(Error::Failed(Arc::clone(&error))));
                }
            }
            Trouble::Panicked if commands.len() == 1 => {
                for caller in callers {
                    answer(caller, Err(Error::Panicked));
                }
            }
            // It ran to its end: running it again would only do everything twice.
            Trouble::Miscounted(got) => {
                let expected = commands.len();
                for caller in callers {
                    answer(caller, Err(Error::Miscounted { expected, got }));
                }
            }
            Trouble::Failed(_) | Trouble::Panicked => {
                self.count_splits(1);
                self.run_one_by_one(commands, callers).await;
            }
        }
    }

    async fn run_one_by_one(&self, commands: &[G::Command], callers: Vec<Caller<G>>) {
        // Once something is everyone's, whoever is left hears of it.
        let mut everyones: Option<Arc<G::Error>> = None;
        for (command, caller) in commands.iter().zip(callers) {
            if let Some(error) = &everyones {
                answer(caller, Err(Error::Failed(Arc::clone(error))));
                continue;
            }
            let outcome = match self.attempt(slice::from_ref(command)).await {
                Ok(verdicts) => match verdicts.into_iter().next() {
                    Some(verdict) => verdict.map_err(Error::Refused),
                    None => Err(Error::Cut),
                },
                Err(Trouble::Panicked) => Err(Error::Panicked),
                Err(Trouble::Miscounted(got)) => Err(Error::Miscounted { expected: 1, got }),
                Err(Trouble::Failed(error)) => {
                    let is_everyones = self.group.is_everyones(&error);
                    let error = Arc::new(error);
                    everyones = is_everyones.then(|| Arc::clone(&error));
                    Err(Error::Failed(error))
                }
            };
            answer(caller, outcome);
        }
    }

    /// Has the group run `commands`; its panic is a failure like any other.
    async fn attempt(&self, commands: &[G::Command]) -> Result<Verdicts<G>, Trouble<G::Error>> {
        // What a panicking group leaves behind is in a transaction that nobody commits.
        let run = AssertUnwindSafe(async { self.group.run(commands).await }).catch_unwind();
        match run.await {
            Ok(Ok(verdicts)) if verdicts.len() == commands.len() => Ok(verdicts),
            Ok(Ok(verdicts)) => {
                let got = verdicts.len();
                tracing::error!(batch.name = %self.batcher, batch.verdicts = got, "group miscounted its verdicts");
                Err(Trouble::Miscounted(got))
            }
            Ok(Err(error)) => {
                tracing::warn!(
                    batch.name = %self.batcher,
                    batch.size = commands.len(),
                    error = &error as &(dyn std::error::Error + 'static),
                    "batch failed",
                );
                Err(Trouble::Failed(error))
            }
            Err(panic) => {
                tracing::error!(
                    batch.name = %self.batcher,
                    batch.size = commands.len(),
                    panic = message(&*panic),
                    "batch panicked",
                );
                Err(Trouble::Panicked)
            }
        }
    }

    /// Whether running them one by one would tell nobody more.
    fn is_final(&self, commands: &[G::Command], error: &G::Error) -> bool {
        commands.len() == 1 || self.group.is_everyones(error)
    }

    fn report(&self, taken: &[Waiting<G>]) {
        // A size is far below what a float holds exactly.
        let size = u32::try_from(taken.len()).unwrap_or(u32::MAX);
        metrics::histogram!(SIZE_COMMANDS, "batch" => self.batcher.clone()).record(size);
        let waits = metrics::histogram!(WAIT_SECONDS, "batch" => self.batcher.clone());
        for waiting in taken {
            waits.record(waiting.caller.since.elapsed().as_secs_f64());
        }
    }
}

impl<G: Group> Worker for Runner<G> {
    fn name(&self) -> &str {
        &self.name
    }

    fn poll_interval(&self) -> Duration {
        POLL
    }

    fn wake(&self) -> Wake {
        self.wake.clone()
    }

    fn tick_limit(&self) -> Duration {
        self.options.limit
    }

    /// One batch. Never fails: a failure belongs to the commands that had it, and a worker
    /// that backs off would make the others wait.
    async fn tick(&self) -> Result<Tick, worker::Error> {
        Ok(self.run_batch().await)
    }

    /// Runs what has queued, and lets nobody in any more.
    async fn release(&self) {
        self.queue.close();
        while self.run_batch().await == Tick::Worked {}
    }
}

impl<G: Group> Drop for Runner<G> {
    fn drop(&mut self) {
        self.queue.runner_ended();
    }
}

pub(super) fn count<R, E: std::error::Error>(batcher: &str, ended: &Result<R, Error<E>>) {
    let outcome = match ended {
        Ok(_) => "done",
        Err(Error::Refused(_)) => "refused",
        Err(Error::Failed(_)) => "failed",
        Err(Error::Panicked) => "panicked",
        Err(Error::Overloaded) => "overloaded",
        Err(Error::Stopped) => "stopped",
        Err(Error::Cut) => "cut",
        Err(Error::Miscounted { .. }) => "miscounted",
    };
    metrics::counter!(COMMANDS_TOTAL, "batch" => batcher.to_owned(), "outcome" => outcome)
        .increment(1);
}

fn answer<G: Group>(caller: Caller<G>, outcome: Outcome<G>) {
    // Whoever has gone does not need to know.
    caller.reply.send(outcome).unwrap_or_default();
}

fn message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("no message")
}
