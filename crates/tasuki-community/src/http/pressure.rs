//! What the relay holds back, and why.

use axum::extract::State;
use serde::Serialize;
use tasuki_contract::error::ErrorBody;
use tasuki_service::auth::Permitted;
use tasuki_service::http::Json;
use time::format_description::well_known::Rfc3339;
use utoipa::ToSchema;

use super::{App, Read};

/// How far this process is.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Pressure {
    /// The step that is taken: 0, nothing is held back, to 4.
    step: u8,
    /// What that means.
    held_back: &'static str,
    /// Since when.
    since: String,
    /// Rows of the log before the slowest consumer.
    backlog: u64,
    /// Rows before each consumer that follows.
    consumers: Vec<Behind>,
}

/// A consumer that has rows before it.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Behind {
    name: String,
    backlog: u64,
}

/// What the relay holds back while consumers are behind, as this process sees it.
#[utoipa::path(
    get,
    path = "/v1/relay/pressure",
    tag = "relay",
    security(("bearer" = [])),
    responses(
        (status = 200, description = "The step, and why", body = Pressure),
        (status = 401, description = "`UNAUTHORIZED`", body = ErrorBody),
        (status = 403, description = "`FORBIDDEN`: the scope `community:read` is missing", body = ErrorBody),
        (status = 503, description = "`UNAVAILABLE`", body = ErrorBody),
    )
)]
pub(super) async fn pressure(
    State(app): State<App>,
    _permitted: Permitted<Read>,
) -> Json<Pressure> {
    let state = app.pressure.state();
    let consumers = state.seen.consumers.iter();
    Json(Pressure {
        step: state.step.number(),
        held_back: state.step.as_str(),
        since: state.since.format(&Rfc3339).unwrap_or_default(),
        backlog: state.seen.backlog,
        consumers: consumers
            .map(|(name, backlog)| Behind {
                name: name.clone(),
                backlog: *backlog,
            })
            .collect(),
    })
}
