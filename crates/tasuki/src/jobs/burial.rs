//! What belongs to the death of a job: its handler's `failed` runs in the transaction in which the job
//! dies, and in its trace.

use std::panic::AssertUnwindSafe;
use std::time::Duration;

use futures_util::FutureExt;
use sqlx::{Connection, PgConnection};
use tokio::time::timeout;
use tracing::{Instrument, Span};

use super::registry::AnyHandler;
use super::store::{Buried, limit_statements};
use crate::lease;
use crate::worker::panic_message;

/// How long a handler's `failed` may take: the settlements of the queue wait for it.
const HOOK_LIMIT: Duration = Duration::from_secs(5);

/// Lets the handler do what belongs to a death. Whatever goes wrong, the job stays dead and the
/// others' effects stay.
pub(super) async fn bury(
    handler: &dyn AnyHandler,
    adopt: fn(&Span, &str),
    connection: &mut PgConnection,
    job: &Buried,
    error: &str,
) -> sqlx::Result<()> {
    let span = tracing::info_span!("job_failed", job.id = %job.id, job.kind);
    if let Some(traceparent) = &job.traceparent {
        adopt(&span, traceparent);
    }
    let mut savepoint = connection.begin().await?;
    // The timeout below can't cut what waits inside the database: its answer has to come
    // before the savepoint can be rolled back.
    limit_statements(&mut savepoint, HOOK_LIMIT).await?;
    let hook = handler.failed(&mut savepoint, &job.payload, error);
    let hook = AssertUnwindSafe(hook.instrument(span)).catch_unwind();
    let wrong: String = match timeout(HOOK_LIMIT, hook).await {
        Ok(Ok(Ok(()))) => match savepoint.commit().await {
            Ok(()) => return Ok(()),
            // Dropped with the savepoint's handle: what the hook did is undone.
            Err(error) => lease::told(&error),
        },
        Ok(Ok(Err(error))) => {
            savepoint.rollback().await?;
            lease::told(&*error)
        }
        Ok(Err(panic)) => {
            savepoint.rollback().await?;
            format!("panicked: {}", panic_message(&*panic))
        }
        Err(_elapsed) => {
            savepoint.rollback().await?;
            format!("timed out after {HOOK_LIMIT:?}")
        }
    };
    tracing::error!(
        job.id = %job.id,
        job.kind,
        error = wrong,
        "the failed hook of a dead job failed",
    );
    Ok(())
}
