//! The calls that read.

#![expect(
    unused_qualifications,
    reason = "what utoipa makes of the parameters names them in full"
)]

use axum::extract::State;
use serde::Deserialize;
use tasuki_contract::entitlement::{Check, Entitlements, History};
use tasuki_contract::error::ErrorBody;
use tasuki_contract::names::{Sku, UserId};
use tasuki_contract::timestamp;
use tasuki_service::auth::Permitted;
use tasuki_service::http::{ApiError, Json, Path, Query};
use time::OffsetDateTime;
use utoipa::IntoParams;

use super::access::Read;
use super::{App, batch_failed, named};
use crate::domain::Status;
use crate::queries::{Filter, WHOLE, parse_cursor, whole};

/// The most entries of a page that is asked for; those of a history, unless it is.
const PAGE: u32 = 1000;

/// Which entitlements, and how many.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct ListQuery {
    /// ACTIVE or REVOKED only.
    status: Option<String>,
    /// Only what changed at or after this time.
    #[serde(default, with = "timestamp::option")]
    #[param(value_type = Option<String>)]
    updated_since: Option<OffsetDateTime>,
    /// At most so many; 1 to 1000. All of them, up to 10000, unless it is given.
    limit: Option<u32>,
    /// `next_cursor` of the page before.
    cursor: Option<String>,
}

/// How much of the past.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct HistoryQuery {
    /// At most so many; 1 to 1000.
    limit: Option<u32>,
    /// `next_cursor` of the page before.
    cursor: Option<String>,
}

/// What a user has, or had: the last change first.
#[utoipa::path(
    get,
    path = "/v1/users/{user_id}/entitlements",
    tag = "reads",
    security(("bearer" = [])),
    params(("user_id" = String, Path), ListQuery),
    responses(
        (status = 200, description = "A user that nobody has granted anything has none", body = Entitlements),
        (status = 400, description = "`BAD_REQUEST`", body = ErrorBody),
        (status = 401, description = "`UNAUTHORIZED`", body = ErrorBody),
        (status = 403, description = "`FORBIDDEN`: the scope `entitlement:read` is missing, or it is another user's", body = ErrorBody),
        (status = 503, description = "`UNAVAILABLE`", body = ErrorBody),
    )
)]
pub(super) async fn list(
    State(app): State<App>,
    reader: Permitted<Read>,
    Path(user): Path<String>,
    Query(query): Query<ListQuery>,
) -> Result<Json<Entitlements>, ApiError> {
    reader.owns(&user)?;
    let user: UserId = named("", "user_id", user)?;
    let status = match query.status.as_deref() {
        None => None,
        Some(text) => Some(
            Status::parse(text)
                .ok_or_else(|| ApiError::bad_request("status is ACTIVE or REVOKED"))?,
        ),
    };
    let is_plain = status.is_none() && query.updated_since.is_none();
    if is_plain && query.cursor.is_none() && query.limit.is_none() {
        let listed = app.lists.submit(user.clone()).await;
        let listed = listed.map_err(|error| batch_failed(&error, ApiError::database))?;
        if let Some(list) = whole(&user, listed) {
            return Ok(Json(list));
        }
        // A long one is read alone, and again from its beginning: in one statement, or what changes
        // between two would be missing.
    }
    let filter = Filter {
        status,
        changed_since: query.updated_since,
    };
    let after = query.cursor.as_deref().map(parse_cursor).transpose();
    let after = after.map_err(|_invalid| invalid_cursor())?;
    let limit = page(query.limit)?.unwrap_or(WHOLE);
    let list = app.queries.list(&user, &filter, after, limit).await;
    list.map(Json).map_err(|error| ApiError::database(&error))
}

/// Whether a user may use a SKU now.
#[utoipa::path(
    get,
    path = "/v1/users/{user_id}/entitlements/{stock_keeping_unit}",
    tag = "reads",
    security(("bearer" = [])),
    params(("user_id" = String, Path), ("stock_keeping_unit" = String, Path)),
    responses(
        (status = 200, description = "`allowed` says it", body = Check),
        (status = 400, description = "`BAD_REQUEST`", body = ErrorBody),
        (status = 401, description = "`UNAUTHORIZED`", body = ErrorBody),
        (status = 403, description = "`FORBIDDEN`", body = ErrorBody),
        (status = 503, description = "`UNAVAILABLE`", body = ErrorBody),
    )
)]
pub(super) async fn check(
    State(app): State<App>,
    reader: Permitted<Read>,
    Path((user, sku)): Path<(String, String)>,
) -> Result<Json<Check>, ApiError> {
    reader.owns(&user)?;
    let user: UserId = named("", "user_id", user)?;
    let sku: Sku = named("", "stock_keeping_unit", sku)?;
    let check = app.queries.check(&user, &sku).await;
    check.map(Json).map_err(|error| ApiError::database(&error))
}

/// What happened to one entitlement: the last change first, for as long as the audit is kept.
#[utoipa::path(
    get,
    path = "/v1/users/{user_id}/entitlements/{stock_keeping_unit}/history",
    tag = "reads",
    security(("bearer" = [])),
    params(("user_id" = String, Path), ("stock_keeping_unit" = String, Path), HistoryQuery),
    responses(
        (status = 200, description = "The changes", body = History),
        (status = 400, description = "`BAD_REQUEST`", body = ErrorBody),
        (status = 401, description = "`UNAUTHORIZED`", body = ErrorBody),
        (status = 403, description = "`FORBIDDEN`", body = ErrorBody),
        (status = 503, description = "`UNAVAILABLE`", body = ErrorBody),
    )
)]
pub(super) async fn history(
    State(app): State<App>,
    reader: Permitted<Read>,
    Path((user, sku)): Path<(String, String)>,
    Query(query): Query<HistoryQuery>,
) -> Result<Json<History>, ApiError> {
    reader.owns(&user)?;
    let user: UserId = named("", "user_id", user)?;
    let sku: Sku = named("", "stock_keeping_unit", sku)?;
    let below = query.cursor.map(|text| text.parse()).transpose();
    let below = below.map_err(|_error: std::num::ParseIntError| invalid_cursor())?;
    let limit = page(query.limit)?.unwrap_or(PAGE);
    let history = app.queries.history(&user, &sku, below, limit).await;
    history
        .map(Json)
        .map_err(|error| ApiError::database(&error))
}

fn page(limit: Option<u32>) -> Result<Option<u32>, ApiError> {
    if limit.is_some_and(|limit| !(1..=PAGE).contains(&limit)) {
        return Err(ApiError::bad_request(format!("limit is from 1 to {PAGE}")));
    }
    Ok(limit)
}

fn invalid_cursor() -> ApiError {
    ApiError::bad_request("cursor is not a next_cursor of this list")
}
