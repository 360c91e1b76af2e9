//! Labels: read by anybody who may, given and taken back by people.

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
use tasuki_service::auth::{Permitted, Unattended};
use tasuki_service::http::{ApiError, IdempotencyKey, Json, Path, Query};
use time::OffsetDateTime;
use utoipa::{IntoParams, ToSchema};
use uuid::Uuid;

use super::super::{App, Moderate, Read};
use super::{behind, cursor, decided, failed, limit, respond};
use crate::moderation::{By, Error, Saying};
use crate::nostr::{Id, Key, Target};
use crate::store::moderation::labels::{self as store, Kept, Wanted};

const PATH: &str = "/v1/labels";

/// Which labels.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct Asked {
    /// Of this: `event:<id>`, `pubkey:<key>`, `address:<kind:pubkey:d>` or `identifier:<NIP-73>`.
    target: Option<String>,
    /// Of this author, and of what is by them: 64 digits of lower-case hexadecimal.
    author: Option<String>,
    /// Of this word.
    label: Option<String>,
    /// Only those that hold, or only those that have lapsed or were withdrawn.
    active: Option<bool>,
    /// `next` of the page before.
    cursor: Option<String>,
    /// At most this many: 1 to 500, 50 unless it is said.
    limit: Option<u16>,
}

/// A label.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct LabelView {
    /// Which.
    label_id: Uuid,
    /// What is labelled.
    target: String,
    /// The word.
    label: String,
    /// `rule` or `operator`.
    origin: String,
    /// By which rule.
    #[serde(skip_serializing_if = "Option::is_none")]
    rule_id: Option<Uuid>,
    /// By which version of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    rule_version: Option<i32>,
    /// Whose it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    author: Option<String>,
    /// From 0 to 1.
    confidence: f64,
    /// From when on it holds.
    #[serde(with = "timestamp")]
    issued_at: OffsetDateTime,
    /// When it lapses.
    #[serde(with = "timestamp")]
    expires_at: OffsetDateTime,
    /// Whether it holds.
    active: bool,
    /// When it was taken back.
    #[serde(with = "timestamp::option", skip_serializing_if = "Option::is_none")]
    withdrawn_at: Option<OffsetDateTime>,
    /// The policy that it follows from.
    #[serde(skip_serializing_if = "Option::is_none")]
    policy_url: Option<String>,
    /// The place in it.
    #[serde(skip_serializing_if = "Option::is_none")]
    policy_ref: Option<String>,
    /// Where it was published.
    topics: Vec<String>,
    /// The event by which the node says it.
    event_id: String,
}

impl From<Kept> for LabelView {
    fn from(kept: Kept) -> Self {
        let author = kept.author.and_then(|key| key.try_into().ok());
        let event = Id::from_slice(&kept.node_event_id);
        Self {
            label_id: kept.label_id,
            target: kept.target,
            label: kept.label,
            origin: kept.origin,
            rule_id: kept.rule_id,
            rule_version: kept.rule_version,
            author: author.map(|key| Key(key).to_string()),
            confidence: kept.confidence,
            issued_at: kept.issued_at,
            expires_at: kept.expires_at,
            active: kept.is_active,
            withdrawn_at: kept.withdrawn_at,
            policy_url: kept.policy_url,
            policy_ref: kept.policy_ref,
            topics: kept.topics,
            event_id: event.map(|id| id.to_string()).unwrap_or_default(),
        }
    }
}

/// A page of labels, the last first.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Labels {
    labels: Vec<LabelView>,
    /// `cursor` of the next page, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<String>,
}

/// Labels that were given, the last first.
#[utoipa::path(
    get,
    path = "/v1/labels",
    tag = "moderation",
    security(("bearer" = [])),
    params(Asked),
    responses(
        (status = 200, description = "The last first", body = Labels),
        (status = 400, description = "`BAD_REQUEST`: names the field", body = ErrorBody),
        (status = 401, description = "`UNAUTHORIZED`", body = ErrorBody),
        (status = 403, description = "`FORBIDDEN`: the scope `community:read` is missing", body = ErrorBody),
        (status = 503, description = "`UNAVAILABLE`", body = ErrorBody),
    )
)]
pub(super) async fn list(
    State(app): State<App>,
    _permitted: Permitted<Read>,
    Query(asked): Query<Asked>,
) -> Result<Json<Labels>, ApiError> {
    let limit = limit(asked.limit)?;
    if let Some(target) = &asked.target {
        let target = target.parse::<Target>();
        target.map_err(|problem| ApiError::bad_request(format!("target {problem}")))?;
    }
    let author = asked.author.as_deref().map(|text| {
        let error = || ApiError::bad_request("author is not 64 digits of lower-case hexadecimal");
        Key::parse(text).ok_or_else(error)
    });
    let wanted = Wanted {
        target: asked.target,
        author: author.transpose()?.map(|key| key.0.to_vec()),
        label: asked.label,
        is_active: asked.active,
        before: behind(asked.cursor.as_deref())?,
        limit: limit + 1,
    };
    let found = async {
        let mut connection = app.pool.acquire().await?;
        store::list(&mut connection, &wanted).await
    };
    let mut found = found.await.map_err(|error| ApiError::database(&error))?;
    let most = usize::try_from(limit).unwrap_or(usize::MAX);
    let is_more = found.len() > most;
    found.truncate(most);
    let last = found.last().filter(|_| is_more);
    Ok(Json(Labels {
        next: last.map(|last| cursor(last.issued_at, last.label_id)),
        labels: found.into_iter().map(LabelView::from).collect(),
    }))
}

