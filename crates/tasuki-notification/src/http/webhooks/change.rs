//! What the owner of a webhook changes of it: where it leads, what it is told, whether it is told
//! anything, its secret.

use axum::extract::State;
use sqlx::PgConnection;
use tasuki_contract::error::ErrorBody;
use tasuki_contract::ids::EndpointId;
use tasuki_contract::notification::{ChangedWebhook, Webhook};
use tasuki_service::auth::Permitted;
use tasuki_service::http::{ApiError, Json, Path};

use super::{check, commit, disabled, find, public, shown, transaction};
use crate::http::access::Write;
use crate::http::{App, user_of};
use crate::store::webhooks::{self, Changed, owed, secrets, trouble};
use crate::webhook::sign::Secret;

/// Secrets of one webhook that sign beside the present one.
const OLD_SECRETS: i64 = 10;

/// Change a webhook: what is left out stays as it is.
///
/// At a new address it begins without the failures of the one before, and what it is owed is sent
/// there at once. One that is paused or disabled stays so. Other types are those of what comes from now on.
#[utoipa::path(
    patch,
    path = "/v1/users/{user_id}/webhooks/{endpoint_id}",
    tag = "webhooks",
    security(("bearer" = [])),
    params(("user_id" = String, Path), ("endpoint_id" = EndpointId, Path)),
    request_body = ChangedWebhook,
    responses(
        (status = 200, description = "As it is now", body = Webhook),
        (status = 400, description = "`BAD_REQUEST`: an address that is not public, say", body = ErrorBody),
        (status = 403, description = "`FORBIDDEN`", body = ErrorBody),
        (status = 404, description = "`NOT_FOUND`", body = ErrorBody),
        (status = 503, description = "`UNAVAILABLE`", body = ErrorBody),
    )
)]
pub(in crate::http) async fn change(
    State(app): State<App>,
    permitted: Permitted<Write>,
    Path((user, id)): Path<(String, EndpointId)>,
    Json(body): Json<ChangedWebhook>,
) -> Result<Json<Webhook>, ApiError> {
    permitted.owns(&user)?;
    let user = user_of(user)?;
    let (description, types) = (body.description.as_deref(), body.types.as_deref());
    check(description.unwrap_or_default(), types.unwrap_or_default())?;
    let url = body.url.map(|url| public(&app, &url)).transpose()?;
    let changed = Changed {
        url: url.as_deref(),
        description,
        types,
    };
    let mut tx = transaction(&app).await?;
    let before = find(&mut tx, &user, id).await?;
    let moved = url.as_ref().is_some_and(|url| *url != before.url);
    let done = rewrite(&mut tx, id, &changed, moved).await;
    done.map_err(|error| ApiError::database(&error))?;
    let endpoint = find(&mut tx, &user, id).await?;
    commit(tx).await?;
    app.deliveries.ring();
    Ok(Json(shown(endpoint, None)))
}

async fn rewrite(
    tx: &mut PgConnection,
    id: EndpointId,
    changed: &Changed<'_>,
    moved: bool,
) -> sqlx::Result<()> {
    webhooks::change(tx, id.as_uuid(), changed).await?;
    if moved {
        trouble::forgotten(tx, id.as_uuid()).await?;
        owed::make_due(tx, id.as_uuid()).await?;
    }
    Ok(())
}

/// Pause a webhook: what comes meanwhile is kept for it, for some days.
#[utoipa::path(
    post,
    path = "/v1/users/{user_id}/webhooks/{endpoint_id}/pause",
    tag = "webhooks",
    security(("bearer" = [])),
    params(("user_id" = String, Path), ("endpoint_id" = EndpointId, Path)),
    responses(
        (status = 200, description = "Paused", body = Webhook),
        (status = 403, description = "`FORBIDDEN`", body = ErrorBody),
        (status = 404, description = "`NOT_FOUND`", body = ErrorBody),
        (status = 409, description = "`WEBHOOK_DISABLED`: it gets nothing already", body = ErrorBody),
        (status = 503, description = "`UNAVAILABLE`", body = ErrorBody),
    )
)]
pub(in crate::http) async fn pause(
    State(app): State<App>,
    permitted: Permitted<Write>,
    Path((user, id)): Path<(String, EndpointId)>,
) -> Result<Json<Webhook>, ApiError> {
    set_status(&app, &permitted, user, id, "PAUSED").await
}

