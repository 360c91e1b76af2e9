//! Which handler runs which kind, and one attempt from its payload to its outcome.

use std::marker::PhantomData;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use sqlx::PgConnection;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use super::job::check;
use super::tally::Tally;
use super::{BoxError, Context, Failure, Handler, Job, JobId};
use crate::lease::{Outcome, told};
use crate::retry::{Next, Policy};
use crate::worker::panic_message;

/// The handlers of this release, one per kind. Queues share it: whichever queue a job is in, its
/// kind says who runs it.
#[derive(Clone, Default)]
pub struct Registry {
    pub(super) handlers: Vec<Arc<dyn AnyHandler>>,
}

impl std::fmt::Debug for Registry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kinds = self.handlers.iter().map(|handler| handler.kind());
        f.debug_set().entries(kinds).finish()
    }
}

impl Registry {
    /// A registry that knows nothing yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Runs jobs of type `J` with `handler`.
    #[must_use]
    pub fn on<J: Job, H: Handler<J>>(mut self, handler: H) -> Self {
        const { check::<J>() };
        self.handlers.push(Arc::new(Typed {
            handler,
            job: PhantomData::<fn() -> J>,
        }));
        self
    }
}

/// An attempt to be made.
pub(super) struct Attempt {
    pub(super) id: JobId,
    pub(super) failed_attempts: u32,
    pub(super) waited: Duration,
    pub(super) payload: String,
    pub(super) traceparent: Option<String>,
    pub(super) stopping: CancellationToken,
}

/// A handler whose job type is forgotten.
pub(super) trait AnyHandler: Send + Sync {
    fn kind(&self) -> &'static str;

    /// Makes one attempt.
    fn attempt<'a>(&'a self, attempt: Attempt, tally: &'a Tally) -> BoxFuture<'a, Outcome<()>>;

    /// Tells the handler that a job is dead.
    fn failed<'a>(
        &'a self,
        connection: &'a mut PgConnection,
        payload: &'a str,
        error: &'a str,
    ) -> BoxFuture<'a, Result<(), BoxError>>;
}

struct Typed<J, H> {
    handler: H,
    job: PhantomData<fn() -> J>,
}

impl<J: Job, H: Handler<J>> AnyHandler for Typed<J, H> {
    fn kind(&self) -> &'static str {
        J::KIND
    }

    fn attempt<'a>(&'a self, attempt: Attempt, tally: &'a Tally) -> BoxFuture<'a, Outcome<()>> {
        Box::pin(self.make(attempt, tally))
    }

    fn failed<'a>(
        &'a self,
        connection: &'a mut PgConnection,
        payload: &'a str,
        error: &'a str,
    ) -> BoxFuture<'a, Result<(), BoxError>> {
        Box::pin(async move {
            // Nobody can be told of a job that can't be read; its letter has the payload.
            let Ok(job) = serde_json::from_str::<J>(payload) else {
                return Ok(());
            };
            self.handler.failed(connection, &job, error).await
        })
    }
}

impl<J: Job, H: Handler<J>> Typed<J, H> {
    async fn make(&self, attempt: Attempt, tally: &Tally) -> Outcome<()> {
        let job: J = match serde_json::from_str(&attempt.payload) {
            Ok(job) => job,
            Err(error) => {
                let error = format!("the payload can't be read: {error}");
                return Outcome::Dead { error };
            }
        };
        let policy = Policy::new(job.tries().max(1), job.backoff());
        if attempt.failed_attempts >= policy.max_attempts {
            // Failures bury a job themselves: its tries have become fewer since.
            let error = "there is no attempt left".to_owned();
            return Outcome::Dead { error };
        }
        let number = attempt.failed_attempts.saturating_add(1);
        let cancelled = CancellationToken::new();
        // Fires however this ends, also when it is dropped half-way.
        let _over = cancelled.clone().drop_guard();
        let context = Context {
            id: attempt.id,
            attempt: number,
            tries: policy.max_attempts,
            traceparent: attempt.traceparent,
            cancelled,
            stopping: attempt.stopping,
        };
        tally.started(attempt.waited);
        let began = Instant::now();
        match self.contained(job, context, tally).await {
            Ok(()) => {
                tally.finished(began.elapsed());
                Outcome::Done(())
            }
            Err(failure) => {
                tally.failed(began.elapsed());
                outcome(&policy, number, &failure)
            }
        }
    }

    /// Runs the handler; a timeout and a panic are failures.
    async fn contained(&self, job: J, context: Context, tally: &Tally) -> Result<(), Failure> {
        let limit = job.timeout();
        // Inside the block, so that a handler that panics before its first await is contained, too.
        let run = AssertUnwindSafe(async { self.handler.run(job, context).await }).catch_unwind();
        match timeout(limit, run).await {
            Ok(Ok(ended)) => ended,
            Ok(Err(panic)) => Err(Failure::retry(format!(
                "panicked: {}",
                panic_message(&*panic)
            ))),
            Err(_elapsed) => {
                tally.timed_out();
                Err(Failure::retry(format!("timed out after {limit:?}")))
            }
        }
    }
}

/// What becomes of a job whose attempt failed.
fn outcome(policy: &Policy, attempt: u32, failure: &Failure) -> Outcome<()> {
    let error = told(failure.error());
    match policy.next(attempt, failure.verdict()) {
        Next::Retry(after) => Outcome::Retry { after, error },
        Next::Snooze(after) => Outcome::Snooze { after, error },
        Next::Dead => Outcome::Dead { error },
    }
}
