//! Under which id the platform knows the owner of a key: who is told of labels.

#![expect(
    unused_qualifications,
    reason = "what utoipa makes of the parameters names them in full"
)]

use axum::extract::State;
use serde::{Deserialize, Serialize};
use tasuki::begin;
use tasuki_contract::error::ErrorBody;
use tasuki_contract::names::UserId;
use tasuki_service::auth::Unattended;
use tasuki_service::http::{ApiError, Json, Path, Query};
use utoipa::{IntoParams, ToSchema};

use super::super::{App, Moderate};
use super::failed;
use crate::moderation::{By, Error, link, unlink};
use crate::nostr::Key;

/// Whose a key is, and how that is known.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct MemberBody {
    /// The user: 1 to 128 characters.
    user_id: String,
    /// Why, for who looks at the audit.
    reason: String,
}

/// Whose a key is.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct MemberView {
    /// The key.
    pubkey: String,
    /// The user.
    user_id: String,
}

/// Link a key to a user: labels of what it has signed are told to that user.
#[utoipa::path(
    put,
    path = "/v1/members/{pubkey}",
    tag = "moderation",
    security(("bearer" = [])),
    params(("pubkey" = String, Path, description = "64 digits of lower-case hexadecimal")),
    request_body = MemberBody,
    responses(
        (status = 200, description = "Linked, for labels from now on", body = MemberView),
        (status = 400, description = "`BAD_REQUEST`: names the field", body = ErrorBody),
        (status = 401, description = "`UNAUTHORIZED`", body = ErrorBody),
        (status = 403, description = "`FORBIDDEN`: the scope `community:moderate` is missing", body = ErrorBody),
        (status = 503, description = "`UNAVAILABLE`", body = ErrorBody),
    )
)]
pub(super) async fn put(
    State(app): State<App>,
    moderator: Unattended<Moderate>,
    Path(pubkey): Path<String>,
    Json(body): Json<MemberBody>,
) -> Result<Json<MemberView>, ApiError> {
    let key = key(&pubkey)?;
    let user = UserId::try_from(body.user_id);
    let user = user.map_err(|why| ApiError::bad_request(format!("user_id {why}")))?;
    let actor = moderator.caller.identity();
    let by = By {
        actor: &actor,
        reason: &body.reason,
    };
    let linking = async {
        let mut tx = begin(&app.pool).await?;
        link(&mut tx, key, user.as_str(), by).await?;
        Ok::<_, Error>(tx.commit().await?)
    };
    linking.await.map_err(|error| failed(&error))?;
    let user_id = user.into();
    Ok(Json(MemberView { pubkey, user_id }))
}

/// Why it is taken away.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct Why {
    /// For who looks at the audit.
    reason: String,
}

/// Take the link away: labels are told to the key itself again.
#[utoipa::path(
    delete,
    path = "/v1/members/{pubkey}",
    tag = "moderation",
    security(("bearer" = [])),
    params(("pubkey" = String, Path, description = "64 digits of lower-case hexadecimal"), Why),
    responses(
        (status = 200, description = "Whose it was", body = MemberView),
        (status = 400, description = "`BAD_REQUEST`: names the field", body = ErrorBody),
        (status = 401, description = "`UNAUTHORIZED`", body = ErrorBody),
        (status = 403, description = "`FORBIDDEN`: the scope `community:moderate` is missing", body = ErrorBody),
        (status = 404, description = "`NOT_FOUND`: it is nobody's", body = ErrorBody),
        (status = 503, description = "`UNAVAILABLE`", body = ErrorBody),
    )
)]
pub(super) async fn delete(
    State(app): State<App>,
    moderator: Unattended<Moderate>,
    Path(pubkey): Path<String>,
    Query(why): Query<Why>,
) -> Result<Json<MemberView>, ApiError> {
    let key = key(&pubkey)?;
    let actor = moderator.caller.identity();
    let by = By {
        actor: &actor,
        reason: &why.reason,
    };
    let unlinking = async {
        let mut tx = begin(&app.pool).await?;
        let user = unlink(&mut tx, key, by).await?;
        tx.commit().await?;
        Ok::<_, Error>(user)
    };
    let user_id = unlinking.await.map_err(|error| failed(&error))?;
    Ok(Json(MemberView { pubkey, user_id }))
}

fn key(text: &str) -> Result<Key, ApiError> {
    let error = || ApiError::bad_request("pubkey is not 64 digits of lower-case hexadecimal");
    Key::parse(text).ok_or_else(error)
}
