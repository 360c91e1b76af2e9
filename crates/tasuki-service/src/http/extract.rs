//! Extractors that refuse bad input with one clear sentence that names the field, in the words of
//! whoever wrote the request: no type of ours, no text of a framework.
//!
//! What PostgreSQL could not store (NUL in text) ends here too: it would otherwise come back
//! as an error of ours.

use axum::extract::path::ErrorKind;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{FromRequest, FromRequestParts, RawPathParams, Request};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, StatusCode};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::time::timeout;

use super::envelope::Limits;
use super::error::ApiError;
use super::shape::{NUL, OBJECT, Shaped};

/// A JSON body, in requests and answers.
#[derive(Clone, Copy, Debug)]
pub struct Json<T>(pub T);

/// The parameters of the path.
#[derive(Clone, Copy, Debug)]
pub struct Path<T>(pub T);

/// The query.
#[derive(Clone, Copy, Debug)]
pub struct Query<T>(pub T);

/// Whom a request comes from: the other end of its connection, or, where that is one of
/// `http.trusted-proxies`, whoever it names. An IPv4 address is one, however it came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer(pub std::net::IpAddr);

/// The query of who takes none: whatever is in it is refused, so that nobody believes it had an
/// effect.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NoQuery {}

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for Json<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> Result<Self, ApiError> {
        if !is_json(request.headers()) {
            return Err(ApiError::of_status(StatusCode::UNSUPPORTED_MEDIA_TYPE));
        }
        if is_encoded(request.headers()) {
            return Err(ApiError::new(
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                tasuki_contract::error::UNSUPPORTED_MEDIA_TYPE,
                "the body must not have a Content-Encoding",
            ));
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

impl<S: Sync> FromRequestParts<S> for Peer {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, ApiError> {
        // Every connection of the server has one.
        let peer = parts.extensions.get::<Self>().copied();
        peer.ok_or_else(ApiError::internal_unlogged)
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
                let params = RawPathParams::from_request_parts(parts, state).await;
                let names: Vec<String> = params.map_or_else(
                    |_rejection| Vec::new(),
                    |params| params.iter().map(|(name, _)| name.to_owned()).collect(),
                );
                Err(ApiError::bad_request(of_path(error.kind(), &names)))
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
                Err(ApiError::bad_request(of_query(&error.body_text())))
            }
            Err(other) => Err(ApiError::of_status(other.status())),
        }
    }
}

/// What is wrong with a parameter of the path; `names` are those of all of them.
fn of_path(kind: &ErrorKind, names: &[String]) -> String {
    let (name, expected) = match kind {
        ErrorKind::DeserializeError { key, message, .. } => return told(key, &in_words(message)),
        ErrorKind::InvalidUtf8InPathParam { key } => return told(key, "is not UTF-8"),
        ErrorKind::ParseErrorAtKey {
            key, expected_type, ..
        } => (Some(key), expected_type),
        ErrorKind::ParseErrorAtIndex {
            index,
            expected_type,
            ..
        } => (names.get(*index), expected_type),
        ErrorKind::ParseError { expected_type, .. } => (names.first(), expected_type),
        _ => return "the path is invalid".to_owned(),
    };
    let name = name.map_or("the path", String::as_str);
    if is_number(expected) {
        return told(name, "must be a whole number");
    }
    told(name, "is invalid")
}

