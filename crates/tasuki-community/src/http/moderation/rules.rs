//! Rules: made, changed and closed by people, with a reason.

#![expect(
    unused_qualifications,
    reason = "what utoipa makes of the parameters names them in full"
)]

use axum::extract::State;
use axum::response::Response;
use serde::{Deserialize, Serialize};
use tasuki::begin;
use tasuki::idempotency::{Answer, Reply};
use tasuki_contract::error::ErrorBody;
use tasuki_contract::timestamp;
use tasuki_service::auth::Unattended;
use tasuki_service::http::{ApiError, IdempotencyKey, Json, NoQuery, Path, Query};
use time::OffsetDateTime;
use utoipa::{IntoParams, ToSchema};
use uuid::Uuid;

use super::super::{App, Moderate};
use super::{decided, failed, respond};
use crate::moderation::{By, Definition, Error, Refused, add_rule, change_rule, close_rule};
use crate::store::moderation::rules::{self as store, Stored};

const PATH: &str = "/v1/moderation/rules";

/// Which rules.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct Asked {
    /// All versions of all rules, also of those that are closed.
    #[serde(default)]
    all: bool,
}

/// A version of a rule. It is for the events that were accepted while it was open.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct RuleView {
    /// Which rule.
    rule_id: Uuid,
    /// Which version of it: 1 is the first.
    version: i32,
    /// What it asks for, and how it labels.
    rule: Definition,
    /// From when on.
    #[serde(with = "timestamp")]
    active_from: OffsetDateTime,
    /// Until when; nothing while it is open.
    #[serde(with = "timestamp::option", skip_serializing_if = "Option::is_none")]
    active_until: Option<OffsetDateTime>,
}

impl RuleView {
    fn of(stored: &Stored) -> Result<Self, Error> {
        Ok(Self {
            rule_id: stored.rule_id,
            version: stored.version,
            rule: serde_json::from_str(&stored.definition)?,
            active_from: stored.life.from,
            active_until: stored.life.until,
        })
    }
}

/// Rules, the oldest first.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Rules {
    rules: Vec<RuleView>,
}

/// A rule, and why.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RuleBody {
    rule: Definition,
    /// Why, for who looks at the audit.
    reason: String,
}

/// The rules that are open, the oldest first. There are 200 at most.
#[utoipa::path(
    get,
    path = "/v1/moderation/rules",
    tag = "moderation",
    security(("bearer" = [])),
    params(Asked),
    responses(
        (status = 200, description = "The oldest first", body = Rules),
        (status = 400, description = "`BAD_REQUEST`", body = ErrorBody),
        (status = 401, description = "`UNAUTHORIZED`", body = ErrorBody),
        (status = 403, description = "`FORBIDDEN`: the scope `community:moderate` is missing", body = ErrorBody),
        (status = 503, description = "`UNAVAILABLE`", body = ErrorBody),
    )
)]
pub(super) async fn list(
    State(app): State<App>,
    _moderator: Unattended<Moderate>,
    Query(asked): Query<Asked>,
) -> Result<Json<Rules>, ApiError> {
    stored(&app, None, !asked.all).await.map(Json)
}

/// All versions of one rule.
#[utoipa::path(
    get,
    path = "/v1/moderation/rules/{rule_id}",
    tag = "moderation",
    security(("bearer" = [])),
    params(("rule_id" = Uuid, Path)),
    responses(
        (status = 200, description = "The first version first", body = Rules),
        (status = 400, description = "`BAD_REQUEST`", body = ErrorBody),
        (status = 401, description = "`UNAUTHORIZED`", body = ErrorBody),
        (status = 403, description = "`FORBIDDEN`: the scope `community:moderate` is missing", body = ErrorBody),
        (status = 404, description = "`NOT_FOUND`", body = ErrorBody),
        (status = 503, description = "`UNAVAILABLE`", body = ErrorBody),
    )
)]
pub(super) async fn show(
    State(app): State<App>,
    _moderator: Unattended<Moderate>,
    Path(id): Path<Uuid>,
    Query(NoQuery {}): Query<NoQuery>,
) -> Result<Json<Rules>, ApiError> {
    let found = stored(&app, Some(id), false).await?;
    if found.rules.is_empty() {
        return Err(ApiError::not_found("there is no such rule"));
    }
    Ok(Json(found))
}

async fn stored(app: &App, rule: Option<Uuid>, is_open: bool) -> Result<Rules, ApiError> {
    let reading = async {
        let mut connection = app.pool.acquire().await?;
        let stored = store::list(&mut connection, rule, is_open).await?;
        let rules = stored.iter().map(RuleView::of);
        rules.collect::<Result<_, Error>>()
    };
    let rules = reading.await.map_err(|error| failed(&error))?;
    Ok(Rules { rules })
}

