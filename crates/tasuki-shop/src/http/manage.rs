//! What the shop's own people do: prices, stock, and looking whether everything matches.

#![expect(
    unused_qualifications,
    reason = "what utoipa makes of the parameters names them in full"
)]

use axum::extract::State;
use axum::response::Response;
use serde::Deserialize;
use tasuki_contract::error::ErrorBody;
use tasuki_contract::names::Sku;
use tasuki_contract::shop::{
    Notices, Product, ProductBody, ReceiptBody, Reconciliation, Stock, Transfer, TransferBody,
};
use tasuki_service::auth::{Operator, Unattended};
use tasuki_service::http::{ApiError, IdempotencyKey, Json, NoQuery, Path, Query};
use utoipa::IntoParams;

use super::access::Manage;
use super::{App, failed, named, respond};
use crate::domain::Price;
use crate::error::Error;
use crate::parts::Notice;
use crate::store::catalogue;

/// The most pieces that come or move at once: sums stay far from the end of numbers.
const MOST: i64 = 1_000_000_000;
/// Notices of a page, unless asked for otherwise, and at most.
const PAGE: (u16, u16) = (100, 500);

/// Sell a SKU at a price, or at another one from now on.
#[utoipa::path(
    put,
    path = "/v1/products/{stock_keeping_unit}",
    tag = "manage",
    security(("bearer" = [])),
    params(("stock_keeping_unit" = String, Path)),
    request_body = ProductBody,
    responses(
        (status = 200, description = "Orders from now on cost this", body = Product),
        (status = 400, description = "`BAD_REQUEST`: names the field", body = ErrorBody),
        (status = 401, description = "`UNAUTHORIZED`", body = ErrorBody),
        (status = 403, description = "`FORBIDDEN`: the scope `shop:manage` is missing", body = ErrorBody),
        (status = 503, description = "`UNAVAILABLE`", body = ErrorBody),
    )
)]
pub(super) async fn put_product(
    State(app): State<App>,
    _manager: Unattended<Manage>,
    Path(sku): Path<String>,
    Json(body): Json<ProductBody>,
) -> Result<Json<Product>, ApiError> {
    let sku: Sku = named("stock_keeping_unit", sku)?;
    if body.price < 0 {
        return Err(ApiError::bad_request("price is at least 0"));
    }
    let is_code =
        body.currency.len() == 3 && body.currency.bytes().all(|it| it.is_ascii_uppercase());
    if !is_code {
        return Err(ApiError::bad_request("currency has three capital letters"));
    }
    let price = Price {
        sku: sku.into(),
        price: body.price,
        currency: body.currency,
        consumable: body.consumable,
    };
    let stored = async {
        let mut connection = app.queries.pool.acquire().await?;
        catalogue::put(&mut connection, &price).await
    };
    stored.await.map_err(|error| ApiError::database(&error))?;
    Ok(Json(Product {
        stock_keeping_unit: price.sku,
        price: price.price,
        currency: price.currency,
        consumable: price.consumable,
    }))
}

/// Goods arrive in the main warehouse.
#[utoipa::path(
    post,
    path = "/v1/stock/receipts",
    tag = "manage",
    security(("bearer" = [])),
    params(("Idempotency-Key" = String, Header, description = "1 to 255 visible ASCII characters: repeats with the same key get the first answer")),
    request_body = ReceiptBody,
    responses(
        (status = 200, description = "What is on hand now", body = Stock),
        (status = 400, description = "`BAD_REQUEST`: names the field", body = ErrorBody),
        (status = 401, description = "`UNAUTHORIZED`", body = ErrorBody),
        (status = 403, description = "`FORBIDDEN`: the scope `shop:manage` is missing", body = ErrorBody),
        (status = 409, description = "`IDEMPOTENCY_KEY_CONFLICT`; `IDEMPOTENCY_KEY_IN_PROGRESS`", body = ErrorBody),
        (status = 503, description = "`UNAVAILABLE`: safe to repeat with the same key", body = ErrorBody),
    )
)]
pub(super) async fn receive(
    State(app): State<App>,
    manager: Unattended<Manage>,
    key: IdempotencyKey,
    Json(body): Json<ReceiptBody>,
) -> Result<Response, ApiError> {
    let request = key.request(&manager.caller, "/v1/stock/receipts", &body)?;
    check(&body.stock_keeping_unit, body.quantity)?;
    respond(app.commands.receive(&request, &body).await)
}

/// What is on hand of a SKU, in each warehouse.
#[utoipa::path(
    get,
    path = "/v1/stock/{stock_keeping_unit}",
    tag = "manage",
    security(("bearer" = [])),
    params(("stock_keeping_unit" = String, Path)),
    responses(
        (status = 200, description = "One entry per warehouse", body = Vec<Stock>),
        (status = 400, description = "`BAD_REQUEST`", body = ErrorBody),
        (status = 401, description = "`UNAUTHORIZED`", body = ErrorBody),
        (status = 403, description = "`FORBIDDEN`: the scope `shop:manage` is missing", body = ErrorBody),
        (status = 503, description = "`UNAVAILABLE`", body = ErrorBody),
    )
)]
pub(super) async fn stock(
    State(app): State<App>,
    _manager: Unattended<Manage>,
    Path(sku): Path<String>,
    Query(NoQuery {}): Query<NoQuery>,
) -> Result<Json<Vec<Stock>>, ApiError> {
    let sku: Sku = named("stock_keeping_unit", sku)?;
    let stock = app.queries.stock(sku.as_str()).await;
    stock.map(Json).map_err(|error| failed(&error))
}

