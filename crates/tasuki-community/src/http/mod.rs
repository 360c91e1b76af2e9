//! What others ask by HTTP.

mod search;

use sqlx::PgPool;
use tasuki_service::auth::Scope;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// May search.
struct Read;

impl Scope for Read {
    const NAME: &'static str = "community:read";
}

/// What handlers need.
#[derive(Clone, Debug)]
pub(crate) struct App {
    pub(crate) pool: PgPool,
}

pub(crate) fn routes(app: App) -> OpenApiRouter {
    OpenApiRouter::new()
        .routes(routes!(search::search))
        .with_state(app)
}
