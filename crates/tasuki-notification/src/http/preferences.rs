//! Over which channels a user wants to be told.

use axum::extract::State;
use tasuki::begin;
use tasuki_contract::error::ErrorBody;
use tasuki_contract::names::{Reason, UserId};
use tasuki_contract::notification::Preferences;
use tasuki_service::auth::Permitted;
use tasuki_service::http::{ApiError, Json, Path};

use super::access::{Read, Write};
use super::{App, user_of};
use crate::domain::{Channel, EVERY_TYPE};
use crate::store::inbox;

/// The most types that somebody can have wishes about.
const MOST_TYPES: usize = 100;

/// A user's wishes.
#[utoipa::path(
    get,
    path = "/v1/users/{user_id}/notification-preferences",
    tag = "preferences",
    security(("bearer" = [])),
    params(("user_id" = String, Path)),
    responses(
        (status = 200, description = "Empty: the defaults hold", body = Preferences),
        (status = 403, description = "`FORBIDDEN`", body = ErrorBody),
        (status = 503, description = "`UNAVAILABLE`", body = ErrorBody),
    )
)]
pub(super) async fn get(
    State(app): State<App>,
    permitted: Permitted<Read>,
    Path(user): Path<String>,
) -> Result<Json<Preferences>, ApiError> {
    permitted.owns(&user)?;
    let user = user_of(user)?;
    let wishes = async {
        let mut connection = app.pool.acquire().await?;
        inbox::preferences(&mut connection, user.as_str()).await
    };
    let wishes = wishes.await.map_err(|error| ApiError::database(&error))?;
    Ok(Json(Preferences {
        channels: wishes.into_iter().collect(),
    }))
}

/// Set all of a user's wishes. What happens from now on is told accordingly.
#[utoipa::path(
    put,
    path = "/v1/users/{user_id}/notification-preferences",
    tag = "preferences",
    security(("bearer" = [])),
    params(("user_id" = String, Path)),
    request_body = Preferences,
    responses(
        (status = 200, description = "As they are now", body = Preferences),
        (status = 400, description = "`BAD_REQUEST`", body = ErrorBody),
        (status = 403, description = "`FORBIDDEN`", body = ErrorBody),
        (status = 503, description = "`UNAVAILABLE`", body = ErrorBody),
    )
)]
pub(super) async fn put(
    State(app): State<App>,
    permitted: Permitted<Write>,
    Path(user): Path<String>,
    Json(body): Json<Preferences>,
) -> Result<Json<Preferences>, ApiError> {
    permitted.owns(&user)?;
    let user = user_of(user)?;
    let wishes = checked(&body)?;
    let stored = store(&app, &user, &wishes).await;
    stored.map_err(|error| ApiError::database(&error))?;
    Ok(Json(Preferences {
        channels: wishes.into_iter().collect(),
    }))
}

async fn store(app: &App, user: &UserId, wishes: &[(String, Vec<String>)]) -> sqlx::Result<()> {
    let mut tx = begin(&app.pool).await?;
    inbox::set_preferences(&mut tx, user.as_str(), wishes).await?;
    tx.commit().await
}

fn checked(body: &Preferences) -> Result<Vec<(String, Vec<String>)>, ApiError> {
    if body.channels.len() > MOST_TYPES {
        return Err(ApiError::bad_request(format!(
            "channels has at most {MOST_TYPES} types"
        )));
    }
    let mut wishes = Vec::with_capacity(body.channels.len());
    for (kind, channels) in &body.channels {
        let named = kind == EVERY_TYPE || Reason::try_from(kind.clone()).is_ok();
        if !named {
            return Err(ApiError::bad_request("channels has a type that is no name"));
        }
        let unknown = channels.iter().find(|it| Channel::parse(it).is_none());
        if unknown.is_some() {
            let message = format!("channels.{kind} has one that is none of log, in-app, webhook");
            return Err(ApiError::bad_request(message));
        }
        let mut channels = channels.clone();
        channels.sort_unstable();
        channels.dedup();
        wishes.push((kind.clone(), channels));
    }
    Ok(wishes)
}
