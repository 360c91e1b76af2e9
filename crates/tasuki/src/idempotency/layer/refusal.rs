//! The answers that the layer gives itself: `{"code", "message"}`.

#![warn(clippy::wildcard_enum_match_arm)]

use axum::Json;
use axum::response::{IntoResponse, Response};
use http::header::RETRY_AFTER;
use http::{HeaderValue, StatusCode};
use serde::Serialize;

use super::Mismatch;
use crate::idempotency::Error;
use crate::{is_away, is_passing};

/// Why a request does not reach the handler, or its answer not the client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// The request is malformed.
    Bad(String),
    /// Nobody knows whose it is.
    NoCaller,
    /// Its body is larger than the limit.
    TooLarge,
    /// Another request has the key.
    Conflict(Mismatch),
    /// A request with the key still runs.
    InProgress,
    /// The database is away: come back.
    Away,
    /// Our fault.
    Internal,
}

#[derive(Serialize)]
struct Body<'a> {
    code: &'static str,
    message: &'a str,
}

impl Refusal {
    /// The refusal for `error`. What is our fault is logged here and not told.
    pub(super) fn of(error: &Error, mismatch: Mismatch) -> Self {
        match error {
            Error::InvalidKey => Self::Bad(error.to_string()),
            Error::Conflict => Self::Conflict(mismatch),
            Error::InProgress => Self::InProgress,
            Error::Held => Self::Away,
            Error::Store(cause) if is_for_now(cause) => {
                tracing::warn!(
                    error = cause as &(dyn std::error::Error + 'static),
                    "database is away"
                );
                Self::Away
            }
            // Whoever named the caller has put in what can't be a name.
            Error::InvalidCaller | Error::InvalidAnswer(_) | Error::Broken | Error::Store(_) => {
                tracing::error!(
                    error = error as &(dyn std::error::Error + 'static),
                    "idempotent request failed",
                );
                Self::Internal
            }
        }
    }

    fn parts(&self) -> (StatusCode, &'static str, &str) {
        match self {
            Self::Bad(message) => (StatusCode::BAD_REQUEST, "BAD_REQUEST", message),
            Self::NoCaller => (
                StatusCode::UNAUTHORIZED,
                "UNAUTHORIZED",
                "a credential is required",
            ),
            Self::TooLarge => (
                StatusCode::PAYLOAD_TOO_LARGE,
                "PAYLOAD_TOO_LARGE",
                "the body is too large",
            ),
            Self::Conflict(mismatch) => (
                match mismatch {
                    Mismatch::Conflict => StatusCode::CONFLICT,
                    Mismatch::Unprocessable => StatusCode::UNPROCESSABLE_ENTITY,
                },
                "IDEMPOTENCY_KEY_CONFLICT",
                "the idempotency key was used for another request",
            ),
            Self::InProgress => (
                StatusCode::CONFLICT,
                "IDEMPOTENCY_KEY_IN_PROGRESS",
                "a request with this idempotency key is still running, try again",
            ),
            Self::Away => (
                StatusCode::SERVICE_UNAVAILABLE,
                "UNAVAILABLE",
                "the database can't be reached, try again",
            ),
            Self::Internal => (
                StatusCode::INTERNAL_SERVER_ERROR,
                "INTERNAL",
                "internal error",
            ),
        }
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let (status, code, message) = self.parts();
        let mut response = (status, Json(Body { code, message })).into_response();
        if matches!(self, Self::InProgress | Self::Away) {
            let soon = HeaderValue::from_static("1");
            response.headers_mut().insert(RETRY_AFTER, soon);
        }
        response
    }
}

/// Whether the database may answer the same request later.
fn is_for_now(error: &sqlx::Error) -> bool {
    is_away(error) || is_passing(error)
}
