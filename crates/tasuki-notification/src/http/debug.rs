//! Everything that was made for a user, for operators.

use axum::extract::State;
use tasuki_contract::error::ErrorBody;
use tasuki_contract::notification::{DebugInbox, DebugNotification};
use tasuki_service::auth::Operator;
use tasuki_service::http::{ApiError, Json, Path};

use super::{App, user_of};
use crate::store::inbox;

/// At most so many: it is for looking, not for reading through.
const MOST: i64 = 500;

/// Everything of a user with states, attempts and errors: the latest first.
#[utoipa::path(
    get,
    path = "/debug/notification/inbox/{user_id}",
    tag = "debug",
    security(("bearer" = [])),
    params(("user_id" = String, Path)),
    responses(
        (status = 200, description = "The latest 500", body = DebugInbox),
        (status = 401, description = "`UNAUTHORIZED`", body = ErrorBody),
        (status = 403, description = "`FORBIDDEN`: not an operator's", body = ErrorBody),
        (status = 503, description = "`UNAVAILABLE`", body = ErrorBody),
    )
)]
pub(super) async fn inbox(
    State(app): State<App>,
    _operator: Operator,
    Path(user): Path<String>,
) -> Result<Json<DebugInbox>, ApiError> {
    let user = user_of(user)?;
    let read = async {
        let mut connection = app.pool.acquire().await?;
        inbox::debugged(&mut connection, user.as_str(), MOST).await
    };
    let all = read.await.map_err(|error| ApiError::database(&error))?;
    let notifications = all.into_iter().map(|it| DebugNotification {
        notification_id: it.notification_id.into(),
        event_id: it.event_id.into(),
        kind: it.kind,
        channel: it.channel,
        status: it.status,
        attempts: it.attempt_count,
        next_retry_at: it.next_retry_at,
        created_at: it.created_at,
        sent_at: it.sent_at,
        locked_by: it.locked_by,
        last_error: it.last_error,
        trace_id: it
            .traceparent
            .and_then(|text| text.split('-').nth(1).map(str::to_owned)),
        payload: it.payload_json,
    });
    Ok(Json(DebugInbox {
        user_id: user.to_string(),
        notifications: notifications.collect(),
    }))
}