/// Move goods from one warehouse to the other: all of them, or none.
#[utoipa::path(
    post,
    path = "/v1/stock/transfers",
    tag = "manage",
    security(("bearer" = [])),
    params(("Idempotency-Key" = String, Header, description = "1 to 255 visible ASCII characters: repeats with the same key get the first answer")),
    request_body = TransferBody,
    responses(
        (status = 200, description = "Moved", body = Transfer),
        (status = 400, description = "`BAD_REQUEST`: names the field", body = ErrorBody),
        (status = 401, description = "`UNAUTHORIZED`", body = ErrorBody),
        (status = 403, description = "`FORBIDDEN`: the scope `shop:manage` is missing", body = ErrorBody),
        (status = 409, description = "`STOCK_INSUFFICIENT`; `WAREHOUSE_NOT_CONFIGURED`; `IDEMPOTENCY_KEY_CONFLICT`; `IDEMPOTENCY_KEY_IN_PROGRESS`", body = ErrorBody),
        (status = 503, description = "`UNAVAILABLE`: a database is away; safe to repeat with the same key", body = ErrorBody),
    )
)]
pub(super) async fn transfer(
    State(app): State<App>,
    manager: Unattended<Manage>,
    key: IdempotencyKey,
    Json(body): Json<TransferBody>,
) -> Result<Response, ApiError> {
    let request = key.request(&manager.caller, "/v1/stock/transfers", &body)?;
    check(&body.stock_keeping_unit, body.quantity)?;
    if body.from == body.to {
        return Err(ApiError::bad_request("from and to are the same"));
    }
    let Some(transfers) = &app.transfers else {
        return Err(failed(&Error::NoWarehouse));
    };
    respond(Box::pin(transfers.run(&request, &body)).await)
}

/// Compare money with goods, now: of all that has changed since it was last compared, and of what did
/// not match then. At rest, everything counts zero. `tasuki verify` compares all that ever was.
#[utoipa::path(
    get,
    path = "/v1/reconciliation",
    tag = "operate",
    security(("bearer" = [])),
    responses(
        (status = 200, description = "What does not match", body = Reconciliation),
        (status = 400, description = "`BAD_REQUEST`", body = ErrorBody),
        (status = 401, description = "`UNAUTHORIZED`", body = ErrorBody),
        (status = 403, description = "`FORBIDDEN`: operators only", body = ErrorBody),
        (status = 503, description = "`UNAVAILABLE`", body = ErrorBody),
    )
)]
pub(super) async fn reconciliation(
    State(app): State<App>,
    _operator: Operator,
    Query(NoQuery {}): Query<NoQuery>,
) -> Result<Json<Reconciliation>, ApiError> {
    let seen = app.reconciler.recent().await;
    seen.map(Json).map_err(|error| ApiError::database(&error))
}

/// Which notices, and how many.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct NoticesQuery {
    /// Only of this kind. Without it, all that somebody should do something about: not
    /// `PAYMENT_DECLINED`, which is the customer's matter.
    kind: Option<String>,
    /// `next` of the page before.
    before: Option<i64>,
    /// At most so many; 1 to 500.
    limit: Option<u16>,
}

/// What operators were told of payments, the last first.
#[utoipa::path(
    get,
    path = "/v1/notices",
    tag = "operate",
    security(("bearer" = [])),
    params(NoticesQuery),
    responses(
        (status = 200, description = "A page of them", body = Notices),
        (status = 400, description = "`BAD_REQUEST`", body = ErrorBody),
        (status = 401, description = "`UNAUTHORIZED`", body = ErrorBody),
        (status = 403, description = "`FORBIDDEN`: operators only", body = ErrorBody),
        (status = 503, description = "`UNAVAILABLE`", body = ErrorBody),
    )
)]
pub(super) async fn notices(
    State(app): State<App>,
    _operator: Operator,
    Query(query): Query<NoticesQuery>,
) -> Result<Json<Notices>, ApiError> {
    let limit = query.limit.unwrap_or(PAGE.0);
    if !(1..=PAGE.1).contains(&limit) {
        let message = format!("limit is from 1 to {}", PAGE.1);
        return Err(ApiError::bad_request(message));
    }
    let kind = query.kind.map(|text| {
        let known = Notice::parse(&text);
        known.ok_or_else(|| ApiError::bad_request("kind is none that there is"))
    });
    let before = query.before.unwrap_or(i64::MAX);
    let notices = app.queries.notices(kind.transpose()?, before, limit).await;
    notices.map(Json).map_err(|error| failed(&error))
}

fn check(sku: &str, quantity: i64) -> Result<(), ApiError> {
    let _checked: Sku = named("stock_keeping_unit", sku.to_owned())?;
    if !(1..=MOST).contains(&quantity) {
        let message = format!("quantity is from 1 to {MOST}");
        return Err(ApiError::bad_request(message));
    }
    Ok(())
}
