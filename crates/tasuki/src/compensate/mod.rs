//! Compensation in memory: operations in order, and if one fails, those before it undone in
//! reverse.
//!
//! ```
//! # use tasuki::compensate::{Compensations, Failed};
//! # #[derive(Clone)] struct Hold(u32);
//! # type Outcome<T> = Result<T, std::io::Error>;
//! # async fn reserve(_: &str) -> Outcome<Hold> { Ok(Hold(1)) }
//! # async fn release(_: Hold) -> Outcome<()> { Ok(()) }
//! # async fn charge(_: &Hold) -> Outcome<u64> { Ok(2) }
//! # async fn refund(_: u64) -> Outcome<()> { Ok(()) }
//! # async fn confirm(_: u64) -> Outcome<()> { Ok(()) }
//! async fn order() -> Result<u64, Failed<std::io::Error>> {
//!     let mut order = Compensations::new("order");
//!     let hold = order.run("reserve", reserve("sword"), release).await?;
//!     let payment = order.run("charge", charge(&hold), |id| refund(id)).await?;
//!     order.run_without_undo("confirm", confirm(payment)).await?;
//!     order.finish();
//!     Ok(payment)
//! }
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() { assert_eq!(order().await.unwrap(), 2); }
//! ```
//!
//! What holds:
//! - When an operation fails, what completed before it is undone, the last first, before the
//!   failure is returned. [`Failed`] has the operation's name, its own error, and what became of
//!   the compensations.
//! - A compensation that fails, panics or takes too long keeps no other from running. It is
//!   logged at level `ERROR` with `critical = true`, and is in [`Failed::uncompensated`].
//! - An operation that panics is undone for like one that fails; then its panic goes on.
//! - Each completion and each compensation is logged.
//!
//! Not promised: anything that outlives this process, or this future. A future that is dropped
//! half-way (a time limit, a client that hangs up) can await nothing any more: nothing is undone
//! then, and the log says at level `ERROR` what was left. The same if
//! [`finish`](Compensations::finish) is forgotten. What must be undone whatever happens is a
//! saga, not this. Nor is a failed operation itself undone: one that failed may have had its
//! effect all the same (an answer that got lost), so give it an idempotency key, or let its
//! predecessor's compensation cover it.
//!
//! # Metrics
//! `tasuki_compensations_total` by `operation` and `outcome` (`compensated`, `failed`,
//! `abandoned`).

mod undo;

use std::fmt;
use std::future::Future;
use std::panic::{AssertUnwindSafe, resume_unwind};
use std::time::Duration;

use futures_util::FutureExt;

use self::undo::Undo;
use crate::retry::{self, Backoff, Policy};
use crate::worker::{self, panic_message};

pub use undo::UndoError;

/// Operations by what became of their compensation.
const COMPENSATIONS_TOTAL: &str = "tasuki_compensations_total";
/// How long one attempt to compensate may take.
const LIMIT: Duration = Duration::from_secs(30);

/// Runs operations and remembers how to undo them. End it with [`finish`](Self::finish).
#[must_use = "operations are run by it, and kept by `finish`"]
pub struct Compensations<'a> {
    name: &'static str,
    policy: Policy,
    limit: Duration,
    /// What is being run: if this is dropped meanwhile, nobody knows its outcome.
    running: Option<&'static str>,
    done: Vec<Done<'a>>,
}

/// A completed operation.
struct Done<'a> {
    operation: &'static str,
    undo: Undo<'a>,
}

/// An operation that failed, and what became of those before it.
#[derive(Debug, thiserror::Error)]
#[error("{operation} failed{}", Left(.uncompensated))]
#[non_exhaustive]
pub struct Failed<E> {
    /// The operation that failed.
    pub operation: &'static str,
    /// What it failed with.
    #[source]
    pub error: E,
    /// The operations that were undone, in the order in which they were.
    pub compensated: Vec<&'static str>,
    /// Those that could not be undone: their effects are still there, and somebody has to look.
    pub uncompensated: Vec<Uncompensated>,
}

/// An operation whose compensation failed.
#[derive(Debug)]
#[non_exhaustive]
pub struct Uncompensated {
    /// The operation that is not undone.
    pub operation: &'static str,
    /// What its compensation failed with, and how often.
    pub error: retry::Error<UndoError>,
}

impl<'a> Compensations<'a> {
    /// Nothing yet, under the name that the log has.
    pub fn new(name: &'static str) -> Self {
        Self {
            name,
            policy: Policy::new(1, Backoff::default()),
            limit: LIMIT,
            running: None,
            done: Vec::new(),
        }
    }

    /// Tries a compensation that failed again, as often as `policy` says. Without this, each is
    /// tried once.
    pub fn retrying(mut self, policy: Policy) -> Self {
        self.policy = policy;
        self
    }

