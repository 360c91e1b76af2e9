//! Who has changed what, and why.

#![expect(
    unused_qualifications,
    reason = "what utoipa makes of the parameters names them in full"
)]

use axum::extract::State;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tasuki_contract::error::ErrorBody;
use tasuki_contract::timestamp;
use tasuki_service::auth::Unattended;
use tasuki_service::http::{ApiError, Json, Query};
use time::OffsetDateTime;
use utoipa::{IntoParams, ToSchema};
use uuid::Uuid;

use super::super::{App, Moderate};
use super::{behind, cursor, limit};
use crate::store::moderation::audit::{self as store, Entry};

/// Which changes.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct Asked {
    /// `next` of the page before.
    cursor: Option<String>,
    /// At most this many: 1 to 500, 50 unless it is said.
    limit: Option<u16>,
}

/// A change.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct ChangeView {
    /// Which.
    audit_id: Uuid,
    /// `RULE_ADDED`, `RULE_CHANGED`, `RULE_CLOSED`, `LABEL_ADDED`, `LABEL_WITHDRAWN`, `MEMBER_LINKED` or
    /// `MEMBER_UNLINKED`.
    action: String,
    /// The rule, the target or the key.
    subject: String,
    /// What it became.
    #[schema(value_type = Object)]
    detail: Value,
    /// Who.
    actor: String,
    /// Why.
    reason: String,
    /// When.
    #[serde(with = "timestamp")]
    changed_at: OffsetDateTime,
}

/// A page of changes, the last first.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Changes {
    changes: Vec<ChangeView>,
    /// `cursor` of the next page, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<String>,
}

/// What people have changed, the last first.
#[utoipa::path(
    get,
    path = "/v1/moderation/audit",
    tag = "moderation",
    security(("bearer" = [])),
    params(Asked),
    responses(
        (status = 200, description = "The last first", body = Changes),
        (status = 400, description = "`BAD_REQUEST`", body = ErrorBody),
        (status = 401, description = "`UNAUTHORIZED`", body = ErrorBody),
        (status = 403, description = "`FORBIDDEN`: the scope `community:moderate` is missing", body = ErrorBody),
        (status = 503, description = "`UNAVAILABLE`", body = ErrorBody),
    )
)]
pub(super) async fn audit(
    State(app): State<App>,
    _moderator: Unattended<Moderate>,
    Query(asked): Query<Asked>,
) -> Result<Json<Changes>, ApiError> {
    let limit = limit(asked.limit)?;
    let before = behind(asked.cursor.as_deref())?;
    let reading = async {
        let mut connection = app.pool.acquire().await?;
        store::list(&mut connection, before, limit + 1).await
    };
    let mut found = reading.await.map_err(|error| ApiError::database(&error))?;
    let most = usize::try_from(limit).unwrap_or(usize::MAX);
    let is_more = found.len() > most;
    found.truncate(most);
    let last = found.last().filter(|_| is_more);
    Ok(Json(Changes {
        next: last.map(|last| cursor(last.changed_at, last.audit_id)),
        changes: found.into_iter().map(view).collect(),
    }))
}

fn view(entry: Entry) -> ChangeView {
    ChangeView {
        audit_id: entry.audit_id,
        action: entry.action,
        subject: entry.subject,
        detail: serde_json::from_str(&entry.detail).unwrap_or_default(),
        actor: entry.actor,
        reason: entry.reason,
        changed_at: entry.changed_at,
    }
}
