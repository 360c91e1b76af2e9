//! The calls that change something.

use axum::extract::State;
use axum::response::Response;
use http::header::HeaderName;
use http::{HeaderValue, StatusCode};
use tasuki::batch;
use tasuki::idempotency::{self, LockNumber, Reply, Request};
use tasuki_contract::entitlement::{
    Bulk, BulkResults, ConsumeBody, Entitlement, GrantBody, RevokeBody,
};
use tasuki_contract::error::ErrorBody;
use tasuki_contract::names::Sku;
use tasuki_service::auth::Unattended;
use tasuki_service::http::{ApiError, IdempotencyKey, Json, answer};
use tasuki_service::telemetry::trace;
use tokio::time::timeout;
use tracing::Span;

use super::access::{Consume, Grant, Revoke};
use super::{App, batch_failed, named};
use crate::commands::{Command, Form, Served, lock};
use crate::domain::{Operation, Order};
use crate::error::{Error, Held};
use crate::patience::Patience;

/// The most items of a bulk request.
const MAX_ITEMS: usize = 1000;
/// Requests by action (`GRANT`, `REVOKE`, `CONSUME`) and result: `success`, `conflict` (by state or
/// by key), `idempotency_reused`, `refused` (an end in the past), `in_progress` (the key is in
/// use), `unavailable` (503), `error` (500: ours).
const COMMANDS_TOTAL: &str = "tasuki_entitlement_commands_total";
/// Says that an answer had been given before.
const REPLAYED: HeaderName = HeaderName::from_static("idempotency-replayed");

/// Grant a SKU to a user.
#[utoipa::path(
    post,
    path = "/v1/entitlements/grants",
    tag = "changes",
    security(("bearer" = [])),
    params(
        ("Idempotency-Key" = String, Header, description = "1 to 255 visible ASCII characters: repeats with the same key get the first answer"),
        ("X-Trace-Id" = Option<String>, Header, description = "The trace that this belongs to, where there is no `traceparent`: 32 hex digits, or a UUID; anything else is ignored"),
    ),
    request_body = GrantBody,
    responses(
        (status = 200, description = "Granted", body = Entitlement),
        (status = 400, description = "`BAD_REQUEST`: names the field", body = ErrorBody),
        (status = 401, description = "`UNAUTHORIZED`", body = ErrorBody),
        (status = 403, description = "`FORBIDDEN`: the scope `entitlement:grant` is missing", body = ErrorBody),
        (status = 409, description = "`ENTITLEMENT_STATE_CONFLICT`: already ACTIVE; `IDEMPOTENCY_KEY_CONFLICT`; `IDEMPOTENCY_KEY_IN_PROGRESS` with `Retry-After`", body = ErrorBody),
        (status = 503, description = "`UNAVAILABLE`: safe to repeat with the same key", body = ErrorBody),
    )
)]
pub(super) async fn grant(
    State(app): State<App>,
    writer: Unattended<Grant>,
    key: IdempotencyKey,
    Json(body): Json<GrantBody>,
) -> Result<Response, ApiError> {
    let request = key.request(&writer.caller, "/v1/entitlements/grants", &body)?;
    let order = grant_order(body, "")?;
    serve_one(&app, "GRANT", request, order).await
}

/// Revoke a SKU from a user.
#[utoipa::path(
    post,
    path = "/v1/entitlements/revokes",
    tag = "changes",
    security(("bearer" = [])),
    params(
        ("Idempotency-Key" = String, Header, description = "1 to 255 visible ASCII characters: repeats with the same key get the first answer"),
        ("X-Trace-Id" = Option<String>, Header, description = "The trace that this belongs to, where there is no `traceparent`: 32 hex digits, or a UUID; anything else is ignored"),
    ),
    request_body = RevokeBody,
    responses(
        (status = 200, description = "Revoked", body = Entitlement),
        (status = 400, description = "`BAD_REQUEST`: names the field", body = ErrorBody),
        (status = 401, description = "`UNAUTHORIZED`", body = ErrorBody),
        (status = 403, description = "`FORBIDDEN`: the scope `entitlement:revoke` is missing", body = ErrorBody),
        (status = 409, description = "`ENTITLEMENT_STATE_CONFLICT`: already REVOKED; `ENTITLEMENT_PURCHASE_CONFLICT`: not by `if_purchase_id`; `IDEMPOTENCY_KEY_CONFLICT`; `IDEMPOTENCY_KEY_IN_PROGRESS` with `Retry-After`", body = ErrorBody),
        (status = 503, description = "`UNAVAILABLE`: safe to repeat with the same key", body = ErrorBody),
    )
)]
pub(super) async fn revoke(
    State(app): State<App>,
    writer: Unattended<Revoke>,
    key: IdempotencyKey,
    Json(body): Json<RevokeBody>,
) -> Result<Response, ApiError> {
    let request = key.request(&writer.caller, "/v1/entitlements/revokes", &body)?;
    let order = revoke_order(body, "")?;
    serve_one(&app, "REVOKE", request, order).await
}

