//! The API of entitlement.

mod access;
mod changes;
mod reads;

use std::sync::Arc;
use std::time::Duration;

use tasuki::batch::{self, Batcher};
use tasuki_contract::names::InvalidName;
use tasuki_service::http::ApiError;
use tokio::sync::Semaphore;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::commands::Commands;
use crate::queries::{Lists, Queries};

/// What handlers need.
#[derive(Clone, Debug)]
pub(crate) struct App {
    /// Requests for one entitlement: those that wait together are served together.
    pub(crate) batcher: Batcher<Commands>,
    /// Requests for many: a batch each, one at a time. Each takes a lock per item, and the
    /// server's table of locks is everybody's.
    pub(crate) commands: Arc<Commands>,
    pub(crate) bulk: Arc<Semaphore>,
    /// How long a request waits for what another one holds.
    pub(crate) wait: Duration,
    pub(crate) queries: Queries,
    /// Whole lists: those that are asked for together are read together.
    pub(crate) lists: Batcher<Lists>,
}

pub(crate) fn routes(app: App) -> OpenApiRouter {
    OpenApiRouter::new()
        .routes(routes!(changes::grant))
        .routes(routes!(changes::revoke))
        .routes(routes!(changes::consume))
        .routes(routes!(changes::grant_many))
        .routes(routes!(changes::revoke_many))
        .routes(routes!(reads::list))
        .routes(routes!(reads::check))
        .routes(routes!(reads::history))
        .with_state(app)
}

/// What a caller is told whose request was in a batch that came to nothing; `failed` tells of the
/// group's own errors.
fn batch_failed<E: std::error::Error + 'static>(
    error: &batch::Error<E>,
    failed: fn(&E) -> ApiError,
) -> ApiError {
    match error {
        batch::Error::Refused(error) => failed(error),
        batch::Error::Failed(error) => failed(error),
        batch::Error::Overloaded => ApiError::unavailable("too many requests wait, try again"),
        batch::Error::Stopped | batch::Error::Cut => {
            ApiError::unavailable("the service stops, try again")
        }
        other => ApiError::internal(other),
    }
}

/// A name that somebody sent in `field` of what is at `at`.
fn named<N: TryFrom<String, Error = InvalidName>>(
    at: &str,
    field: &str,
    text: String,
) -> Result<N, ApiError> {
    N::try_from(text).map_err(|why| ApiError::bad_request(format!("{at}{field} {why}")))
}
