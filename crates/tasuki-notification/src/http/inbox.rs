//! The inbox: a page of it, and what was read.

#![expect(
    unused_qualifications,
    reason = "what utoipa makes of the parameters names them in full"
)]

use axum::extract::State;
use serde::Deserialize;
use tasuki_contract::error::ErrorBody;
use tasuki_contract::ids::NotificationId;
use tasuki_contract::notification::{Inbox, Notification, Read as WasRead};
use tasuki_service::auth::Permitted;
use tasuki_service::http::{ApiError, Json, Path, Query};
use utoipa::IntoParams;

use super::access::{Read, Write};
use super::{App, user_of};
use crate::store::inbox::{self, Entry};

/// Entries of a page, unless asked for otherwise, and at most.
const PAGE: (u32, u32) = (50, 500);
/// Unread ones are counted up to here.
const MOST_UNREAD: i64 = 1000;

/// Which notifications, and how many.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct ListQuery {
    /// Only those that are unread, and not superseded.
    #[serde(default)]
    unread: bool,
    /// At most so many; 1 to 500.
    limit: Option<u32>,
    /// `next_cursor` of the page before.
    cursor: Option<String>,
}

/// What a user was told in the app: the latest first.
#[utoipa::path(
    get,
    path = "/v1/users/{user_id}/notifications",
    tag = "inbox",
    security(("bearer" = [])),
    params(("user_id" = String, Path), ListQuery),
    responses(
        (status = 200, description = "A page of the inbox", body = Inbox),
        (status = 400, description = "`BAD_REQUEST`", body = ErrorBody),
        (status = 401, description = "`UNAUTHORIZED`", body = ErrorBody),
        (status = 403, description = "`FORBIDDEN`: the scope `notification:read` is missing, or it is another user's", body = ErrorBody),
        (status = 503, description = "`UNAVAILABLE`", body = ErrorBody),
    )
)]
pub(super) async fn list(
    State(app): State<App>,
    permitted: Permitted<Read>,
    Path(user): Path<String>,
    Query(query): Query<ListQuery>,
) -> Result<Json<Inbox>, ApiError> {
    permitted.owns(&user)?;
    let user = user_of(user)?;
    let limit = query.limit.unwrap_or(PAGE.0);
    if !(1..=PAGE.1).contains(&limit) {
        return Err(ApiError::bad_request(format!(
            "limit is from 1 to {}",
            PAGE.1
        )));
    }
    // Ours are numbers of entries, and those begin with 1.
    let below = query
        .cursor
        .map_or(Some(i64::MAX), |text| text.parse().ok());
    let below = below
        .filter(|below| *below > 0)
        .ok_or_else(|| ApiError::bad_request("cursor is not a next_cursor of this list"))?;
    let read = async {
        let mut connection = app.pool.acquire().await?;
        let (last, unread) = inbox::summary(&mut connection, user.as_str(), MOST_UNREAD).await?;
        let more = i64::from(limit) + 1;
        let page = match query.unread {
            true => inbox::unread(&mut connection, user.as_str(), below, more).await?,
            false => inbox::page(&mut connection, user.as_str(), below, more).await?,
        };
        Ok((last, unread, page))
    };
    let (last_sequence, unread_count, mut page) = read
        .await
        .map_err(|error: sqlx::Error| ApiError::database(&error))?;
    let wanted = usize::try_from(limit).unwrap_or(usize::MAX);
    let more = page.len() > wanted;
    page.truncate(wanted);
    let next_cursor = page
        .last()
        .filter(|_| more)
        .map(|it| it.inbox_seq.to_string());
    Ok(Json(Inbox {
        user_id: user.into(),
        unread_count,
        last_sequence,
        notifications: page.into_iter().map(shown).collect(),
        next_cursor,
    }))
}

/// Mark a notification as read. Doing it again changes nothing.
#[utoipa::path(
    post,
    path = "/v1/users/{user_id}/notifications/{notification_id}/read",
    tag = "inbox",
    security(("bearer" = [])),
    params(("user_id" = String, Path), ("notification_id" = NotificationId, Path)),
    responses(
        (status = 200, description = "When it was read, the first time", body = WasRead),
        (status = 400, description = "`BAD_REQUEST`", body = ErrorBody),
        (status = 403, description = "`FORBIDDEN`", body = ErrorBody),
        (status = 404, description = "`NOT_FOUND`: it is not in this inbox", body = ErrorBody),
        (status = 503, description = "`UNAVAILABLE`", body = ErrorBody),
    )
)]
pub(super) async fn read(
    State(app): State<App>,
    permitted: Permitted<Write>,
    Path((user, id)): Path<(String, NotificationId)>,
) -> Result<Json<WasRead>, ApiError> {
    permitted.owns(&user)?;
    let user = user_of(user)?;
    let marked = async {
        let mut connection = app.pool.acquire().await?;
        inbox::mark_read(&mut connection, user.as_str(), id.as_uuid()).await
    };
    let marked = marked.await.map_err(|error| ApiError::database(&error))?;
    let read_at =
        marked.ok_or_else(|| ApiError::not_found("there is no such notification in this inbox"))?;
    Ok(Json(WasRead {
        notification_id: id,
        read_at,
    }))
}

/// An entry as its user sees it.
pub(super) fn shown(entry: Entry) -> Notification {
    Notification {
        notification_id: entry.notification_id.into(),
        event_id: entry.event_id.into(),
        kind: entry.kind,
        occurred_at: entry.occurred_at,
        sent_at: entry.sent_at,
        sequence: entry.inbox_seq,
        superseded: entry.superseded,
        read_at: entry.read_at,
        payload: entry.payload_json,
    }
}
