//! One request through the layer.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use axum::extract::OriginalUri;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use tracing::Instrument;

use super::refusal::Refusal;
use super::tx::Slot;
use super::{InProgress, KeySource, Settings};
use crate::idempotency::keys::{Begun, Hold};
use crate::idempotency::{Error, Reply, Request, RequestHash};
use crate::transaction::{self, Transaction};

const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
/// Marks an answer that was given before.
const IDEMPOTENCY_REPLAYED: HeaderName = HeaderName::from_static("idempotency-replayed");

/// A service that does each request once. Made by [`Layer`](super::Layer).
#[derive(Clone, Debug)]
pub struct Service<S> {
    inner: S,
    settings: Arc<Settings>,
}

impl<S> Service<S> {
    pub(super) fn new(inner: S, settings: Arc<Settings>) -> Self {
        Self { inner, settings }
    }
}

impl<S> tower::Service<http::Request<Body>> for Service<S>
where
    S: tower::Service<http::Request<Body>, Response = Response, Error = Infallible>,
    S: Clone + Send + 'static,
    S::Future: Send,
{
    type Response = Response;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        // The one that was polled ready is used, and its clone kept for the next request.
        let ready = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, ready);
        let settings = Arc::clone(&self.settings);
        Box::pin(async move {
            if request.method().is_safe() {
                return inner.call(request).await;
            }
            let span = tracing::info_span!(
                "idempotent request",
                idempotency.key = tracing::field::Empty,
                idempotency.outcome = tracing::field::Empty,
            );
            let answer = answer(&settings, inner, request).instrument(span).await;
            Ok(answer.unwrap_or_else(Refusal::into_response))
        })
    }
}

async fn answer<S>(
    settings: &Settings,
    inner: S,
    request: http::Request<Body>,
) -> Result<Response, Refusal>
where
    S: tower::Service<http::Request<Body>, Response = Response, Error = Infallible>,
{
    let (mut parts, body) = request.into_parts();
    let caller = (settings.caller)(&parts).ok_or(Refusal::NoCaller)?;
    let body = read(body, settings.body_limit).await?;
    let Some(key) = key(settings, &parts.headers, &body)? else {
        let opened = transaction::begin(&settings.pool).await;
        let tx = opened.map_err(|error| settings.refusal(&Error::Store(error)))?;
        return run(settings, inner, parts, body, tx, None).await;
    };
    tracing::Span::current().record("idempotency.key", key.as_str());
    let hash = RequestHash::of(parts.method.as_str(), &path(&parts), &body);
    let request = Request::new(caller, key, hash).map_err(|error| settings.refusal(&error))?;
    let wait = match settings.in_progress {
        InProgress::Wait => settings.keys.patience(),
        InProgress::Refuse => Duration::ZERO,
    };
    let begun = settings.keys.begin(&settings.pool, &request, wait).await;
    match begun.map_err(|error| settings.refusal(&error))? {
        Begun::Stored(reply) => replayed(&reply),
        Begun::Fresh(tx, hold) => {
            parts.extensions.insert(request);
            run(settings, inner, parts, body, tx, Some(hold)).await
        }
    }
}

