//! The API of the shop.

mod access;
mod manage;
mod orders;

use axum::response::Response;
use axum::routing::post;
use http::{HeaderName, HeaderValue, StatusCode};
use tasuki::idempotency::{self, Outcome};
use tasuki::twopc;
use tasuki_contract::names::InvalidName;
use tasuki_contract::shop as wire;
use tasuki_service::http::{ApiError, answer};
use utoipa::OpenApi;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::commands::Commands;
use crate::error::Error;
use crate::queries::Queries;
use crate::transfer::Transfers;
use crate::verify::Reconciler;

/// Says that an answer had been given before.
const REPLAYED: HeaderName = HeaderName::from_static("idempotency-replayed");

/// What handlers need.
#[derive(Clone, Debug)]
pub(crate) struct App {
    pub(crate) commands: Commands,
    pub(crate) queries: Queries,
    /// None: there is no other warehouse.
    pub(crate) transfers: Option<Transfers>,
    pub(crate) reconciler: Reconciler,
}

/// The router has no parameter that ends before the segment does, so this path is described apart
/// from its route.
#[derive(OpenApi)]
#[openapi(paths(orders::cancel))]
struct Described;

pub(crate) fn routes(app: App) -> OpenApiRouter {
    OpenApiRouter::with_openapi(Described::openapi())
        .routes(routes!(orders::place))
        .routes(routes!(orders::show))
        .route("/v1/orders/{order_id}", post(orders::cancel))
        .routes(routes!(manage::put_product))
        .routes(routes!(manage::receive))
        .routes(routes!(manage::stock))
        .routes(routes!(manage::transfer))
        .routes(routes!(manage::reconciliation))
        .routes(routes!(manage::notices))
        .with_state(app)
}

fn respond(outcome: Result<Outcome, Error>) -> Result<Response, ApiError> {
    let outcome = outcome.map_err(|error| failed(&error))?;
    let reply = outcome.reply();
    let status = StatusCode::from_u16(reply.status()).unwrap_or(StatusCode::OK);
    let mut response = answer(status, reply.body().clone());
    if let Outcome::Replayed(_) = outcome {
        let told = HeaderValue::from_static("true");
        response.headers_mut().insert(REPLAYED, told);
    }
    Ok(response)
}

/// What a caller is told.
fn failed(error: &Error) -> ApiError {
    match error {
        Error::Idempotency(idempotency::Error::InProgress) => ApiError::conflict(
            "IDEMPOTENCY_KEY_IN_PROGRESS",
            "a request with this idempotency key is still running, try again",
        )
        .retry_after(std::time::Duration::from_secs(1)),
        Error::Idempotency(idempotency::Error::Conflict) => ApiError::conflict(
            "IDEMPOTENCY_KEY_CONFLICT",
            "the idempotency key was used for another request",
        ),
        Error::Unsellable(why) => ApiError::bad_request(why.to_string()),
        Error::NoOrder => ApiError::not_found("there is no such order"),
        Error::TooLate(_) => ApiError::conflict(wire::ORDER_STATE_CONFLICT, error.to_string()),
        Error::NoWarehouse => ApiError::conflict(wire::WAREHOUSE_NOT_CONFIGURED, error.to_string()),
        Error::Busy => {
            ApiError::unavailable("too many transfers wait, nothing was moved, try again")
        }
        Error::Transfer(twopc::Error::Unsure { .. }) => ApiError::unavailable(
            "whether the stock was moved is not known yet: repeat with the same key",
        ),
        Error::Transfer(
            twopc::Error::Away { .. }
            | twopc::Error::Refused { .. }
            | twopc::Error::Overruled { .. }
            | twopc::Error::Own { .. },
        ) => ApiError::unavailable("nothing was moved, try again"),
        Error::Transfer(disabled @ twopc::Error::Disabled { .. }) => {
            tracing::error!(
                error = disabled as &(dyn std::error::Error + 'static),
                "no stock can be moved",
            );
            ApiError::unavailable("nothing was moved: the other warehouse is not set up for it")
        }
        other => match other.database() {
            Some(database) => ApiError::database(database),
            None => ApiError::internal(other),
        },
    }
}

/// A name that somebody sent in `field`.
fn named<N: TryFrom<String, Error = InvalidName>>(
    field: &str,
    text: String,
) -> Result<N, ApiError> {
    N::try_from(text).map_err(|why| ApiError::bad_request(format!("{field} {why}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_warehouse_that_can_not_prepare_is_no_error_of_ours_and_moves_nothing() {
        let disabled = twopc::Error::Disabled {
            participant: "overflow".to_owned(),
        };
        let told = failed(&Error::Transfer(disabled));
        assert_eq!(told.status(), StatusCode::SERVICE_UNAVAILABLE);
        let message = told.body().message;
        assert!(message.contains("nothing was moved"), "{message}");
    }
}
