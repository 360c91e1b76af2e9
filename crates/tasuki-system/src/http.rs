//! The API of the system service.

use axum::extract::State;
use tasuki_contract::error::ErrorBody;
use tasuki_contract::status::Status;
use tasuki_service::auth::Operator;
use tasuki_service::http::Json;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::queries::Overview;

pub(crate) fn routes(overview: Overview) -> OpenApiRouter {
    OpenApiRouter::new()
        .routes(routes!(status))
        .with_state(overview)
}

/// What runs: servers, versions, migrations, processes and their workers.
#[utoipa::path(
    get,
    path = "/v1/status",
    tag = "status",
    security(("bearer" = [])),
    responses(
        (status = 200, description = "The platform at this moment", body = Status),
        (status = 401, description = "`UNAUTHORIZED`: no operator token", body = ErrorBody),
        (status = 403, description = "`FORBIDDEN`: not an operator's", body = ErrorBody),
        (status = 503, description = "`UNAVAILABLE`: the database is away, so the credential can't be checked", body = ErrorBody),
    )
)]
async fn status(State(overview): State<Overview>, _operator: Operator) -> Json<Status> {
    Json(Box::pin(overview.status()).await)
}