/// Enable a webhook that was paused, or that we had disabled. What it is owed is sent at once.
#[utoipa::path(
    post,
    path = "/v1/users/{user_id}/webhooks/{endpoint_id}/resume",
    tag = "webhooks",
    security(("bearer" = [])),
    params(("user_id" = String, Path), ("endpoint_id" = EndpointId, Path)),
    responses(
        (status = 200, description = "Enabled", body = Webhook),
        (status = 403, description = "`FORBIDDEN`", body = ErrorBody),
        (status = 404, description = "`NOT_FOUND`", body = ErrorBody),
        (status = 503, description = "`UNAVAILABLE`", body = ErrorBody),
    )
)]
pub(in crate::http) async fn resume(
    State(app): State<App>,
    permitted: Permitted<Write>,
    Path((user, id)): Path<(String, EndpointId)>,
) -> Result<Json<Webhook>, ApiError> {
    let resumed = set_status(&app, &permitted, user, id, "ENABLED").await;
    app.deliveries.ring();
    resumed
}

/// Give a webhook a new secret. Those before sign beside it for a while.
#[utoipa::path(
    post,
    path = "/v1/users/{user_id}/webhooks/{endpoint_id}/rotate",
    tag = "webhooks",
    security(("bearer" = [])),
    params(("user_id" = String, Path), ("endpoint_id" = EndpointId, Path)),
    responses(
        (status = 200, description = "With the new secret, which is told now and never again", body = Webhook),
        (status = 403, description = "`FORBIDDEN`", body = ErrorBody),
        (status = 404, description = "`NOT_FOUND`", body = ErrorBody),
        (status = 409, description = "`WEBHOOK_SECRETS`: too many secrets sign still", body = ErrorBody),
        (status = 503, description = "`UNAVAILABLE`", body = ErrorBody),
    )
)]
pub(in crate::http) async fn rotate(
    State(app): State<App>,
    permitted: Permitted<Write>,
    Path((user, id)): Path<(String, EndpointId)>,
) -> Result<Json<Webhook>, ApiError> {
    permitted.owns(&user)?;
    let user = user_of(user)?;
    let secret = Secret::generate().map_err(|error| ApiError::internal(&error))?;
    let mut tx = transaction(&app).await?;
    find(&mut tx, &user, id).await?;
    let (new, overlap) = (secret.expose(), app.rotation_overlap.as_secs_f64());
    let rotated = secrets::rotate(&mut tx, id.as_uuid(), new, overlap, OLD_SECRETS).await;
    if !rotated.map_err(|error| ApiError::database(&error))? {
        return Err(ApiError::conflict(
            "WEBHOOK_SECRETS",
            format!("{OLD_SECRETS} secrets before this one sign still: wait until one is over"),
        ));
    }
    let endpoint = find(&mut tx, &user, id).await?;
    commit(tx).await?;
    Ok(Json(shown(endpoint, Some(&secret))))
}

async fn set_status(
    app: &App,
    permitted: &Permitted<Write>,
    user: String,
    id: EndpointId,
    status: &str,
) -> Result<Json<Webhook>, ApiError> {
    permitted.owns(&user)?;
    let user = user_of(user)?;
    let mut tx = transaction(app).await?;
    find(&mut tx, &user, id).await?;
    let changed = enter(&mut tx, id, status).await;
    let changed = changed.map_err(|error| ApiError::database(&error))?;
    let endpoint = find(&mut tx, &user, id).await?;
    if !changed {
        return Err(disabled());
    }
    commit(tx).await?;
    Ok(Json(shown(endpoint, None)))
}

async fn enter(tx: &mut PgConnection, id: EndpointId, status: &str) -> sqlx::Result<bool> {
    let changed = webhooks::set_status(tx, id.as_uuid(), status).await?;
    if status == "ENABLED" {
        trouble::forgotten(tx, id.as_uuid()).await?;
        owed::make_due(tx, id.as_uuid()).await?;
    }
    Ok(changed)
}
