//! Extractors that refuse bad input with one clear sentence.
//!
//! What PostgreSQL could not store (NUL in text) ends here too: it would otherwise come back
//! as an error of ours.

use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::request::Parts;
use http::{HeaderMap, StatusCode};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::time::timeout;

use super::envelope::Limits;
use super::error::ApiError;

/// A JSON body, in requests and answers.
#[derive(Clone, Copy, Debug)]
pub struct Json<T>(pub T);

/// The parameters of the path.
#[derive(Clone, Copy, Debug)]
pub struct Path<T>(pub T);

/// The query.
#[derive(Clone, Copy, Debug)]
pub struct Query<T>(pub T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for Json<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> Result<Self, ApiError> {
        if !is_json(request.headers()) {
            return Err(ApiError::of_status(StatusCode::UNSUPPORTED_MEDIA_TYPE));
        }
        let limits = request.extensions().get::<Limits>().cloned();
        let limits = limits.unwrap_or_default();
        let body = timeout(limits.body_timeout, Bytes::from_request(request, state))
            .await
            .map_err(|_elapsed| {
                ApiError::new(
                    StatusCode::REQUEST_TIMEOUT,
                    tasuki_contract::error::REQUEST_TIMEOUT,
                    "the body did not arrive in time",
                )
            })?
            .map_err(|rejection| match rejection.into_response().status() {
                StatusCode::PAYLOAD_TOO_LARGE => limits.too_large(),
                _ => ApiError::bad_request("request body is incomplete"),
            })?;
        parse(&body).map(Self)
    }
}

impl<T: Serialize> IntoResponse for Json<T> {
    fn into_response(self) -> Response {
        axum::Json(self.0).into_response()
    }
}

impl<T, S> FromRequestParts<S> for Path<T>
where
    T: DeserializeOwned + Send,
    S: Send + Sync,
{
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        match axum::extract::Path::from_request_parts(parts, state).await {
            Ok(axum::extract::Path(value)) => Ok(Self(value)),
            Err(PathRejection::FailedToDeserializePathParams(error)) => {
                Err(ApiError::bad_request(error.body_text()))
            }
            Err(other) => Err(ApiError::of_status(other.status())),
        }
    }
}

impl<T, S> FromRequestParts<S> for Query<T>
where
    T: DeserializeOwned,
    S: Send + Sync,
{
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        match axum::extract::Query::from_request_parts(parts, state).await {
            Ok(axum::extract::Query(value)) => Ok(Self(value)),
            Err(QueryRejection::FailedToDeserializeQueryString(error)) => {
                Err(ApiError::bad_request(error.body_text()))
            }
            Err(other) => Err(ApiError::of_status(other.status())),
        }
    }
}

fn is_json(headers: &HeaderMap) -> bool {
    let Some(Ok(value)) = headers.get(CONTENT_TYPE).map(|value| value.to_str()) else {
        return false;
    };
    let essence = value.split(';').next().unwrap_or(value).trim();
    let lower = essence.to_ascii_lowercase();
    lower == "application/json" || (lower.starts_with("application/") && lower.ends_with("+json"))
}

fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, ApiError> {
    if body.iter().all(u8::is_ascii_whitespace) {
        return Err(ApiError::bad_request("request body is required"));
    }
    if holds_nul(body) {
        return Err(ApiError::bad_request(
            "request body is invalid: text must not hold \\u0000",
        ));
    }
    let mut reader = serde_json::Deserializer::from_slice(body);
    let value = serde_path_to_error::deserialize(&mut reader).map_err(|error| {
        let path = error.path().to_string();
        ApiError::bad_request(explain(&path, error.inner()))
    })?;
    reader
        .end()
        .map_err(|error| ApiError::bad_request(explain(".", &error)))?;
    Ok(value)
}

/// `user_id is required`; `items[0].quantity: invalid type: …`; `request body is invalid: …`.
fn explain(path: &str, error: &serde_json::Error) -> String {
    if !error.is_data() {
        let (line, column) = (error.line(), error.column());
        return format!("request body is invalid: not JSON at line {line}, column {column}");
    }
    let text = error.to_string();
    let text = text.split(" at line ").next().unwrap_or(&text);
    let missing = text
        .strip_prefix("missing field `")
        .and_then(|rest| rest.split('`').next());
    match (missing, path) {
        (Some(field), ".") => format!("{field} is required"),
        (Some(field), above) => format!("{above}.{field} is required"),
        (None, ".") => format!("request body is invalid: {text}"),
        (None, path) => format!("{path} is invalid: {text}"),
    }
}

/// Whether a JSON text holds an escaped NUL (a raw one is not JSON).
fn holds_nul(body: &[u8]) -> bool {
    memchr::memmem::find_iter(body, br"\u0000").any(|at| {
        let before = body.get(..at).unwrap_or_default();
        let backslashes = before
            .iter()
            .rev()
            .take_while(|byte| **byte == b'\\')
            .count();
        // An even number before this one: they escape each other, and this one escapes.
        backslashes.is_multiple_of(2)
    })
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Order {
        #[expect(dead_code, reason = "read only")]
        user_id: String,
        #[serde(default)]
        #[expect(dead_code, reason = "read only")]
        items: Vec<Item>,
    }

    #[derive(Debug, Deserialize)]
    struct Item {
        #[expect(dead_code, reason = "read only")]
        quantity: u32,
    }

    fn message(body: &str) -> String {
        parse::<Order>(body.as_bytes()).unwrap_err().body().message
    }

    #[test]
    fn a_bad_body_is_refused_in_one_sentence_that_names_the_field() {
        for (body, expected) in [
            ("", "request body is required"),
            (" \n", "request body is required"),
            ("{}", "user_id is required"),
            (
                r#"{"user_id":"a","items":[{"quantity":"x"}]}"#,
                r#"items[0].quantity is invalid: invalid type: string "x", expected u32"#,
            ),
            (
                r#"{"user_id":"a","items":[{}]}"#,
                "items[0].quantity is required",
            ),
            (
                "{\"user_id\":",
                "request body is invalid: not JSON at line 1, column 11",
            ),
            (
                r#"{"user_id":"a"} x"#,
                "request body is invalid: not JSON at line 1, column 17",
            ),
            (
                r#"{"user_id":"a\u0000b"}"#,
                r"request body is invalid: text must not hold \u0000",
            ),
        ] {
            assert_eq!(message(body), expected, "{body}");
        }
        assert!(message(r#"{"user_id":"a","x":1}"#).contains("unknown field `x`"));
        assert!(message(r#"{"user_id":"a","user_id":"b"}"#).contains("duplicate field"));
    }

    #[test]
    fn an_escaped_backslash_before_u0000_is_not_a_nul() {
        assert!(!holds_nul(br#"{"a":"\\u0000"}"#));
        assert!(holds_nul(br#"{"a":"\\\u0000"}"#));
    }
}
