//! Labels, rules and reports.

mod labels;
mod log;
mod members;
mod reports;
mod rules;

use axum::response::Response;
use http::{HeaderName, HeaderValue, StatusCode};
use tasuki::idempotency::{self, Answer, Outcome, Reply};
use tasuki_contract::error::ErrorBody;
use tasuki_service::http::{ApiError, answer};
use time::OffsetDateTime;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use uuid::Uuid;

use super::App;
use crate::moderation::{Error, Refused};

/// Says that an answer had been given before.
const REPLAYED: HeaderName = HeaderName::from_static("idempotency-replayed");
/// Entries of a page, unless asked for otherwise, and at most.
const PAGE: (u16, u16) = (50, 500);

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(labels::list, labels::add))
        .routes(routes!(labels::withdraw))
        .routes(routes!(rules::list, rules::add))
        .routes(routes!(rules::show, rules::change, rules::close))
        .routes(routes!(reports::count, reports::bring))
        .routes(routes!(members::put, members::delete))
        .routes(routes!(log::audit))
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

/// A refusal that speaks of the state of things is a decision, and kept; one of a request that can be
/// mended is not.
fn decided(error: Error) -> Result<Answer, Error> {
    let Error::Refused(refused) = &error else {
        return Err(error);
    };
    let Some(code) = code(refused) else {
        return Err(error);
    };
    let body = ErrorBody {
        code: code.into(),
        message: refused.to_string(),
    };
    let reply = Reply::new(409, serde_json::to_vec(&body)?);
    Ok(Answer::Decided(reply))
}

/// The code of a conflict.
const fn code(refused: &Refused) -> Option<&'static str> {
    match refused {
        Refused::Full => Some("LABEL_LIMIT"),
        Refused::Said => Some("LABEL_EXISTS"),
        Refused::Withdrawn | Refused::Lapsed => Some("LABEL_STATE_CONFLICT"),
        Refused::Rules => Some("RULE_LIMIT"),
        Refused::Invalid(_) | Refused::NoLabel | Refused::NoRule | Refused::NoMember => None,
    }
}

/// What a caller is told.
fn failed(error: &Error) -> ApiError {
    match error {
        Error::Refused(refused) => match (refused, code(refused)) {
            (_, Some(code)) => ApiError::conflict(code, refused.to_string()),
            (Refused::NoLabel | Refused::NoRule | Refused::NoMember, None) => {
                ApiError::not_found(refused.to_string())
            }
            (_, None) => ApiError::bad_request(refused.to_string()),
        },
        Error::Idempotency(idempotency::Error::InProgress) => ApiError::conflict(
            "IDEMPOTENCY_KEY_IN_PROGRESS",
            "a request with this idempotency key is still running, try again",
        )
        .retry_after(std::time::Duration::from_secs(1)),
        Error::Idempotency(idempotency::Error::Conflict) => ApiError::conflict(
            "IDEMPOTENCY_KEY_CONFLICT",
            "the idempotency key was used for another request",
        ),
        other => match database(other) {
            Some(database) => ApiError::database(database),
            None => ApiError::internal(other),
        },
    }
}

/// What the database said, if it was the database.
fn database<'a>(error: &'a (dyn std::error::Error + 'static)) -> Option<&'a sqlx::Error> {
    let mut levels = std::iter::successors(Some(error), |error| error.source());
    levels.find_map(|error| error.downcast_ref())
}

/// How many entries.
fn limit(asked: Option<u16>) -> Result<i64, ApiError> {
    let limit = asked.unwrap_or(PAGE.0);
    if (1..=PAGE.1).contains(&limit) {
        return Ok(limit.into());
    }
    let message = format!("limit is from 1 to {}", PAGE.1);
    Err(ApiError::bad_request(message))
}

/// Where a page ends, in words for the next one.
fn cursor(at: OffsetDateTime, id: Uuid) -> String {
    let micros = at.unix_timestamp_nanos() / 1000;
    format!("{micros}.{id}")
}

/// Where the page before ended.
fn behind(cursor: Option<&str>) -> Result<Option<(OffsetDateTime, Uuid)>, ApiError> {
    let Some(cursor) = cursor else {
        return Ok(None);
    };
    let read = || {
        let (micros, id) = cursor.split_once('.')?;
        let nanos = micros.parse::<i64>().ok().map(i128::from)? * 1000;
        let at = OffsetDateTime::from_unix_timestamp_nanos(nanos).ok()?;
        Some((at, id.parse().ok()?))
    };
    let read = read();
    let error = || ApiError::bad_request("cursor is not one that was given out");
    read.map(Some).ok_or_else(error)
}
