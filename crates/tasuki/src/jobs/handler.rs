//! What runs a job, what it is told, and how it may fail.

use std::future::Future;
use std::time::Duration;

use sqlx::PgConnection;
use tokio_util::sync::CancellationToken;

use super::{BoxError, Job, JobId};
use crate::is_away;
use crate::retry::{Judged, Verdict};

/// How long a job waits whose database can't be reached: that is not the job's fault.
const UNREACHABLE: Duration = Duration::from_secs(5);

/// Runs jobs of one type.
///
/// Any `async fn(J, Context) -> Result<(), E>` is one, and so is such a closure, where `E` is a
/// [`Failure`] or whatever `?` turns into one. Implement the trait to have [`failed`](Self::failed).
///
/// An attempt may be repeated: the process can die after the work and before that was recorded.
pub trait Handler<J: Job>: Send + Sync + 'static {
    /// Does the work. At the timeout, when the claim is lost, and when the grace time of a stop is
    /// over, the future is dropped at its next await.
    fn run(&self, job: J, context: Context) -> impl Future<Output = Result<(), Failure>> + Send;

    /// Called when the job is dead, in the transaction in which it dies: what this writes commits
    /// with the dead letter. It continues the job's trace, as [`run`](Self::run) does. The job is dead all the same if this fails, panics or takes longer
    /// than five seconds; only its own writes are undone then.
    fn failed(
        &self,
        _connection: &mut PgConnection,
        _job: &J,
        _error: &str,
    ) -> impl Future<Output = Result<(), BoxError>> + Send {
        async { Ok(()) }
    }
}

impl<J, F, R, E> Handler<J> for F
where
    J: Job,
    F: Fn(J, Context) -> R + Send + Sync + 'static,
    R: Future<Output = Result<(), E>> + Send,
    E: Into<Failure>,
{
    async fn run(&self, job: J, context: Context) -> Result<(), Failure> {
        self(job, context).await.map_err(Into::into)
    }
}

/// What an attempt knows of itself.
#[derive(Clone, Debug)]
pub struct Context {
    pub(super) id: JobId,
    pub(super) attempt: u32,
    pub(super) tries: u32,
    pub(super) traceparent: Option<String>,
    pub(super) cancelled: CancellationToken,
    pub(super) stopping: CancellationToken,
}

impl Context {
    /// The job. The same in every attempt, so a good idempotency key for what it calls.
    #[must_use]
    pub const fn id(&self) -> JobId {
        self.id
    }

    /// Which attempt this is; the first is 1.
    #[must_use]
    pub const fn attempt(&self) -> u32 {
        self.attempt
    }

    /// Whether the job is dead if this attempt fails.
    #[must_use]
    pub const fn is_last_attempt(&self) -> bool {
        self.attempt >= self.tries
    }

    /// The trace of whoever enqueued the job.
    #[must_use]
    pub fn traceparent(&self) -> Option<&str> {
        self.traceparent.as_deref()
    }

    /// Cancelled when this attempt is over: it timed out, its claim was lost, it was cut by a stop,
    /// or it returned. For what the handler has started elsewhere, threads say; the handler itself
    /// is simply dropped.
    #[must_use]
    pub const fn cancelled(&self) -> &CancellationToken {
        &self.cancelled
    }

    /// Cancelled when the worker is asked to stop: a job that can't finish within the grace time
    /// may save its place and return [`Failure::snooze`].
    #[must_use]
    pub const fn stopping(&self) -> &CancellationToken {
        &self.stopping
    }
}

/// An attempt that failed: why, and whether another one can help.
///
/// `?` turns any [`std::error::Error`] into one that is tried again and costs an attempt, unless the
/// error, or one of its sources, is a database that can't be reached ([`is_away`]): that costs none,
/// if the pool gives up ([`PoolOptions::acquire_timeout`]) before the job's timeout does. An error that
/// knows better goes through [`Failure::judged`]; a boxed one, or that of `anyhow`, is no
/// `std::error::Error` and goes through [`Failure::retry`].
///
/// [`PoolOptions::acquire_timeout`]: sqlx::pool::PoolOptions::acquire_timeout
#[derive(Debug)]
pub struct Failure {
    verdict: Verdict,
    error: BoxError,
}

impl Failure {
    /// To be tried again after the job's backoff.
    pub fn retry(error: impl Into<BoxError>) -> Self {
        Self::new(Verdict::Retry, error.into())
    }

    /// To be tried again after `pause`, because somebody asked for it. Costs an attempt.
    pub fn retry_after(pause: Duration, error: impl Into<BoxError>) -> Self {
        Self::new(Verdict::RetryAfter(pause), error.into())
    }

    /// Not now: again after `pause`, without the cost of an attempt.
    pub fn snooze(pause: Duration, error: impl Into<BoxError>) -> Self {
        Self::new(Verdict::Snooze(pause), error.into())
    }

    /// Never again: dead at once.
    pub fn reject(error: impl Into<BoxError>) -> Self {
        Self::new(Verdict::Reject, error.into())
    }

    /// What the error itself says of another attempt.
    pub fn judged(error: impl Judged + std::error::Error + Send + Sync + 'static) -> Self {
        Self::new(error.verdict(), error.into())
    }

    /// Whether another attempt can help.
    #[must_use]
    pub const fn verdict(&self) -> Verdict {
        self.verdict
    }

    /// What went wrong.
    #[must_use]
    pub fn error(&self) -> &(dyn std::error::Error + Send + Sync + 'static) {
        &*self.error
    }

    fn new(verdict: Verdict, error: BoxError) -> Self {
        Self { verdict, error }
    }
}

impl<E: std::error::Error + Send + Sync + 'static> From<E> for Failure {
    fn from(error: E) -> Self {
        let mut levels = std::iter::successors(
            Some(&error as &(dyn std::error::Error + 'static)),
            |error| error.source(),
        );
        if levels.any(is_unreachable) {
            Self::snooze(UNREACHABLE, error)
        } else {
            Self::retry(error)
        }
    }
}

/// Whether this is a database that can't be reached, as opposed to one that answered.
fn is_unreachable(error: &(dyn std::error::Error + 'static)) -> bool {
    error.downcast_ref().is_some_and(is_away)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("the order could not be read")]
    struct Outer(#[source] sqlx::Error);

    #[test]
    fn an_error_is_tried_again_and_an_unreachable_database_costs_nothing() {
        let failure = Failure::from(Outer(sqlx::Error::RowNotFound));
        assert_eq!(failure.verdict(), Verdict::Retry);
        let failure = Failure::from(Outer(sqlx::Error::PoolTimedOut));
        assert_eq!(failure.verdict(), Verdict::Snooze(UNREACHABLE));
    }
}
