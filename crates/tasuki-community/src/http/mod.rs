//! What others ask by HTTP.

mod pressure;
mod search;
mod trust;

use sqlx::PgPool;
use tasuki_service::auth::Scope;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::node::Keys;
use crate::pressure::Pressure;
use crate::trust::Scores;

/// May search.
struct Read;

impl Scope for Read {
    const NAME: &'static str = "community:read";
}

/// What handlers need.
#[derive(Clone, Debug)]
pub(crate) struct App {
    pub(crate) pool: PgPool,
    /// Connections whose plans know what is searched for.
    pub(crate) searches: PgPool,
    pub(crate) pressure: Pressure,
    /// How scores are made.
    pub(crate) scores: Scores,
    /// Those of the node, if it has any.
    pub(crate) keys: Option<Keys>,
}

pub(crate) fn routes(app: App) -> OpenApiRouter {
    OpenApiRouter::new()
        .routes(routes!(search::search))
        .routes(routes!(pressure::pressure))
        .routes(routes!(trust::risk))
        .routes(routes!(trust::density))
        .with_state(app)
}
