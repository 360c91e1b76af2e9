//! Webhooks of a user: register, list, change, pause, rotate, test, look at the attempts, send again.

pub(super) mod change;

use std::time::Duration;

use axum::extract::State;
use bytes::Bytes;
use http::StatusCode;
use serde_json::json;
use sqlx::PgConnection;
use tasuki::begin;
use tasuki_contract::error::{self as codes, ErrorBody};
use tasuki_contract::ids::{EndpointId, NotificationId};
use tasuki_contract::names::{Reason, UserId};
use tasuki_contract::notification::{
    NewWebhook, Webhook, WebhookAttempt, WebhookAttempts, Webhooks,
};
use tasuki_contract::timestamp;
use tasuki_service::auth::Permitted;
use tasuki_service::http::{ApiError, Json, Path};

use super::access::{Read, Write};
use super::{App, user_of};
use crate::delivery;
use crate::store::webhooks::{self, Attempt, Door, Endpoint, owed, trouble};
use crate::webhook::send::{Outgoing, Verdict};
use crate::webhook::sign::Secret;

/// Attempts that are shown.
const SHOWN: i64 = 100;
const A_MINUTE: Duration = Duration::from_secs(60);
/// Tests of one webhook within a minute.
const TESTS: i32 = 5;
const MAX_DESCRIPTION: usize = 255;
const MAX_TYPES: usize = 50;

/// A user's webhooks, without their secrets.
#[utoipa::path(
    get,
    path = "/v1/users/{user_id}/webhooks",
    tag = "webhooks",
    security(("bearer" = [])),
    params(("user_id" = String, Path)),
    responses(
        (status = 200, description = "The oldest first", body = Webhooks),
        (status = 403, description = "`FORBIDDEN`", body = ErrorBody),
        (status = 503, description = "`UNAVAILABLE`", body = ErrorBody),
    )
)]
pub(super) async fn list(
    State(app): State<App>,
    permitted: Permitted<Read>,
    Path(user): Path<String>,
) -> Result<Json<Webhooks>, ApiError> {
    permitted.owns(&user)?;
    let user = user_of(user)?;
    let mut connection = connection(&app).await?;
    let all = webhooks::list(&mut connection, user.as_str()).await;
    let all = all.map_err(|error| ApiError::database(&error))?;
    Ok(Json(Webhooks {
        webhooks: all.into_iter().map(|it| shown(it, None)).collect(),
    }))
}

/// Register a webhook. Its secret is told now, and never again.
#[utoipa::path(
    post,
    path = "/v1/users/{user_id}/webhooks",
    tag = "webhooks",
    security(("bearer" = [])),
    params(("user_id" = String, Path)),
    request_body = NewWebhook,
    responses(
        (status = 201, description = "Registered", body = Webhook),
        (status = 400, description = "`BAD_REQUEST`: an address that is not public, say", body = ErrorBody),
        (status = 403, description = "`FORBIDDEN`", body = ErrorBody),
        (status = 409, description = "`WEBHOOK_LIMIT`: the user has as many as there may be", body = ErrorBody),
        (status = 503, description = "`UNAVAILABLE`", body = ErrorBody),
    )
)]
pub(super) async fn create(
    State(app): State<App>,
    permitted: Permitted<Write>,
    Path(user): Path<String>,
    Json(body): Json<NewWebhook>,
) -> Result<(StatusCode, Json<Webhook>), ApiError> {
    permitted.owns(&user)?;
    let user = user_of(user)?;
    check(&body.description, &body.types)?;
    let url = public(&app, &body.url)?;
    let secret = Secret::generate().map_err(|error| ApiError::internal(&error))?;
    let id = EndpointId::new(&app.clock);
    let stored = store(&app, &user, id, &url, &body, &secret).await;
    let endpoint = stored.map_err(|error| ApiError::database(&error))?;
    let endpoint = endpoint.ok_or_else(|| {
        let most = app.endpoints_per_user;
        ApiError::conflict(
            "WEBHOOK_LIMIT",
            format!("there are {most} webhooks already"),
        )
    })?;
    Ok((StatusCode::CREATED, Json(shown(endpoint, Some(&secret)))))
}

