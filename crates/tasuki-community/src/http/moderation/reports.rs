//! Reports: of those who sign them, and of those for whom the node does.

#![expect(
    unused_qualifications,
    reason = "what utoipa makes of the parameters names them in full"
)]

use axum::extract::State;
use http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tasuki::begin;
use tasuki_contract::error::{ErrorBody, FORBIDDEN, TOO_MANY_REQUESTS};
use tasuki_contract::timestamp;
use tasuki_service::auth::{Caller, Permitted};
use tasuki_service::http::{ApiError, Json, Query};
use time::OffsetDateTime;
use utoipa::{IntoParams, ToSchema};

use super::super::{App, Read, Report};
use super::{failed, limit};
use crate::moderation::{Error, Reporting};
use crate::nostr::{Answer, Parsed, REPORT, Report as Said, Target};
use crate::store::moderation::reports as store;

/// A signed event, or what the node is to sign.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ReportBody {
    /// A signed report, of kind 39005; nothing else then.
    #[serde(default)]
    #[schema(value_type = Option<Object>)]
    event: Option<Value>,
    /// `event:<id>`, `pubkey:<key>`, `address:<kind:pubkey:d>` or `identifier:<NIP-73>`.
    #[serde(default)]
    target: Option<String>,
    /// One word, in lower case.
    #[serde(default)]
    #[schema(example = "spam")]
    reason: Option<String>,
    /// What is to be said of it; everybody can read it.
    #[serde(default)]
    comment: Option<String>,
    /// Who reports, as everybody may know them. A service that calls for a user names that user, or
    /// nobody.
    #[serde(default)]
    reporter: Option<String>,
    /// Where it is published; where the target is, unless it is said.
    #[serde(default)]
    topics: Vec<String>,
}

/// A report that was taken.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Taken {
    /// Its event.
    event_id: String,
    /// Whether it is a new one; else it was there before, and counts once.
    new: bool,
}

/// Report something. Whoever reports the same thing for the same reason again has reported it already.
#[utoipa::path(
    post,
    path = "/v1/reports",
    tag = "moderation",
    security(("bearer" = [])),
    request_body = ReportBody,
    responses(
        (status = 200, description = "Published", body = Taken),
        (status = 400, description = "`BAD_REQUEST`: names the field, or what is wrong with the event", body = ErrorBody),
        (status = 401, description = "`UNAUTHORIZED`", body = ErrorBody),
        (status = 403, description = "`FORBIDDEN`: the scope `community:report` is missing, or the event is not wanted here", body = ErrorBody),
        (status = 409, description = "`NODE_HAS_NO_KEYS`", body = ErrorBody),
        (status = 429, description = "`TOO_MANY_REQUESTS`: too many events of this key", body = ErrorBody),
        (status = 503, description = "`UNAVAILABLE`: safe to repeat", body = ErrorBody),
    )
)]
pub(super) async fn bring(
    State(app): State<App>,
    permitted: Permitted<Report>,
    Json(body): Json<ReportBody>,
) -> Result<Json<Taken>, ApiError> {
    match body.event {
        None => unsigned(&app, &permitted, body).await.map(Json),
        Some(event) => {
            let is_alone = body.target.is_none()
                && body.reason.is_none()
                && body.comment.is_none()
                && body.reporter.is_none()
                && body.topics.is_empty();
            if !is_alone {
                let words = "event says everything: nothing else goes beside it";
                return Err(ApiError::bad_request(words));
            }
            signed(app, &event).await.map(Json)
        }
    }
}

async fn signed(app: App, event: &Value) -> Result<Taken, ApiError> {
    let text = event.to_string();
    let parsed = Parsed::read(&text);
    let parsed = parsed.map_err(|fault| ApiError::bad_request(format!("event: {fault}")))?;
    let claims = parsed.claims();
    if claims.kind != REPORT || Said::of(claims).is_none() {
        let words = format!("event is no report: of kind {REPORT}, with a target");
        return Err(ApiError::bad_request(words));
    }
    let now = app.clock.now().unix_timestamp();
    let length = text.len();
    let Answer::Ok(event_id, taken, words) = app.publisher.bring(parsed, length, now).await else {
        return Err(ApiError::unavailable(
            "the event could not be stored, try again",
        ));
    };
    if taken {
        let new = words.is_empty();
        return Ok(Taken { event_id, new });
    }
    let message = format!("event: {words}");
    Err(match words.split(':').next().unwrap_or_default() {
        "invalid" | "unsupported" => ApiError::bad_request(message),
        "blocked" | "restricted" | "auth-required" => {
            ApiError::new(StatusCode::FORBIDDEN, FORBIDDEN, message)
        }
        "rate-limited" => ApiError::new(StatusCode::TOO_MANY_REQUESTS, TOO_MANY_REQUESTS, message),
        _ => ApiError::unavailable(message),
    })
}