    /// How long one attempt to compensate may take (30 s). Then it has failed.
    pub const fn undo_within(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// Runs `work`, and remembers that `undo` undoes it: it is given a copy of what `work`
    /// returned, once per attempt.
    ///
    /// # Errors
    /// When `work` fails. Everything that completed before it has been compensated then, or is
    /// named in the error.
    pub async fn run<T, E, Z, U>(
        &mut self,
        operation: &'static str,
        work: impl Future<Output = Result<T, E>>,
        undo: impl Fn(T) -> U + Send + 'a,
    ) -> Result<T, Failed<E>>
    where
        T: Clone + Send + 'a,
        E: fmt::Display,
        Z: Into<worker::Error>,
        U: Future<Output = Result<(), Z>> + Send + 'a,
    {
        let value = self.run_without_undo(operation, work).await?;
        let undo = Undo::new(value.clone(), undo);
        self.done.push(Done { operation, undo });
        Ok(value)
    }

    /// Runs `work`, which leaves nothing to undo: it only reads, or nothing can fail after it.
    ///
    /// # Errors
    /// Those of [`run`](Self::run).
    pub async fn run_without_undo<T, E: fmt::Display>(
        &mut self,
        operation: &'static str,
        work: impl Future<Output = Result<T, E>>,
    ) -> Result<T, Failed<E>> {
        self.running = Some(operation);
        let ended = AssertUnwindSafe(work).catch_unwind().await;
        self.running = None;
        match ended {
            Ok(Ok(value)) => {
                tracing::info!(compensations = self.name, operation, "operation completed");
                Ok(value)
            }
            Ok(Err(error)) => Err(self.fail(operation, error).await),
            Err(panic) => {
                let message = panic_message(&*panic);
                // What it could not undo is in the log; a panic carries no report.
                let Failed { .. } = self.fail(operation, message).await;
                resume_unwind(panic)
            }
        }
    }

    /// Compensates everything that completed, the last first, because `operation` failed with
    /// `error`: for a failure that is found between two operations.
    pub async fn fail<E: fmt::Display>(&mut self, operation: &'static str, error: E) -> Failed<E> {
        tracing::warn!(
            compensations = self.name,
            operation,
            completed = self.done.len(),
            error = format!("{error:#}"),
            "operation failed, compensating",
        );
        let mut failed = Failed {
            operation,
            error,
            compensated: Vec::new(),
            uncompensated: Vec::new(),
        };
        // One stays in the list until its compensation has ended: dropped, it is told of.
        while let Some(Done { operation, undo }) = self.done.last_mut() {
            let operation = *operation;
            let undone = undo.run(operation, &self.policy, self.limit).await;
            self.done.pop();
            match undone {
                Ok(()) => {
                    self.tell_compensated(operation);
                    failed.compensated.push(operation);
                }
                Err(error) => {
                    self.tell_critical(operation, &error);
                    let left = Uncompensated { operation, error };
                    failed.uncompensated.push(left);
                }
            }
        }
        failed
    }

    /// All is well: nothing is to be undone any more.
    pub fn finish(mut self) {
        let operations = self.done.len();
        self.done.clear();
        tracing::info!(compensations = self.name, operations, "finished");
    }

    fn tell_compensated(&self, operation: &'static str) {
        count(operation, "compensated");
        tracing::info!(
            compensations = self.name,
            operation,
            "operation compensated"
        );
    }

    fn tell_critical(&self, operation: &'static str, error: &retry::Error<UndoError>) {
        count(operation, "failed");
        tracing::error!(
            critical = true,
            compensations = self.name,
            operation,
            attempts = error.attempts,
            error = error as &(dyn std::error::Error + 'static),
            "compensation failed: what the operation did is still there",
        );
    }
}

impl Drop for Compensations<'_> {
    /// There is nobody left to compensate, but somebody to tell.
    fn drop(&mut self) {
        for Done { operation, .. } in &self.done {
            count(operation, "abandoned");
        }
        let left: Vec<&str> = self.done.iter().map(|done| done.operation).collect();
        if left.is_empty() && self.running.is_none() {
            return;
        }
        tracing::error!(
            critical = true,
            compensations = self.name,
            operations = left.join(", "),
            unknown = self.running.unwrap_or_default(),
            "dropped before its end: what these operations did is still there",
        );
    }
}

impl fmt::Debug for Compensations<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let done: Vec<&str> = self.done.iter().map(|done| done.operation).collect();
        f.debug_struct("Compensations")
            .field("name", &self.name)
            .field("running", &self.running)
            .field("done", &done)
            .finish_non_exhaustive()
    }
}

impl<E> Failed<E> {
    /// The operation's own error, for whoever does not care for the rest.
    pub fn into_error(self) -> E {
        self.error
    }

    /// The same with another error in its place.
    pub fn map<F>(self, map: impl FnOnce(E) -> F) -> Failed<F> {
        Failed {
            operation: self.operation,
            error: map(self.error),
            compensated: self.compensated,
            uncompensated: self.uncompensated,
        }
    }
}

/// The end of the sentence, which is there only if somebody has to look.
struct Left<'a>(&'a [Uncompensated]);

impl fmt::Display for Left<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let left: Vec<&str> = self.0.iter().map(|left| left.operation).collect();
        match left.is_empty() {
            true => Ok(()),
            false => write!(f, ", and could not be compensated: {}", left.join(", ")),
        }
    }
}

fn count(operation: &'static str, outcome: &'static str) {
    metrics::counter!(COMPENSATIONS_TOTAL, "operation" => operation, "outcome" => outcome)
        .increment(1);
}