/// Remove a webhook. What it is still owed is not sent any more.
#[utoipa::path(
    delete,
    path = "/v1/users/{user_id}/webhooks/{endpoint_id}",
    tag = "webhooks",
    security(("bearer" = [])),
    params(("user_id" = String, Path), ("endpoint_id" = EndpointId, Path)),
    responses(
        (status = 204, description = "Removed"),
        (status = 403, description = "`FORBIDDEN`", body = ErrorBody),
        (status = 404, description = "`NOT_FOUND`", body = ErrorBody),
        (status = 503, description = "`UNAVAILABLE`", body = ErrorBody),
    )
)]
pub(super) async fn delete(
    State(app): State<App>,
    permitted: Permitted<Write>,
    Path((user, id)): Path<(String, EndpointId)>,
) -> Result<StatusCode, ApiError> {
    permitted.owns(&user)?;
    let user = user_of(user)?;
    let mut connection = connection(&app).await?;
    let deleted = webhooks::delete(&mut connection, user.as_str(), id.as_uuid()).await;
    if !deleted.map_err(|error| ApiError::database(&error))? {
        return Err(unknown());
    }
    // What it was owed is withdrawn by whoever delivers.
    app.deliveries.ring();
    Ok(StatusCode::NO_CONTENT)
}

/// Send a test message now, and say how it went.
///
/// It goes out whatever the state of the webhook. One that arrives ends the pause that failures
/// have led to.
#[utoipa::path(
    post,
    path = "/v1/users/{user_id}/webhooks/{endpoint_id}/test",
    tag = "webhooks",
    security(("bearer" = [])),
    params(("user_id" = String, Path), ("endpoint_id" = EndpointId, Path)),
    responses(
        (status = 200, description = "How it went", body = WebhookAttempt),
        (status = 403, description = "`FORBIDDEN`", body = ErrorBody),
        (status = 404, description = "`NOT_FOUND`", body = ErrorBody),
        (status = 429, description = "`TOO_MANY_REQUESTS`: five tests within a minute", body = ErrorBody),
        (status = 503, description = "`UNAVAILABLE`", body = ErrorBody),
    )
)]
pub(super) async fn test(
    State(app): State<App>,
    permitted: Permitted<Write>,
    Path((user, id)): Path<(String, EndpointId)>,
) -> Result<Json<WebhookAttempt>, ApiError> {
    permitted.owns(&user)?;
    let user = user_of(user)?;
    let door = door_for_test(&app, &user, id).await?;
    let notification = NotificationId::new(&app.clock);
    let secrets = delivery::secrets(&door);
    let told = json!({
        "type": "Test",
        "timestamp": timestamp::format(door.now).unwrap_or_default(),
        "notification_id": notification,
        "data": { "user_id": user.as_str() },
    });
    let outgoing = Outgoing {
        url: &door.url,
        secrets: &secrets,
        id: delivery::message_id(notification.as_uuid()),
        timestamp: door.now,
        body: Bytes::from(told.to_string()),
    };
    let sent = app.sender.send(&outgoing).await;
    let attempt = delivery::attempt(&app.clock, id.as_uuid(), notification.as_uuid(), &sent);
    let mut connection = connection(&app).await?;
    webhooks::log(&mut connection, &attempt)
        .await
        .map_err(|error| ApiError::database(&error))?;
    if sent.verdict == Verdict::Delivered && door.is_troubled {
        trouble::succeeded(&mut connection, id.as_uuid(), &door.url, None)
            .await
            .map_err(|error| ApiError::database(&error))?;
        app.deliveries.ring();
    }
    Ok(Json(logged(attempt)))
}