async fn unsigned(
    app: &App,
    permitted: &Permitted<Report>,
    body: ReportBody,
) -> Result<Taken, ApiError> {
    let required = |field: &str| ApiError::bad_request(format!("{field} is required"));
    let target = body.target.ok_or_else(|| required("target"))?;
    let reason = body.reason.ok_or_else(|| required("reason"))?;
    if let (Some(reporter), Caller::Service { user: Some(_), .. }) =
        (&body.reporter, &permitted.caller)
    {
        permitted.owns(reporter)?;
    }
    let moderator = app.moderator()?;
    let reporting = Reporting {
        target,
        reason,
        comment: body.comment,
        reporter: body.reporter,
        topics: body.topics,
        caller: permitted.caller.identity(),
    };
    let publishing = async {
        let mut tx = begin(&app.pool).await?;
        let reported = moderator.report(&mut tx, &reporting, &app.topics).await?;
        tx.commit().await?;
        Ok::<_, Error>(reported)
    };
    let (id, new) = publishing.await.map_err(|error| failed(&error))?;
    app.said();
    let event_id = id.to_string();
    Ok(Taken { event_id, new })
}

/// Which reports.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct Asked {
    /// Only of this target.
    target: Option<String>,
    /// Only those that were accepted since then: an RFC 3339 time.
    #[serde(default, with = "timestamp::option")]
    #[param(value_type = Option<String>)]
    since: Option<OffsetDateTime>,
    /// At most so many targets: 1 to 500, 50 unless it is said.
    limit: Option<u16>,
}

/// How often a target was reported.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct ReportedView {
    /// What.
    target: String,
    /// Reports, each event once.
    reports: i64,
    /// Those who reported, each once.
    reporters: i64,
    /// Why, each once.
    reasons: Vec<String>,
    /// When the last of them was accepted.
    #[serde(with = "timestamp")]
    last_at: OffsetDateTime,
}

/// What was reported, by the most people first.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct ReportedList {
    targets: Vec<ReportedView>,
}

/// How often what was reported.
#[utoipa::path(
    get,
    path = "/v1/reports",
    tag = "moderation",
    security(("bearer" = [])),
    params(Asked),
    responses(
        (status = 200, description = "Reported by the most people first", body = ReportedList),
        (status = 400, description = "`BAD_REQUEST`: names the field", body = ErrorBody),
        (status = 401, description = "`UNAUTHORIZED`", body = ErrorBody),
        (status = 403, description = "`FORBIDDEN`: the scope `community:read` is missing", body = ErrorBody),
        (status = 503, description = "`UNAVAILABLE`", body = ErrorBody),
    )
)]
pub(super) async fn count(
    State(app): State<App>,
    _permitted: Permitted<Read>,
    Query(asked): Query<Asked>,
) -> Result<Json<ReportedList>, ApiError> {
    let limit = limit(asked.limit)?;
    if let Some(target) = &asked.target {
        let target = target.parse::<Target>();
        target.map_err(|problem| ApiError::bad_request(format!("target {problem}")))?;
    }
    let counting = async {
        let mut connection = app.pool.acquire().await?;
        store::count(&mut connection, asked.target.as_deref(), asked.since, limit).await
    };
    let counted = counting.await.map_err(|error| ApiError::database(&error))?;
    let targets = counted.into_iter().map(|it| ReportedView {
        target: it.target,
        reports: it.reports,
        reporters: it.reporters,
        reasons: it.reasons,
        last_at: it.last_at,
    });
    Ok(Json(ReportedList {
        targets: targets.collect(),
    }))
}
