//! What others ask by HTTP.

mod pressure;
mod search;

use sqlx::PgPool;
use tasuki_service::auth::Scope;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::pressure::Pressure;

/// May search.
struct Read;

impl Scope for Read {
    const NAME: &'static str = "community:read";
}

/// What handlers need.
#[derive(Clone, Debug)]
pub(crate) struct App {
    pub(crate) pool: PgPool,
    pub(crate) pressure: Pressure,
}

pub(crate) fn routes(app: App) -> OpenApiRouter {
    OpenApiRouter::new()
        .routes(routes!(search::search))
        .routes(routes!(pressure::pressure))
        .with_state(app)
}
