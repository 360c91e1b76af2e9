//! Orders: taken, shown, cancelled.

use axum::extract::State;
use axum::response::Response;
use http::StatusCode;
use tasuki_contract::error::ErrorBody;
use tasuki_contract::ids::OrderId;
use tasuki_contract::names::PurchaseId;
use tasuki_contract::shop::{Order, OrderTaken, PlaceOrder};
use tasuki_service::auth::{Caller, Permitted};
use tasuki_service::http::{ApiError, IdempotencyKey, Json, NoQuery, Path, Query};

use super::access;
use super::{App, failed, named, respond};
use crate::domain::{Basket, MAX_ITEMS, MAX_QUANTITY, Wanted, twice};
use crate::error::Error;

/// Order something. It goes on by itself: look at it with `GET /v1/orders/{order_id}`.
#[utoipa::path(
    post,
    path = "/v1/orders",
    tag = "orders",
    security(("bearer" = [])),
    params(("Idempotency-Key" = String, Header, description = "1 to 255 visible ASCII characters: repeats with the same key get the first answer")),
    request_body = PlaceOrder,
    responses(
        (status = 202, description = "Taken, with the prices of now", body = OrderTaken),
        (status = 400, description = "`BAD_REQUEST`: names the field", body = ErrorBody),
        (status = 401, description = "`UNAUTHORIZED`", body = ErrorBody),
        (status = 403, description = "`FORBIDDEN`: the scope `shop:order` is missing, or it is another user", body = ErrorBody),
        (status = 409, description = "`PRODUCT_NOT_FOUND`; `CURRENCY_CONFLICT`; `QUANTITY_CONFLICT`: it can be owned only once; `IDEMPOTENCY_KEY_CONFLICT`; `IDEMPOTENCY_KEY_IN_PROGRESS` with `Retry-After`", body = ErrorBody),
        (status = 503, description = "`UNAVAILABLE`: safe to repeat with the same key", body = ErrorBody),
    )
)]
pub(super) async fn place(
    State(app): State<App>,
    buyer: Permitted<access::Order>,
    key: IdempotencyKey,
    Json(body): Json<PlaceOrder>,
) -> Result<Response, ApiError> {
    buyer.owns(&body.user_id)?;
    let request = key.request(&buyer.caller, "/v1/orders", &body)?;
    let basket = basket(body)?;
    respond(app.commands.place(&request, basket).await)
}

/// An order, with its items and its history.
#[utoipa::path(
    get,
    path = "/v1/orders/{order_id}",
    tag = "orders",
    security(("bearer" = [])),
    params(("order_id" = String, Path)),
    responses(
        (status = 200, description = "The order", body = Order),
        (status = 400, description = "`BAD_REQUEST`: not an id, or a query", body = ErrorBody),
        (status = 401, description = "`UNAUTHORIZED`", body = ErrorBody),
        (status = 403, description = "`FORBIDDEN`", body = ErrorBody),
        (status = 404, description = "`NOT_FOUND`: also when it is another user's", body = ErrorBody),
        (status = 503, description = "`UNAVAILABLE`", body = ErrorBody),
    )
)]
pub(super) async fn show(
    State(app): State<App>,
    reader: Permitted<access::Read>,
    Path(order): Path<String>,
    Query(NoQuery {}): Query<NoQuery>,
) -> Result<Json<Order>, ApiError> {
    Ok(Json(find(&app, &reader, &order).await?))
}

/// Undo an order, as long as it is not completed. It goes back by itself.
#[utoipa::path(
    post,
    path = "/v1/orders/{order_id}:cancel",
    tag = "orders",
    security(("bearer" = [])),
    params(("order_id" = String, Path)),
    responses(
        (status = 202, description = "It is on its way back, or back. An order that is just then confirmed may still complete", body = OrderTaken),
        (status = 400, description = "`BAD_REQUEST`: not an id", body = ErrorBody),
        (status = 401, description = "`UNAUTHORIZED`", body = ErrorBody),
        (status = 403, description = "`FORBIDDEN`: the scope `shop:order` is missing", body = ErrorBody),
        (status = 404, description = "`NOT_FOUND`: also when it is another user's", body = ErrorBody),
        (status = 409, description = "`ORDER_STATE_CONFLICT`: it is completed", body = ErrorBody),
        (status = 503, description = "`UNAVAILABLE`", body = ErrorBody),
    )
)]
pub(super) async fn cancel(
    State(app): State<App>,
    buyer: Permitted<access::Order>,
    Path(order_and_verb): Path<String>,
) -> Result<(StatusCode, Json<OrderTaken>), ApiError> {
    let Some(order) = order_and_verb.strip_suffix(":cancel") else {
        return Err(ApiError::not_found("there is nothing at this path"));
    };
    let order = find(&app, &buyer, order).await?.order_id;
    let by = who(&buyer.caller);
    let taken = app.commands.cancel(order, &by).await;
    let taken = taken.map_err(|error| failed(&error))?;
    Ok((StatusCode::ACCEPTED, Json(taken)))
}

/// An order that this caller may see.
async fn find<S>(app: &App, reader: &Permitted<S>, text: &str) -> Result<Order, ApiError> {
    let order: OrderId = text
        .parse()
        .map_err(|_error| ApiError::bad_request("order_id is not a UUID"))?;
    let found = app.queries.order(order).await;
    let found = found.map_err(|error| failed(&error))?;
    // Whose orders there are is nobody else's business.
    let found = found.filter(|found| reader.owns(&found.user_id).is_ok());
    found.ok_or_else(|| failed(&Error::NoOrder))
}

/// Who it is that wants an order undone, as its history shows it.
fn who(caller: &Caller) -> String {
    match caller {
        Caller::Service {
            user: Some(user), ..
        } => format!("user {user}"),
        Caller::Service { service, .. } => format!("service {service}"),
        Caller::ApiKey { name, .. } => format!("API key {name}"),
        Caller::Operator { name, .. } => format!("operator {name}"),
    }
}

fn basket(body: PlaceOrder) -> Result<Basket, ApiError> {
    if body.items.is_empty() || body.items.len() > MAX_ITEMS {
        let message = format!("items has 1 to {MAX_ITEMS} entries");
        return Err(ApiError::bad_request(message));
    }
    let mut items = Vec::with_capacity(body.items.len());
    for (index, item) in body.items.into_iter().enumerate() {
        if !(1..=MAX_QUANTITY).contains(&item.quantity) {
            let message = format!("items[{index}].quantity is from 1 to {MAX_QUANTITY}");
            return Err(ApiError::bad_request(message));
        }
        let field = format!("items[{index}].stock_keeping_unit");
        items.push(Wanted {
            sku: named(&field, item.stock_keeping_unit)?,
            quantity: item.quantity,
        });
    }
    if let Some(sku) = twice(&items) {
        let message = format!("items has {sku} twice: add up the quantities");
        return Err(ApiError::bad_request(message));
    }
    let method: PurchaseId = named("payment_method", body.payment_method)?;
    Ok(Basket {
        user: named("user_id", body.user_id)?,
        items,
        payment_method: method.into(),
        flow: body.flow,
    })
}
