//! One compensation: tried as often as it may be, contained whatever it does.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::time::timeout;

use crate::retry::{self, Executor, Policy, Verdict};
use crate::worker::{self, panic_message};

/// Why a compensation failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UndoError {
    /// It said so.
    #[error(transparent)]
    Failed(worker::Error),
    /// It panicked, with this message. That is not tried again.
    #[error("it panicked: {0}")]
    Panicked(String),
    /// It took longer than it may.
    #[error("it took longer than {0:?}")]
    TimedOut(Duration),
}

type Undoing<'a> = BoxFuture<'a, Result<(), worker::Error>>;

/// How to undo an operation, any number of times.
pub(super) struct Undo<'a>(Box<dyn FnMut() -> Undoing<'a> + Send + 'a>);

impl<'a> Undo<'a> {
    pub(super) fn new<T, Z, U>(value: T, undo: impl Fn(T) -> U + Send + 'a) -> Self
    where
        T: Clone + Send + 'a,
        Z: Into<worker::Error>,
        U: Future<Output = Result<(), Z>> + Send + 'a,
    {
        Self(Box::new(move || {
            let undoing = undo(value.clone());
            Box::pin(undoing.map(|undone| undone.map_err(Into::into)))
        }))
    }

    pub(super) async fn run(
        &mut self,
        operation: &'static str,
        policy: &Policy,
        limit: Duration,
    ) -> Result<(), retry::Error<UndoError>> {
        let executor = Executor::new(operation).policy(policy.clone());
        let attempt = || {
            // The call that makes the future is the user's as well.
            let begun = catch_unwind(AssertUnwindSafe(|| (self.0)()));
            async move {
                let undoing = begun.map_err(|panic| UndoError::Panicked(panic_message(&*panic)))?;
                contained(undoing, limit).await
            }
        };
        executor.run_judged(verdict, attempt).await
    }
}

async fn contained(undoing: Undoing<'_>, limit: Duration) -> Result<(), UndoError> {
    match timeout(limit, AssertUnwindSafe(undoing).catch_unwind()).await {
        Ok(Ok(undone)) => undone.map_err(UndoError::Failed),
        Ok(Err(panic)) => Err(UndoError::Panicked(panic_message(&*panic))),
        Err(_late) => Err(UndoError::TimedOut(limit)),
    }
}

fn verdict(error: &UndoError) -> Verdict {
    match error {
        UndoError::Failed(_) | UndoError::TimedOut(_) => Verdict::Retry,
        UndoError::Panicked(_) => Verdict::Reject,
    }
}
