//! The error that handlers return, and its face on the wire.

use std::borrow::Cow;
use std::error::Error;
use std::time::Duration;

use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::header::{ALLOW, CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{HeaderMap, HeaderValue, StatusCode};
use tasuki_contract::error::{self as codes, ErrorBody};
use tracing::Span;

use crate::database;
use crate::telemetry::trace;

/// How soon to come back when something that we need is away.
const RETRY_SOON: Duration = Duration::from_secs(1);

const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// An answer that is not a success.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiError {
    status: StatusCode,
    code: Cow<'static, str>,
    message: String,
    retry_after: Option<Duration>,
}

/// Marks answers whose body is ours already.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ours;

impl ApiError {
    /// Any status and code.
    #[must_use]
    pub fn new(
        status: StatusCode,
        code: impl Into<Cow<'static, str>>,
        message: impl Into<String>,
    ) -> Self {
        Self {
            status,
            code: code.into(),
            message: message.into(),
            retry_after: None,
        }
    }

    /// 400 `BAD_REQUEST`: `message` names what is wrong.
    #[must_use]
    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, codes::BAD_REQUEST, message)
    }

    /// 401 `UNAUTHORIZED`.
    #[must_use]
    pub fn unauthorized(message: impl Into<String>) -> Self {
        Self::new(StatusCode::UNAUTHORIZED, codes::UNAUTHORIZED, message)
    }

    /// 403 `FORBIDDEN`.
    #[must_use]
    pub fn forbidden(message: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, codes::FORBIDDEN, message)
    }

    /// 404 `NOT_FOUND`.
    #[must_use]
    pub fn not_found(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, codes::NOT_FOUND, message)
    }

    /// 409 with the service's own code.
    #[must_use]
    pub fn conflict(code: &'static str, message: impl Into<String>) -> Self {
        Self::new(StatusCode::CONFLICT, code, message)
    }

    /// 503 `UNAVAILABLE` + `Retry-After`: something that we need is away.
    #[must_use]
    pub fn unavailable(message: impl Into<String>) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, codes::UNAVAILABLE, message)
            .retry_after(RETRY_SOON)
    }

    /// 500 `INTERNAL`. The error is logged with its sources; the caller gets the trace id.
    #[must_use]
    pub fn internal(error: &(dyn Error + 'static)) -> Self {
        tracing::error!(error, "request failed");
        Self::internal_unlogged()
    }

    /// 503 when the database is away or busy, else 500. Either is logged here.
    #[must_use]
    pub fn database(error: &sqlx::Error) -> Self {
        if database::is_away(error) {
            tracing::warn!(error = error as &(dyn Error + 'static), "database is away");
            return Self::unavailable("the database can't be reached, try again");
        }
        if database::is_passing(error) {
            tracing::warn!(error = error as &(dyn Error + 'static), "database is busy");
            return Self::unavailable("the database is busy, try again");
        }
        Self::internal(error)
    }

    /// Says when to come back.
    #[must_use]
    pub fn retry_after(mut self, after: Duration) -> Self {
        self.retry_after = Some(after);
        self
    }

    /// The status.
    #[must_use]
    pub fn status(&self) -> StatusCode {
        self.status
    }

    pub(super) fn internal_unlogged() -> Self {
        let message = match trace::trace_id(&Span::current()) {
            Some(id) => format!("internal error, trace id {id}"),
            None => "internal error".to_owned(),
        };
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, codes::INTERNAL, message)
    }

    /// The error body for an answer that a layer below us made without one.
    pub(super) fn of_status(status: StatusCode) -> Self {
        let (code, message): (_, Cow<'static, str>) = match status.as_u16() {
            401 => (codes::UNAUTHORIZED, "a credential is required".into()),
            403 => (codes::FORBIDDEN, "not allowed".into()),
            404 => (codes::NOT_FOUND, "there is nothing at this path".into()),
            405 => (
                codes::METHOD_NOT_ALLOWED,
                "this path has other methods, see the Allow header".into(),
            ),
            406 => (
                codes::NOT_ACCEPTABLE,
                "no acceptable type can be made".into(),
            ),
            408 => (codes::REQUEST_TIMEOUT, "the request took too long".into()),
            409 => (codes::CONFLICT, "conflict with the present state".into()),
            411 => (codes::LENGTH_REQUIRED, "the body needs a length".into()),
            413 => (codes::PAYLOAD_TOO_LARGE, "the body is too large".into()),
            414 => (codes::URI_TOO_LONG, "the request line is too long".into()),
            415 => (
                codes::UNSUPPORTED_MEDIA_TYPE,
                "the body must be application/json".into(),
            ),
            417 => (
                codes::EXPECTATION_FAILED,
                "the Expect header can't be met".into(),
            ),
            429 => (codes::TOO_MANY_REQUESTS, "too many requests".into()),
            431 => (codes::HEADERS_TOO_LARGE, "the headers are too large".into()),
            501 => (codes::NOT_IMPLEMENTED, "not supported".into()),
            503 => (codes::UNAVAILABLE, "not available, try again".into()),
            504 => (codes::TIMEOUT, "the answer did not come in time".into()),
            505 => (
                codes::HTTP_VERSION_NOT_SUPPORTED,
                "only HTTP/1.0 and HTTP/1.1 are spoken here".into(),
            ),
            400..=499 => (codes::BAD_REQUEST, "the request is malformed".into()),
            _ => return Self::internal_unlogged(),
        };
        Self::new(status, code, message)
    }

    /// What is sent.
    #[must_use]
    pub fn body(&self) -> ErrorBody {
        ErrorBody {
            code: self.code.clone(),
            message: self.message.clone(),
        }
    }

    /// This error in the place of an answer with `headers`, of which it keeps those that say
    /// what to do instead.
    pub(super) fn replacing(self, headers: &HeaderMap) -> Response {
        let mut response = self.into_response();
        for name in [ALLOW, WWW_AUTHENTICATE, RETRY_AFTER] {
            if let Some(value) = headers.get(&name) {
                response.headers_mut().insert(name, value.clone());
            }
        }
        response
    }
}

/// A JSON answer whose bytes are there already: one that was given before, say. It leaves as it
/// is, also when it is an error's.
#[must_use]
pub fn answer(status: StatusCode, body: Bytes) -> Response {
    let mut response = (status, [(CONTENT_TYPE, JSON)], body).into_response();
    response.extensions_mut().insert(Ours);
    response
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = (self.status, axum::Json(self.body())).into_response();
        response.extensions_mut().insert(Ours);
        let headers = response.headers_mut();
        if let Some(after) = self.retry_after {
            headers.insert(RETRY_AFTER, HeaderValue::from(after.as_secs().max(1)));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}
