//! What surrounds every handler: request id, trace, limits, panics, errors, metrics.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{DefaultBodyLimit, MatchedPath, Request, State};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use futures_util::FutureExt;
use http::header::{CONNECTION, HOST};
use http::uri::Authority;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Version};
use tasuki_contract::error as codes;
use tokio::time::{Instant, timeout};
use tower_http::limit::RequestBodyLimitLayer;
use tracing::{Instrument, Span, field};
use uuid::Uuid;

use super::error::{ApiError, Ours};
use crate::config::{self, Size};
use crate::shutdown::Phases;
use crate::telemetry::trace;

/// Requests by service, method, route and status.
const REQUESTS_TOTAL: &str = "tasuki_http_requests_total";
/// Time to the head of the answer, by service, method and route.
const REQUEST_SECONDS: &str = "tasuki_http_request_seconds";

pub(super) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const REQUEST_ID_MAX: usize = 128;
/// The longest path and query, as most proxies have it too.
const URI_MAX: usize = 8 * 1024;

/// The limits that extractors need to know.
#[derive(Clone, Debug)]
pub(super) struct Limits {
    pub(super) body_timeout: Duration,
    max_body: Size,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            body_timeout: Duration::from_secs(15),
            max_body: Size::from_bytes(1 << 20),
        }
    }
}

impl Limits {
    pub(super) fn too_large(&self) -> ApiError {
        ApiError::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            codes::PAYLOAD_TOO_LARGE,
            format!("the body is larger than {}", self.max_body),
        )
    }
}

/// Wraps the routes of one service.
#[derive(Clone, Debug)]
pub struct Envelope {
    service: &'static str,
    settings: config::Http,
    limits: Limits,
    phases: Phases,
}

impl Envelope {
    /// An envelope for `service` with the limits of `settings`.
    #[must_use]
    pub fn new(service: &'static str, settings: &config::Http, phases: &Phases) -> Self {
        Self {
            service,
            settings: settings.clone(),
            limits: Limits {
                body_timeout: settings.body_timeout,
                max_body: settings.max_body,
            },
            phases: phases.clone(),
        }
    }

    /// `routes` with everything that surrounds a handler, their 404 and 405 included.
    pub fn around(self, routes: Router) -> Router {
        let max_body = self.settings.max_body.bytes();
        routes
            .fallback(|| async { ApiError::of_status(StatusCode::NOT_FOUND) })
            .layer(DefaultBodyLimit::disable())
            .layer(RequestBodyLimitLayer::new(max_body))
            .layer(middleware::from_fn_with_state(Arc::new(self), around))
    }

    fn span(&self, request: &Request, route: &str, request_id: &HeaderValue) -> Span {
        let method = request.method().as_str();
        let span = tracing::info_span!(
            "request",
            otel.name = %format_args!("{method} {route}"),
            otel.kind = "server",
            service = self.service,
            http.request.method = method,
            http.route = route,
            http.response.status_code = field::Empty,
            request_id = request_id.to_str().unwrap_or_default(),
            trace_id = field::Empty,
        );
        trace::continue_from(&span, request.headers());
        if let Some(id) = trace::trace_id(&span) {
            span.record("trace_id", id);
        }
        span
    }
}

async fn around(
    State(envelope): State<Arc<Envelope>>,
    mut request: Request,
    next: Next,
) -> Response {
    let began = Instant::now();
    let request_id = request_id(request.headers());
    let method = request.method().clone();
    let route = request
        .extensions()
        .get::<MatchedPath>()
        .map_or_else(|| "none".to_owned(), |path| path.as_str().to_owned());
    let span = envelope.span(&request, &route, &request_id);
    request.extensions_mut().insert(envelope.limits.clone());
    // Answers that last (streams) must know when to end.
    request.extensions_mut().insert(envelope.phases.clone());

    let mut response = guarded(&envelope, request, next)
        .instrument(span.clone())
        .await;

    let status = response.status();
    span.record("http.response.status_code", status.as_u16());
    response.headers_mut().insert(REQUEST_ID, request_id);
    if envelope.phases.is_draining() {
        // Lets a client with a kept connection leave before we close it under its feet.
        let close = HeaderValue::from_static("close");
        response.headers_mut().insert(CONNECTION, close);
    }
    let took = began.elapsed();
    let method = known_method(&method);
    metrics::counter!(REQUESTS_TOTAL, "service" => envelope.service, "method" => method,
        "route" => route.clone(), "status" => status.as_str().to_owned())
    .increment(1);
    metrics::histogram!(REQUEST_SECONDS, "service" => envelope.service, "method" => method,
        "route" => route)
    .record(took.as_secs_f64());
    span.in_scope(|| {
        let millis = took.as_secs_f64() * 1e3;
        tracing::debug!(
            status = status.as_u16(),
            took_ms = millis,
            "request answered"
        );
    });
    response
}