/// Use up some of what a user owns: all that is asked for, or nothing.
#[utoipa::path(
    post,
    path = "/v1/entitlements/consumes",
    tag = "changes",
    security(("bearer" = [])),
    params(("Idempotency-Key" = String, Header, description = "1 to 255 visible ASCII characters: repeats with the same key get the first answer")),
    request_body = ConsumeBody,
    responses(
        (status = 200, description = "Consumed; `quantity` is what is left", body = Entitlement),
        (status = 400, description = "`BAD_REQUEST`: names the field", body = ErrorBody),
        (status = 401, description = "`UNAUTHORIZED`", body = ErrorBody),
        (status = 403, description = "`FORBIDDEN`: the scope `entitlement:consume` is missing", body = ErrorBody),
        (status = 409, description = "`ENTITLEMENT_INSUFFICIENT_QUANTITY`; `ENTITLEMENT_STATE_CONFLICT`: not ACTIVE, or not consumable; `IDEMPOTENCY_KEY_CONFLICT`; `IDEMPOTENCY_KEY_IN_PROGRESS`", body = ErrorBody),
        (status = 503, description = "`UNAVAILABLE`: safe to repeat with the same key", body = ErrorBody),
    )
)]
pub(super) async fn consume(
    State(app): State<App>,
    writer: Unattended<Consume>,
    key: IdempotencyKey,
    Json(body): Json<ConsumeBody>,
) -> Result<Response, ApiError> {
    let request = key.request(&writer.caller, "/v1/entitlements/consumes", &body)?;
    let quantity = positive("quantity", body.quantity)?;
    let order = Order {
        user: named("", "user_id", body.user_id)?,
        sku: named("", "stock_keeping_unit", body.stock_keeping_unit)?,
        operation: Operation::Consume { quantity },
        reason: named("", "reason", body.reason)?,
        purchase: named("", "purchase_id", body.purchase_id)?,
    };
    serve_one(&app, "CONSUME", request, order).await
}

/// Grant many at once: one result per item, idempotent as a whole.
#[utoipa::path(
    post,
    path = "/v1/entitlements/grants/bulk",
    tag = "changes",
    security(("bearer" = [])),
    params(("Idempotency-Key" = String, Header, description = "1 to 255 visible ASCII characters: repeats with the same key get the first answer")),
    request_body = Bulk<GrantBody>,
    responses(
        (status = 200, description = "One result per item, in their order; a refused one has changed nothing", body = BulkResults),
        (status = 400, description = "`BAD_REQUEST`: names the item and the field; nothing was done", body = ErrorBody),
        (status = 403, description = "`FORBIDDEN`: the scope `entitlement:grant` is missing", body = ErrorBody),
        (status = 409, description = "`IDEMPOTENCY_KEY_CONFLICT`; `IDEMPOTENCY_KEY_IN_PROGRESS`", body = ErrorBody),
        (status = 503, description = "`UNAVAILABLE`: safe to repeat with the same key", body = ErrorBody),
    )
)]
pub(super) async fn grant_many(
    State(app): State<App>,
    writer: Unattended<Grant>,
    key: IdempotencyKey,
    Json(body): Json<Bulk<GrantBody>>,
) -> Result<Response, ApiError> {
    let request = key.request(&writer.caller, "/v1/entitlements/grants/bulk", &body)?;
    serve_many(&app, "GRANT", request, body, grant_order).await
}