/// What a person says of a target, and why.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct LabelBody {
    /// `event:<id>`, `pubkey:<key>`, `address:<kind:pubkey:d>` or `identifier:<NIP-73>`.
    target: String,
    /// One word, in lower case.
    #[schema(example = "spam")]
    label: String,
    /// How sure it is; 1 unless it is said.
    #[serde(default = "sure")]
    #[schema(minimum = 0, maximum = 1)]
    confidence: f64,
    /// How long it holds: up to ten years.
    #[schema(minimum = 1, maximum = 315_360_000)]
    expires_in_seconds: i64,
    /// The policy that it follows from.
    #[serde(default)]
    policy_url: Option<String>,
    /// The place in it.
    #[serde(default)]
    policy_ref: Option<String>,
    /// Where it is published; where the target is, unless it is said.
    #[serde(default)]
    topics: Vec<String>,
    /// Why: its author is told, and who looks at the audit.
    reason: String,
}

const fn sure() -> f64 {
    1.0
}

/// Label something, once per key.
#[utoipa::path(
    post,
    path = "/v1/labels",
    tag = "moderation",
    security(("bearer" = [])),
    params(("Idempotency-Key" = String, Header, description = "1 to 255 visible ASCII characters: repeats with the same key get the first answer")),
    request_body = LabelBody,
    responses(
        (status = 201, description = "Given and published", body = LabelView),
        (status = 400, description = "`BAD_REQUEST`: names the field", body = ErrorBody),
        (status = 401, description = "`UNAUTHORIZED`", body = ErrorBody),
        (status = 403, description = "`FORBIDDEN`: the scope `community:moderate` is missing", body = ErrorBody),
        (status = 409, description = "`LABEL_LIMIT`: the target has five; `LABEL_EXISTS`; `NODE_HAS_NO_KEYS`; `IDEMPOTENCY_KEY_CONFLICT`; `IDEMPOTENCY_KEY_IN_PROGRESS`", body = ErrorBody),
        (status = 503, description = "`UNAVAILABLE`: safe to repeat with the same key", body = ErrorBody),
    )
)]
pub(super) async fn add(
    State(app): State<App>,
    moderator: Unattended<Moderate>,
    key: IdempotencyKey,
    Json(body): Json<LabelBody>,
) -> Result<Response, ApiError> {
    let request = key.request(&moderator.caller, PATH, &body)?;
    let labels = app.moderator()?;
    let actor = moderator.caller.identity();
    let saying = Saying {
        target: body.target,
        label: body.label,
        confidence: body.confidence,
        expires_in_seconds: body.expires_in_seconds,
        policy_url: body.policy_url,
        policy_ref: body.policy_ref,
        topics: body.topics,
    };
    let saying = app.idempotency.once(&app.pool, &request, async |tx| {
        let by = By {
            actor: &actor,
            reason: &body.reason,
        };
        match labels.label(tx, &saying, &app.topics, by).await {
            Ok(kept) => {
                let body = serde_json::to_vec(&LabelView::from(kept))?;
                Ok::<_, Error>(Answer::Decided(Reply::new(201, body)))
            }
            Err(error) => decided(error),
        }
    });
    let said = saying.await;
    app.said();
    respond(said)
}

/// Why it is taken back.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct Why {
    /// Published with the deletion and told to the author, and for who looks at the audit.
    reason: String,
}

/// Take a label back. The row stays, and says when.
#[utoipa::path(
    delete,
    path = "/v1/labels/{label_id}",
    tag = "moderation",
    security(("bearer" = [])),
    params(("label_id" = Uuid, Path), Why),
    responses(
        (status = 200, description = "Taken back, and its event deleted", body = LabelView),
        (status = 400, description = "`BAD_REQUEST`: names the field", body = ErrorBody),
        (status = 401, description = "`UNAUTHORIZED`", body = ErrorBody),
        (status = 403, description = "`FORBIDDEN`: the scope `community:moderate` is missing", body = ErrorBody),
        (status = 404, description = "`NOT_FOUND`", body = ErrorBody),
        (status = 409, description = "`LABEL_STATE_CONFLICT`: it has lapsed, or was withdrawn before; `NODE_HAS_NO_KEYS`", body = ErrorBody),
        (status = 503, description = "`UNAVAILABLE`", body = ErrorBody),
    )
)]
pub(super) async fn withdraw(
    State(app): State<App>,
    moderator: Unattended<Moderate>,
    Path(id): Path<Uuid>,
    Query(why): Query<Why>,
) -> Result<Json<LabelView>, ApiError> {
    let labels = app.moderator()?;
    let actor = moderator.caller.identity();
    let by = By {
        actor: &actor,
        reason: &why.reason,
    };
    let withdrawing = async {
        let mut tx = begin(&app.pool).await?;
        let kept = labels.withdraw(&mut tx, id, by).await?;
        tx.commit().await?;
        Ok::<_, Error>(kept)
    };
    let kept = withdrawing.await.map_err(|error| failed(&error))?;
    app.said();
    Ok(Json(LabelView::from(kept)))
}