/// The latest attempts at a webhook.
#[utoipa::path(
    get,
    path = "/v1/users/{user_id}/webhooks/{endpoint_id}/attempts",
    tag = "webhooks",
    security(("bearer" = [])),
    params(("user_id" = String, Path), ("endpoint_id" = EndpointId, Path)),
    responses(
        (status = 200, description = "The latest 100", body = WebhookAttempts),
        (status = 403, description = "`FORBIDDEN`", body = ErrorBody),
        (status = 404, description = "`NOT_FOUND`", body = ErrorBody),
        (status = 503, description = "`UNAVAILABLE`", body = ErrorBody),
    )
)]
pub(super) async fn attempts(
    State(app): State<App>,
    permitted: Permitted<Read>,
    Path((user, id)): Path<(String, EndpointId)>,
) -> Result<Json<WebhookAttempts>, ApiError> {
    permitted.owns(&user)?;
    let user = user_of(user)?;
    let mut connection = connection(&app).await?;
    find(&mut connection, &user, id).await?;
    let attempts = webhooks::attempts(&mut connection, id.as_uuid(), SHOWN).await;
    let attempts = attempts.map_err(|error| ApiError::database(&error))?;
    Ok(Json(WebhookAttempts {
        attempts: attempts.into_iter().map(logged).collect(),
    }))
}

/// Send a notification that this webhook was sent once more, under the same id.
#[utoipa::path(
    post,
    path = "/v1/users/{user_id}/webhooks/{endpoint_id}/replay/{notification_id}",
    tag = "webhooks",
    security(("bearer" = [])),
    params(
        ("user_id" = String, Path), ("endpoint_id" = EndpointId, Path),
        ("notification_id" = NotificationId, Path),
    ),
    responses(
        (status = 202, description = "It will be sent again"),
        (status = 403, description = "`FORBIDDEN`", body = ErrorBody),
        (status = 404, description = "`NOT_FOUND`: this webhook was not sent it", body = ErrorBody),
        (status = 409, description = "`WEBHOOK_DISABLED`: it is disabled or paused, resume it first", body = ErrorBody),
        (status = 503, description = "`UNAVAILABLE`", body = ErrorBody),
    )
)]
pub(super) async fn replay(
    State(app): State<App>,
    permitted: Permitted<Write>,
    Path((user, id, notification)): Path<(String, EndpointId, NotificationId)>,
) -> Result<StatusCode, ApiError> {
    permitted.owns(&user)?;
    let user = user_of(user)?;
    let mut connection = connection(&app).await?;
    // What was sent would wait, and be withdrawn in the end.
    if find(&mut connection, &user, id).await?.status != "ENABLED" {
        let message = "the webhook is disabled or paused: resume it first";
        return Err(ApiError::conflict("WEBHOOK_DISABLED", message));
    }
    let (endpoint, notification) = (id.as_uuid(), notification.as_uuid());
    let again = owed::replay(&mut connection, user.as_str(), endpoint, notification).await;
    if !again.map_err(|error| ApiError::database(&error))? {
        return Err(ApiError::not_found(
            "this webhook was not sent such a notification",
        ));
    }
    app.deliveries.ring();
    Ok(StatusCode::ACCEPTED)
}

type Connection = sqlx::pool::PoolConnection<sqlx::Postgres>;

async fn connection(app: &App) -> Result<Connection, ApiError> {
    let connection = app.pool.acquire().await;
    connection.map_err(|error| ApiError::database(&error))
}

type Transaction = sqlx::Transaction<'static, sqlx::Postgres>;

async fn transaction(app: &App) -> Result<Transaction, ApiError> {
    let begun = begin(&app.pool).await;
    begun.map_err(|error| ApiError::database(&error))
}

async fn commit(tx: Transaction) -> Result<(), ApiError> {
    let done = tx.commit().await;
    done.map_err(|error| ApiError::database(&error))
}