/// Revoke many at once: one result per item, idempotent as a whole.
#[utoipa::path(
    post,
    path = "/v1/entitlements/revokes/bulk",
    tag = "changes",
    security(("bearer" = [])),
    params(("Idempotency-Key" = String, Header, description = "1 to 255 visible ASCII characters: repeats with the same key get the first answer")),
    request_body = Bulk<RevokeBody>,
    responses(
        (status = 200, description = "One result per item, in their order; a refused one has changed nothing", body = BulkResults),
        (status = 400, description = "`BAD_REQUEST`: names the item and the field; nothing was done", body = ErrorBody),
        (status = 403, description = "`FORBIDDEN`: the scope `entitlement:revoke` is missing", body = ErrorBody),
        (status = 409, description = "`IDEMPOTENCY_KEY_CONFLICT`; `IDEMPOTENCY_KEY_IN_PROGRESS`", body = ErrorBody),
        (status = 503, description = "`UNAVAILABLE`: safe to repeat with the same key", body = ErrorBody),
    )
)]
pub(super) async fn revoke_many(
    State(app): State<App>,
    writer: Unattended<Revoke>,
    key: IdempotencyKey,
    Json(body): Json<Bulk<RevokeBody>>,
) -> Result<Response, ApiError> {
    let request = key.request(&writer.caller, "/v1/entitlements/revokes/bulk", &body)?;
    serve_many(&app, "REVOKE", request, body, revoke_order).await
}

async fn serve_one(
    app: &App,
    action: &'static str,
    request: Request,
    order: Order,
) -> Result<Response, ApiError> {
    let (sku, lock) = (order.sku.clone(), lock(&order));
    let mut command = Command {
        request,
        orders: vec![order],
        form: Form::One,
        traceparent: trace::traceparent(&Span::current()),
        insists: false,
    };
    let mut patience = Patience::new(app.wait);
    let served = loop {
        let served = app.batcher.submit(command.clone()).await;
        let held = match &served {
            Err(batch::Error::Refused(error)) => error.held(),
            _ => None,
        };
        let Some(held) = held else {
            patience.free();
            break served;
        };
        if command.insists {
            if held == Held::Entitlement && patience.is_spokesman() {
                held_for_too_long(&sku, lock);
            }
            break served;
        }
        let may_be_free = match held {
            Held::Key => patience.pause().await,
            Held::Entitlement => patience.outlast(lock, &app.commands.gates).await,
        };
        command.insists = !may_be_free;
    };
    respond(action, served.map_err(|error| batch_failed(&error, failed)))
}

/// Not by everybody who waited for it: by the one who asked for all.
fn held_for_too_long(sku: &Sku, lock: LockNumber) {
    tracing::warn!(
        entitlement.sku = sku.as_str(),
        lock.number = lock.get(),
        "somebody holds an entitlement for too long",
    );
}

async fn serve_many<T>(
    app: &App,
    action: &'static str,
    request: Request,
    body: Bulk<T>,
    order: fn(T, &str) -> Result<Order, ApiError>,
) -> Result<Response, ApiError> {
    if body.items.is_empty() || body.items.len() > MAX_ITEMS {
        return Err(ApiError::bad_request(format!(
            "items has 1 to {MAX_ITEMS} entries"
        )));
    }
    let items = body.items.into_iter().enumerate();
    let orders = items.map(|(index, item)| order(item, &format!("items[{index}].")));
    let command = Command {
        orders: orders.collect::<Result<_, _>>()?,
        request,
        form: Form::Many,
        traceparent: trace::traceparent(&Span::current()),
        insists: false,
    };
    respond(action, serve_in_turn(app, &command).await)
}

/// Does a command with many orders when it is its turn.
async fn serve_in_turn(app: &App, command: &Command) -> Result<Served, ApiError> {
    let mut patience = None;
    loop {
        // Never closed. Given back while it waits for others.
        let Ok(turn) = timeout(app.wait, app.bulk.acquire()).await else {
            let message = "too many bulk requests wait, try again";
            return Err(ApiError::unavailable(message));
        };
        // From its first turn on: what it waited for that is no fault of whoever holds something.
        let patience = patience.get_or_insert_with(|| Patience::new(app.wait));
        let served = app.commands.serve_many(command).await;
        drop(turn);
        let is_held = matches!(&served, Err(error) if error.held().is_some());
        if !is_held || !patience.pause().await {
            return served.map_err(|error| failed(&error));
        }
    }
}