/// What is wrong with the query, from the framework's `…: field: what serde says`.
fn of_query(text: &str) -> String {
    let text = text.split_once(": ").map_or(text, |(_, rest)| rest);
    if let Some(field) = missing(text) {
        return format!("{field} is required");
    }
    match text.split_once(": ") {
        Some((field, what)) if !field.contains(' ') => match missing(what) {
            Some(field) => format!("{field} is required"),
            None => told(field, &in_words(what)),
        },
        _ => format!("the query is invalid: {text}"),
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

fn is_encoded(headers: &HeaderMap) -> bool {
    let plain = |value: &HeaderValue| value.as_bytes().eq_ignore_ascii_case(b"identity");
    !headers.get_all(CONTENT_ENCODING).iter().all(plain)
}

fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, ApiError> {
    if body.iter().all(u8::is_ascii_whitespace) {
        return Err(ApiError::bad_request("request body is required"));
    }
    let mut reader = serde_json::Deserializer::from_slice(body);
    let shaped = Shaped(&mut reader);
    let value = serde_path_to_error::deserialize(shaped).map_err(|error| {
        let path = error.path().to_string();
        ApiError::bad_request(explain(&path, error.inner()))
    })?;
    reader
        .end()
        .map_err(|error| ApiError::bad_request(explain(".", &error)))?;
    Ok(value)
}

/// `user_id is required`; `items[0].quantity must be a whole number`; `request body is invalid: …`.
fn explain(path: &str, error: &serde_json::Error) -> String {
    let text = error.to_string();
    let text = text.split(" at line ").next().unwrap_or(&text);
    if text == "number out of range" {
        return told(path, "is out of range");
    }
    if !error.is_data() {
        let (line, column) = (error.line(), error.column());
        return format!("request body is invalid: not JSON at line {line}, column {column}");
    }
    match (missing(text), path) {
        (Some(field), ".") => format!("{field} is required"),
        (Some(field), above) => format!("{above}.{field} is required"),
        (None, path) => told(path, &in_words(text)),
    }
}

fn told(path: &str, what: &str) -> String {
    match path {
        "." => format!("request body {what}"),
        path => format!("{path} {what}"),
    }
}

/// The field that serde misses.
fn missing(text: &str) -> Option<&str> {
    text.strip_prefix("missing field `")?.split('`').next()
}

/// What serde has to say about a value, without the names of Rust's types.
fn in_words(text: &str) -> String {
    if text == NUL {
        return NUL.to_owned();
    }
    let wanted = text.rsplit_once(", expected ").map(|(_, wanted)| wanted);
    let refused = text.strip_prefix("invalid type: ");
    match (refused, wanted) {
        (Some(_), Some(OBJECT)) => format!("must be {OBJECT}"),
        (Some(_), Some(it)) if is_number(it) => "must be a whole number".to_owned(),
        (Some(_), Some("f32" | "f64")) => "must be a number".to_owned(),
        (Some(_), Some("a string" | "a borrowed string" | "str")) => "must be text".to_owned(),
        (Some(_), Some("a boolean")) => "must be true or false".to_owned(),
        (Some(_), Some("a sequence")) => "must be an array".to_owned(),
        (None, Some(it)) if is_number(it) && text.starts_with("invalid value: integer") => {
            "is out of range".to_owned()
        }
        _ if text.starts_with("invalid digit found in string")
            || text.starts_with("cannot parse integer from empty string") =>
        {
            "must be a whole number".to_owned()
        }
        _ if text.starts_with("UUID parsing failed") => "must be a UUID".to_owned(),
        _ if text.starts_with("number too ") => "is out of range".to_owned(),
        _ => format!("is invalid: {text}"),
    }
}

fn is_number(name: &str) -> bool {
    let bits = name.strip_prefix(['i', 'u']);
    bits.is_some_and(|bits| matches!(bits, "8" | "16" | "32" | "64" | "size"))
}

#[cfg(test)]
mod tests {
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
                "items[0].quantity must be a whole number",
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
            (r#"{"user_id":"a\u0000b"}"#, r"user_id must not hold \u0000"),
            ("[]", "request body must be a JSON object"),
            (r#"["a"]"#, "request body must be a JSON object"),
            ("7", "request body must be a JSON object"),
            (
                r#"{"user_id":"a","items":[[1]]}"#,
                "items[0] must be a JSON object",
            ),
            (r#"{"user_id":7}"#, "user_id must be text"),
            (r#"{"user_id":"a","items":{}}"#, "items must be an array"),
            (
                r#"{"user_id":"a","items":[{"quantity":-1}]}"#,
                "items[0].quantity is out of range",
            ),
            (
                r#"{"user_id":"a","items":[{"quantity":1.5}]}"#,
                "items[0].quantity must be a whole number",
            ),
            (
                r#"{"user_id":"a","items":[{"quantity":1e400}]}"#,
                "items[0].quantity is out of range",
            ),
        ] {
            assert_eq!(message(body), expected, "{body}");
        }
        assert!(message(r#"{"user_id":"a","x":1}"#).contains("unknown field `x`"));
        assert!(message(r#"{"user_id":"a","user_id":"b"}"#).contains("duplicate field"));
    }

    #[test]
    fn an_escaped_backslash_before_u0000_is_not_a_nul() {
        let order = |body: &str| parse::<Order>(body.as_bytes());
        assert!(order(r#"{"user_id":"\\u0000"}"#).is_ok());
        assert!(order(r#"{"user_id":"\\\u0000"}"#).is_err());
    }
}