async fn find(
    connection: &mut PgConnection,
    user: &UserId,
    id: EndpointId,
) -> Result<Endpoint, ApiError> {
    let found = webhooks::find(connection, user.as_str(), id.as_uuid()).await;
    let found = found.map_err(|error| ApiError::database(&error))?;
    found.ok_or_else(unknown)
}

/// The door to a webhook that may be tested once more.
async fn door_for_test(app: &App, user: &UserId, id: EndpointId) -> Result<Door, ApiError> {
    let mut connection = connection(app).await?;
    find(&mut connection, user, id).await?;
    let counted = webhooks::count_test(&mut connection, id.as_uuid(), TESTS).await;
    if !counted.map_err(|error| ApiError::database(&error))? {
        return Err(ApiError::new(
            StatusCode::TOO_MANY_REQUESTS,
            codes::TOO_MANY_REQUESTS,
            format!("a webhook is tested at most {TESTS} times a minute"),
        )
        .retry_after(A_MINUTE));
    }
    let door = webhooks::door(&mut connection, id.as_uuid()).await;
    let door = door.map_err(|error| ApiError::database(&error))?;
    door.ok_or_else(unknown)
}

async fn store(
    app: &App,
    user: &UserId,
    id: EndpointId,
    url: &str,
    body: &NewWebhook,
    secret: &Secret,
) -> sqlx::Result<Option<Endpoint>> {
    let mut tx = begin(&app.pool).await?;
    let new = webhooks::New {
        id: id.as_uuid(),
        user: user.as_str(),
        url,
        description: &body.description,
        types: &body.types,
        secret: secret.expose(),
    };
    let most = i64::from(app.endpoints_per_user);
    if !webhooks::create(&mut tx, &new, most).await? {
        return Ok(None);
    }
    let made = webhooks::find(&mut tx, user.as_str(), id.as_uuid()).await?;
    tx.commit().await?;
    Ok(made)
}

/// The address as it is kept, if it may be called.
fn public(app: &App, url: &str) -> Result<String, ApiError> {
    let url = app.guard.check_url(url);
    let url = url.map_err(|why| ApiError::bad_request(format!("url {}", why.rule())))?;
    Ok(url.into())
}

fn check(description: &str, types: &[String]) -> Result<(), ApiError> {
    let long = description.chars().count() > MAX_DESCRIPTION;
    if long || description.chars().any(char::is_control) {
        return Err(ApiError::bad_request(
            "description has at most 255 characters, none of them a control character",
        ));
    }
    let named = |kind: &String| Reason::try_from(kind.clone()).is_ok();
    if types.len() > MAX_TYPES || !types.iter().all(named) {
        return Err(ApiError::bad_request("types has at most 50 names of types"));
    }
    Ok(())
}

fn unknown() -> ApiError {
    ApiError::not_found("there is no such webhook")
}

fn disabled() -> ApiError {
    let message = "the webhook is disabled: resume it first";
    ApiError::conflict("WEBHOOK_DISABLED", message)
}

fn shown(endpoint: Endpoint, secret: Option<&Secret>) -> Webhook {
    Webhook {
        endpoint_id: endpoint.endpoint_id.into(),
        url: endpoint.url,
        description: endpoint.description,
        types: endpoint.types,
        status: endpoint.status,
        disabled_reason: endpoint.disabled_reason,
        created_at: endpoint.created_at,
        updated_at: endpoint.updated_at,
        secret: secret.map(|it| it.expose().to_owned()),
    }
}

fn logged(attempt: Attempt) -> WebhookAttempt {
    WebhookAttempt {
        attempt_id: attempt.attempt_id.into(),
        notification_id: attempt.notification_id.into(),
        attempted_at: attempt.attempted_at,
        outcome: attempt.outcome,
        response_code: attempt.response_code,
        took_ms: attempt.took_ms,
        error: attempt.error,
        excerpt: attempt.excerpt,
    }
}