fn respond(action: &'static str, served: Result<Served, ApiError>) -> Result<Response, ApiError> {
    let result = result(&served);
    metrics::counter!(COMMANDS_TOTAL, "action" => action, "result" => result).increment(1);
    match served? {
        Served::Answered(reply) => Ok(as_response(&reply)),
        Served::Replayed(reply) => {
            let mut response = as_response(&reply);
            let told = HeaderValue::from_static("true");
            response.headers_mut().insert(REPLAYED, told);
            Ok(response)
        }
        Served::Malformed(message) => Err(ApiError::bad_request(message)),
        Served::KeyConflict => Err(ApiError::conflict(
            "IDEMPOTENCY_KEY_CONFLICT",
            "the idempotency key was used for another request",
        )),
    }
}

/// What a request is counted as.
fn result(served: &Result<Served, ApiError>) -> &'static str {
    match served {
        Ok(Served::Answered(reply)) if reply.status() < 400 => "success",
        Ok(Served::Answered(_) | Served::KeyConflict) => "conflict",
        Ok(Served::Replayed(_)) => "idempotency_reused",
        Ok(Served::Malformed(_)) => "refused",
        Err(error) => match error.status() {
            StatusCode::CONFLICT => "in_progress",
            StatusCode::SERVICE_UNAVAILABLE => "unavailable",
            _ => "error",
        },
    }
}

fn as_response(reply: &Reply) -> Response {
    let status = StatusCode::from_u16(reply.status()).unwrap_or(StatusCode::OK);
    answer(status, reply.body().clone())
}

fn failed(error: &Error) -> ApiError {
    if let Error::Idempotency(idempotency::Error::InProgress) = error {
        return ApiError::conflict(
            "IDEMPOTENCY_KEY_IN_PROGRESS",
            "a request with this idempotency key is still running, try again",
        )
        .retry_after(std::time::Duration::from_secs(1));
    }
    if let Error::Idempotency(idempotency::Error::Held) = error {
        return ApiError::unavailable("another request is changing this entitlement, try again");
    }
    match error.database() {
        Some(database) => ApiError::database(database),
        None => ApiError::internal(error),
    }
}

fn grant_order(body: GrantBody, at: &str) -> Result<Order, ApiError> {
    let quantity = body
        .quantity
        .map(|it| positive(&format!("{at}quantity"), it));
    Ok(Order {
        user: named(at, "user_id", body.user_id)?,
        sku: named(at, "stock_keeping_unit", body.stock_keeping_unit)?,
        operation: Operation::Grant {
            quantity: quantity.transpose()?,
            expires_at: body.expires_at,
        },
        reason: named(at, "reason", body.reason)?,
        purchase: named(at, "purchase_id", body.purchase_id)?,
    })
}

fn revoke_order(body: RevokeBody, at: &str) -> Result<Order, ApiError> {
    let granted_for = body.if_purchase_id;
    let granted_for = granted_for.map(|it| named(at, "if_purchase_id", it));
    Ok(Order {
        user: named(at, "user_id", body.user_id)?,
        sku: named(at, "stock_keeping_unit", body.stock_keeping_unit)?,
        operation: Operation::Revoke {
            granted_for: granted_for.transpose()?,
        },
        reason: named(at, "reason", body.reason)?,
        purchase: named(at, "purchase_id", body.purchase_id)?,
    })
}

fn positive(field: &str, number: i64) -> Result<i64, ApiError> {
    if number < 1 {
        return Err(ApiError::bad_request(format!("{field} is at least 1")));
    }
    Ok(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_are_not_counted_as_errors() {
        let reply = |status| Reply::new(status, "");
        for (served, counted) in [
            (Ok(Served::Answered(reply(200))), "success"),
            (Ok(Served::Answered(reply(409))), "conflict"),
            (Ok(Served::KeyConflict), "conflict"),
            (Ok(Served::Replayed(reply(409))), "idempotency_reused"),
            (Ok(Served::Malformed(String::new())), "refused"),
            (
                Err(failed(&idempotency::Error::InProgress.into())),
                "in_progress",
            ),
            (Err(failed(&idempotency::Error::Held.into())), "unavailable"),
            (Err(failed(&idempotency::Error::Broken.into())), "error"),
        ] {
            assert_eq!(result(&served), counted);
        }
    }
}
