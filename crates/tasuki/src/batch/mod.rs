//! Group commit: commands that wait at the same time share one transaction.
//!
//! Callers [`submit`](Batcher::submit) one command each and wait for its reply. A [`Group`]
//! runs whatever has queued while its last batch ran, so batches grow with the load and an
//! idle system adds no wait. There is no timer.
//!
//! Promised: commands are taken in the order in which they came. A batch that fails as a
//! whole is run again one by one, so that one bad command never fails another; a panic is
//! such a failure. A full queue refuses instead of growing. A stop runs what has queued.
//!
//! Not promised: that a command runs only once. An error does not prove that nothing was
//! committed, and the same command is run again after it; a group makes its commands
//! idempotent ([`idempotency::Keys::open_all`](crate::idempotency::Keys::open_all)), or fences
//! them row by row.
//!
//! A batch is a tick of a [`Worker`](crate::worker::Worker): [`Batcher::start`] hands it to
//! the supervisor.

mod queue;
mod runner;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::worker::{Supervisor, Wake};
use queue::Queue;
use runner::Runner;

/// Runs commands together.
pub trait Group: Send + Sync + 'static {
    /// What is asked for.
    type Command: Send + Sync + 'static;
    /// What a command that was done gets.
    type Reply: Send + 'static;
    /// Why a command, or a whole batch, was not done.
    type Error: std::error::Error + Send + Sync + 'static;

    /// Runs `commands` in one transaction and commits it: one verdict for each, in their
    /// order. An error instead of verdicts means that none of them is known to be done; they are
    /// run again, alone. It must be safe to run a command twice.
    fn run(
        &self,
        commands: &[Self::Command],
    ) -> impl Future<Output = Ran<Self::Reply, Self::Error>> + Send;

    /// Whether `error`, of a whole batch, has nothing to do with its commands: the database is
    /// away, say. Everybody is told then, and nobody waits until each of them has failed alone.
    fn is_everyones(&self, error: &Self::Error) -> bool {
        let _ = error;
        false
    }
}

/// How a [`Batcher`] fills its batches.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    max_batch: usize,
    queue: usize,
    wait: Duration,
    concurrency: usize,
    limit: Duration,
}

/// Why a command was not done, or nobody knows.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error<E: std::error::Error + 'static> {
    /// The queue is full. The command was not run.
    #[error("too many commands are waiting")]
    Overloaded,
    /// The batcher has stopped. The command was not run.
    #[error("the batcher has stopped")]
    Stopped,
    /// The group decided against this command.
    #[error("the command was refused")]
    Refused(#[source] E),
    /// The transaction of this command failed. It may have been done: repeat it.
    #[error("the batch failed")]
    Failed(#[source] Arc<E>),
    /// Running this command panicked.
    #[error("the command panicked")]
    Panicked,
    /// It was cut off while it ran. It may have been done: repeat it.
    #[error("the command was cut off")]
    Cut,
    /// The group gave another number of verdicts than it had commands. They may have been done.
    #[error("the group gave {got} verdicts for {expected} commands")]
    Miscounted {
        /// How many commands it had.
        expected: usize,
        /// How many verdicts it gave.
        got: usize,
    },
}

/// What running a batch comes to: a verdict on each command, or an error of the whole.
pub type Ran<R, E> = Result<Vec<Result<R, E>>, E>;

/// How a command of a [`Group`] ended.
pub type Outcome<G> = Result<<G as Group>::Reply, Error<<G as Group>::Error>>;

/// Takes commands one by one and has them run together. Clones share one queue.
pub struct Batcher<G: Group> {
    name: String,
    group: Arc<G>,
    options: Options,
    queue: Arc<Queue<G>>,
    wake: Wake,
}

impl<G: Group> Batcher<G> {
    /// A batcher that has commands run by `group`. `name` (`<service>.<noun>`) names it in
    /// logs and metrics.
    #[must_use]
    pub fn new(name: &str, group: G, options: Options) -> Self {
        Self {
            name: name.to_owned(),
            group: Arc::new(group),
            options,
            queue: Arc::new(Queue::new(options.queue)),
            wake: Wake::default(),
        }
    }

    /// Lets `supervisor` run the batches. Commands wait until it does.
    pub fn start(&self, supervisor: &Supervisor) {
        for number in 1..=self.options.concurrency {
            let name = match number {
                1 => self.name.clone(),
                more => format!("{}-{more}", self.name),
            };
            let runner = Runner::new(
                name,
                &self.name,
                Arc::clone(&self.group),
                self.options,
                Arc::clone(&self.queue),
                &self.wake,
            );
            supervisor.start(runner);
        }
    }

    /// Has `command` run with whatever else waits, and waits for its reply.
    ///
    /// A caller that goes away before its command was taken takes it along; later, the command
    /// runs all the same.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn submit(&self, command: G::Command) -> Outcome<G> {
        let place = self.queue.admit(self.options.wait).await;
        let answer = place.and_then(|place| self.queue.push(place, command));
        let outcome = match answer {
            Ok(answer) => {
                self.wake.wake();
                answer.await.unwrap_or(Err(Error::Cut))
            }
            Err(refused) => Err(refused.into()),
        };
        runner::count(&self.name, &outcome);
        outcome
    }
}

impl Options {
    /// At most this many commands in one batch, at least one. More share one commit, and are
    /// run one by one if it fails.
    #[must_use]
    pub fn max_batch(mut self, commands: usize) -> Self {
        self.max_batch = commands.max(1);
        self
    }

    /// At most this many commands wait, at least one.
    #[must_use]
    pub fn queue(mut self, commands: usize) -> Self {
        self.queue = commands.clamp(1, tokio::sync::Semaphore::MAX_PERMITS);
        self
    }

    /// How long a command waits for a place in a full queue before it is refused.
    #[must_use]
    pub fn wait(mut self, wait: Duration) -> Self {
        self.wait = wait;
        self
    }

    /// How many batches run at once, at least one. With more than one, commands can overtake.
    #[must_use]
    pub fn concurrency(mut self, batches: usize) -> Self {
        self.concurrency = batches.max(1);
        self
    }

    /// How long a batch may take, with running it one by one, before it is cut off.
    #[must_use]
    pub fn limit(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }
}

impl Default for Options {
    /// Up to 256 commands in a batch, one batch at a time, within 30 seconds; 4096 may wait,
    /// and are refused at once beyond.
    fn default() -> Self {
        Self {
            max_batch: 256,
            queue: 4096,
            wait: Duration::ZERO,
            concurrency: 1,
            limit: Duration::from_secs(30),
        }
    }
}

impl<G: Group> Clone for Batcher<G> {
    fn clone(&self) -> Self {
        Self {
            name: self.name.clone(),
            group: Arc::clone(&self.group),
            options: self.options,
            queue: Arc::clone(&self.queue),
            wake: self.wake.clone(),
        }
    }
}

impl<G: Group> fmt::Debug for Batcher<G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batcher")
            .field("name", &self.name)
            .field("options", &self.options)
            .field("waiting", &self.queue.len())
            .finish_non_exhaustive()
    }
}
