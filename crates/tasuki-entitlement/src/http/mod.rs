//! The API of entitlement.

mod access;
mod changes;
mod key;
mod reads;

use std::sync::Arc;

use tasuki::batch::Batcher;
use tokio::sync::Semaphore;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::commands::Commands;
use crate::queries::Queries;

/// What handlers need.
#[derive(Clone, Debug)]
pub(crate) struct App {
    /// Requests for one entitlement: those that wait together are served together.
    pub(crate) batcher: Batcher<Commands>,
    /// Requests for many: a batch each, one at a time. Each takes a lock per item, and the
    /// server's table of locks is everybody's.
    pub(crate) commands: Arc<Commands>,
    pub(crate) bulk: Arc<Semaphore>,
    pub(crate) queries: Queries,
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