/// Runs the handler within its time, turns panics into 500, and gives every error its body.
async fn guarded(envelope: &Envelope, request: Request, next: Next) -> Response {
    if let Err(error) = admissible(&request, envelope.settings.max_head.bytes()) {
        return error.into_response();
    }
    let handled = AssertUnwindSafe(next.run(request)).catch_unwind();
    let response = match timeout(envelope.settings.request_timeout, handled).await {
        Ok(Ok(response)) => response,
        Ok(Err(_panic)) => {
            tracing::error!("handler panicked");
            ApiError::internal_unlogged().into_response()
        }
        Err(_elapsed) => {
            tracing::warn!("request timed out");
            ApiError::of_status(StatusCode::GATEWAY_TIMEOUT).into_response()
        }
    };
    let status = response.status();
    let failed = status.is_client_error() || status.is_server_error();
    if !failed || response.extensions().get::<Ours>().is_some() {
        return response;
    }
    let error = if status == StatusCode::PAYLOAD_TOO_LARGE {
        envelope.limits.too_large()
    } else {
        ApiError::of_status(status)
    };
    error.replacing(response.headers())
}

/// What no handler should have to think of: a head within its limit, exactly one host, a path and
/// query of sane length without NUL.
fn admissible(request: &Request, max_head: usize) -> Result<(), ApiError> {
    let mut hosts = request.headers().get_all(HOST).iter();
    let well = match (hosts.next(), hosts.next()) {
        (None, _) => request.version() < Version::HTTP_11,
        (Some(host), None) => Authority::try_from(host.as_bytes()).is_ok(),
        (Some(_), Some(_)) => false,
    };
    if !well {
        return Err(ApiError::bad_request(
            "exactly one valid Host header is required",
        ));
    }
    let uri = request.uri();
    let length = uri.path_and_query().map_or(0, |uri| uri.as_str().len());
    if length > URI_MAX {
        return Err(ApiError::of_status(StatusCode::URI_TOO_LONG));
    }
    // hyper stops only when its buffer is full, which may be some reads later.
    if head_of(request) > max_head {
        let status = StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE;
        return Err(ApiError::of_status(status));
    }
    let has_nul = |text: &str| text.contains("%00");
    if has_nul(uri.path()) || uri.query().is_some_and(has_nul) {
        return Err(ApiError::bad_request("the path must not hold %00"));
    }
    Ok(())
}

/// How long the request line and the headers were, as they are usually written.
fn head_of(request: &Request) -> usize {
    let uri = request.uri().path_and_query();
    let line = request.method().as_str().len() + uri.map_or(1, |uri| uri.as_str().len());
    let headers = request.headers().iter();
    let headers = headers.map(|(name, value)| name.as_str().len() + value.len() + ": \r\n".len());
    line + "  HTTP/1.1\r\n\r\n".len() + headers.sum::<usize>()
}

/// The caller's id for this request if it is fit for a log line, else a new one.
fn request_id(headers: &HeaderMap) -> HeaderValue {
    let given = headers.get(REQUEST_ID).filter(|value| {
        let bytes = value.as_bytes();
        (1..=REQUEST_ID_MAX).contains(&bytes.len()) && bytes.iter().all(u8::is_ascii_graphic)
    });
    given.cloned().unwrap_or_else(|| {
        let id = Uuid::now_v7().to_string();
        // A UUID is visible ASCII.
        HeaderValue::from_str(&id).unwrap_or_else(|_error| HeaderValue::from_static("none"))
    })
}

/// The method as a label: a caller can invent methods, but must not invent time series.
fn known_method(method: &http::Method) -> &'static str {
    match method.as_str() {
        "GET" => "GET",
        "HEAD" => "HEAD",
        "POST" => "POST",
        "PUT" => "PUT",
        "PATCH" => "PATCH",
        "DELETE" => "DELETE",
        "OPTIONS" => "OPTIONS",
        _ => "other",
    }
}