/// Open a rule, once per key. It labels what is accepted from now on.
#[utoipa::path(
    post,
    path = "/v1/moderation/rules",
    tag = "moderation",
    security(("bearer" = [])),
    params(("Idempotency-Key" = String, Header, description = "1 to 255 visible ASCII characters: repeats with the same key get the first answer")),
    request_body = RuleBody,
    responses(
        (status = 201, description = "Open", body = RuleView),
        (status = 400, description = "`BAD_REQUEST`: names the field", body = ErrorBody),
        (status = 401, description = "`UNAUTHORIZED`", body = ErrorBody),
        (status = 403, description = "`FORBIDDEN`: the scope `community:moderate` is missing", body = ErrorBody),
        (status = 409, description = "`RULE_LIMIT`: there are 200; `IDEMPOTENCY_KEY_CONFLICT`; `IDEMPOTENCY_KEY_IN_PROGRESS`", body = ErrorBody),
        (status = 503, description = "`UNAVAILABLE`: safe to repeat with the same key", body = ErrorBody),
    )
)]
pub(super) async fn add(
    State(app): State<App>,
    moderator: Unattended<Moderate>,
    key: IdempotencyKey,
    Json(body): Json<RuleBody>,
) -> Result<Response, ApiError> {
    let request = key.request(&moderator.caller, PATH, &body)?;
    let actor = moderator.caller.identity();
    let adding = app.idempotency.once(&app.pool, &request, async |tx| {
        let by = By {
            actor: &actor,
            reason: &body.reason,
        };
        let id = match add_rule(tx, &body.rule, by).await {
            Ok(id) => id,
            Err(error) => return decided(error),
        };
        let stored = store::list(tx, Some(id), true).await?;
        let view = stored.into_iter().next().ok_or(Refused::NoRule)?;
        let body = serde_json::to_vec(&RuleView::of(&view)?)?;
        Ok::<_, Error>(Answer::Decided(Reply::new(201, body)))
    });
    respond(adding.await)
}

/// Change a rule, for what is accepted from now on.
#[utoipa::path(
    put,
    path = "/v1/moderation/rules/{rule_id}",
    tag = "moderation",
    security(("bearer" = [])),
    params(("rule_id" = Uuid, Path)),
    request_body = RuleBody,
    responses(
        (status = 200, description = "All versions, the new one last", body = Rules),
        (status = 400, description = "`BAD_REQUEST`: names the field", body = ErrorBody),
        (status = 401, description = "`UNAUTHORIZED`", body = ErrorBody),
        (status = 403, description = "`FORBIDDEN`: the scope `community:moderate` is missing", body = ErrorBody),
        (status = 404, description = "`NOT_FOUND`: there is none, or it is closed", body = ErrorBody),
        (status = 503, description = "`UNAVAILABLE`", body = ErrorBody),
    )
)]
pub(super) async fn change(
    State(app): State<App>,
    moderator: Unattended<Moderate>,
    Path(id): Path<Uuid>,
    Json(body): Json<RuleBody>,
) -> Result<Json<Rules>, ApiError> {
    let actor = moderator.caller.identity();
    let by = By {
        actor: &actor,
        reason: &body.reason,
    };
    let changing = async {
        let mut tx = begin(&app.pool).await?;
        change_rule(&mut tx, id, &body.rule, by).await?;
        Ok::<_, Error>(tx.commit().await?)
    };
    changing.await.map_err(|error| failed(&error))?;
    stored(&app, Some(id), false).await.map(Json)
}

/// Why it is closed.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct Why {
    /// For who looks at the audit.
    reason: String,
}

/// Close a rule. What it has labelled stays labelled.
#[utoipa::path(
    delete,
    path = "/v1/moderation/rules/{rule_id}",
    tag = "moderation",
    security(("bearer" = [])),
    params(("rule_id" = Uuid, Path), Why),
    responses(
        (status = 200, description = "All its versions", body = Rules),
        (status = 400, description = "`BAD_REQUEST`: names the field", body = ErrorBody),
        (status = 401, description = "`UNAUTHORIZED`", body = ErrorBody),
        (status = 403, description = "`FORBIDDEN`: the scope `community:moderate` is missing", body = ErrorBody),
        (status = 404, description = "`NOT_FOUND`: there is none, or it is closed", body = ErrorBody),
        (status = 503, description = "`UNAVAILABLE`", body = ErrorBody),
    )
)]
pub(super) async fn close(
    State(app): State<App>,
    moderator: Unattended<Moderate>,
    Path(id): Path<Uuid>,
    Query(why): Query<Why>,
) -> Result<Json<Rules>, ApiError> {
    let actor = moderator.caller.identity();
    let by = By {
        actor: &actor,
        reason: &why.reason,
    };
    let closing = async {
        let mut tx = begin(&app.pool).await?;
        close_rule(&mut tx, id, by).await?;
        Ok::<_, Error>(tx.commit().await?)
    };
    closing.await.map_err(|error| failed(&error))?;
    stored(&app, Some(id), false).await.map(Json)
}
