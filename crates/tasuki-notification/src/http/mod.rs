//! The API of notification.

mod access;
mod debug;
mod inbox;
mod preferences;
mod stream;
mod webhooks;

use std::time::Duration;

use sqlx::PgPool;
use tasuki::Clock;
use tasuki::worker::Bell;
use tasuki_contract::names::UserId;
use tasuki_service::http::ApiError;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::live::Followed;
use crate::webhook::address::Guard;
use crate::webhook::send::Sender;

/// What handlers need.
#[derive(Clone, Debug)]
pub(crate) struct App {
    pub(crate) pool: PgPool,
    pub(crate) clock: Clock,
    pub(crate) followed: Followed,
    pub(crate) stream_lifetime: Duration,
    pub(crate) guard: Guard,
    pub(crate) sender: Sender,
    pub(crate) deliveries: Bell,
    pub(crate) rotation_overlap: Duration,
    pub(crate) endpoints_per_user: u32,
}

pub(crate) fn routes(app: App, debug_inbox: bool) -> OpenApiRouter {
    let mut routes = OpenApiRouter::new()
        .routes(routes!(inbox::list))
        .routes(routes!(inbox::read))
        .routes(routes!(stream::follow))
        .routes(routes!(preferences::get, preferences::put))
        .routes(routes!(webhooks::list, webhooks::create))
        .routes(routes!(webhooks::delete, webhooks::change::change))
        .routes(routes!(webhooks::change::pause))
        .routes(routes!(webhooks::change::resume))
        .routes(routes!(webhooks::change::rotate))
        .routes(routes!(webhooks::test))
        .routes(routes!(webhooks::attempts))
        .routes(routes!(webhooks::replay));
    if debug_inbox {
        routes = routes.routes(routes!(debug::inbox));
    }
    routes.with_state(app)
}

/// The user of a path.
fn user_of(text: String) -> Result<UserId, ApiError> {
    UserId::try_from(text).map_err(|why| ApiError::bad_request(format!("user_id {why}")))
}