/// Lets the handler answer in `tx`, and ends it as the answer says.
async fn run<S>(
    settings: &Settings,
    mut inner: S,
    mut parts: Parts,
    body: Bytes,
    tx: Transaction,
    hold: Option<Box<Hold>>,
) -> Result<Response, Refusal>
where
    S: tower::Service<http::Request<Body>, Response = Response, Error = Infallible>,
{
    let slot = Slot::new(tx);
    parts.extensions.insert(slot.clone());
    let Ok(response) = inner
        .call(http::Request::from_parts(parts, Body::from(body)))
        .await;
    if !settings.is_decided(response.status()) {
        match (slot.take(), hold) {
            (Some(tx), Some(hold)) => hold.abandon(tx).await,
            (Some(tx), None) => transaction::roll_back(tx).await,
            // Whoever still has it rolls it back by dropping it.
            (None, _) => {}
        }
        return Ok(response);
    }
    // The body may be made as it is read, in the transaction: first the bytes, then the end.
    let (parts, body) = response.into_parts();
    let read = Limited::new(body, settings.answer_limit).collect().await;
    let body = match read {
        Ok(collected) => collected.to_bytes(),
        Err(error) => {
            tracing::error!(
                error = &*error as &(dyn std::error::Error + 'static),
                "answer can't be kept"
            );
            return Err(Refusal::Internal);
        }
    };
    let Some(tx) = slot.take() else {
        tracing::error!("the handler kept its transaction, nothing is committed");
        return Err(Refusal::Internal);
    };
    let committed = match hold {
        Some(hold) => {
            let reply = kept(settings, parts.status, &parts.headers, &body);
            hold.commit(tx, &reply).await
        }
        None => transaction::commit(tx).await.map_err(Error::Store),
    };
    committed.map_err(|error| settings.refusal(&error))?;
    Ok(Response::from_parts(parts, Body::from(body)))
}

impl Settings {
    fn refusal(&self, error: &Error) -> Refusal {
        Refusal::of(error, self.mismatch)
    }
}

async fn read(body: Body, limit: usize) -> Result<Bytes, Refusal> {
    match Limited::new(body, limit).collect().await {
        Ok(collected) => Ok(collected.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => Err(Refusal::TooLarge),
        Err(_broken) => Err(Refusal::Bad("the body did not arrive".to_owned())),
    }
}

/// The key, if there is one.
fn key(settings: &Settings, headers: &HeaderMap, body: &[u8]) -> Result<Option<String>, Refusal> {
    let (name, key) = match &settings.source {
        KeySource::Header => ("Idempotency-Key", key_in_header(headers)?),
        KeySource::BodyField(field) => (field.as_str(), key_in_body(field, body)?),
    };
    if key.is_none() && settings.required {
        return Err(Refusal::Bad(format!("{name} is required")));
    }
    Ok(key)
}

fn key_in_header(headers: &HeaderMap) -> Result<Option<String>, Refusal> {
    let mut values = headers.get_all(IDEMPOTENCY_KEY).iter();
    let first = values.next();
    if values.next().is_some() {
        return Err(Refusal::Bad("Idempotency-Key is given twice".to_owned()));
    }
    let text = |value: &HeaderValue| {
        let text = value.to_str().map(str::to_owned);
        text.map_err(|_opaque| Refusal::Bad(Error::InvalidKey.to_string()))
    };
    first.map(text).transpose()
}

fn key_in_body(field: &str, body: &[u8]) -> Result<Option<String>, Refusal> {
    let parsed: Result<serde_json::Value, _> = serde_json::from_slice(body);
    let value = parsed.map_err(|_error| Refusal::Bad("request body is invalid".to_owned()))?;
    let found = match field.starts_with('/') {
        true => value.pointer(field),
        false => value.get(field),
    };
    match found {
        None | Some(serde_json::Value::Null) => Ok(None),
        Some(serde_json::Value::String(key)) => Ok(Some(key.clone())),
        Some(_) => Err(Refusal::Bad(format!("{field} is no text"))),
    }
}

/// The path and query that the client asked for, also inside a nested router.
fn path(parts: &Parts) -> String {
    let original = parts.extensions.get::<OriginalUri>();
    let uri = original.map_or(&parts.uri, |OriginalUri(uri)| uri);
    uri.path_and_query()
        .map_or_else(|| uri.path().to_owned(), |path| path.as_str().to_owned())
}

/// What is kept of an answer.
fn kept(settings: &Settings, status: StatusCode, headers: &HeaderMap, body: &Bytes) -> Reply {
    let mut reply = Reply::new(status.as_u16(), body.clone());
    for (name, value) in headers {
        if settings.kept.contains(name) {
            reply = reply.header(name.as_str(), value.as_bytes());
        }
    }
    reply
}

/// A kept answer, as it was.
fn replayed(reply: &Reply) -> Result<Response, Refusal> {
    let broken = |_| {
        tracing::error!("a kept answer is none");
        Refusal::Internal
    };
    let mut response = http::Response::builder().status(reply.status());
    for (name, value) in reply.headers() {
        response = response.header(name, value);
    }
    let response = response.header(IDEMPOTENCY_REPLAYED, "true");
    response
        .body(Body::from(reply.body().clone()))
        .map_err(broken)
}
