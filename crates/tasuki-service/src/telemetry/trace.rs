//! W3C trace context: from headers into spans, and out of spans into text.

use http::HeaderMap;
use opentelemetry::Context;
use opentelemetry::propagation::{Extractor, TextMapPropagator};
use opentelemetry::trace::{SpanContext, TraceContextExt};
use opentelemetry_sdk::propagation::TraceContextPropagator;
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt;

/// Makes `span` a child of the trace that `headers` name, if they name one. Must come before
/// the span is entered.
pub fn continue_from(span: &Span, headers: &HeaderMap) {
    let parent = TraceContextPropagator::new().extract(&Headers(headers));
    if parent.span().span_context().is_valid() {
        // Fails only for a span that is disabled, which has no trace to join.
        span.set_parent(parent).unwrap_or_default();
    }
}

/// The trace id of `span`, 32 hex digits; `None` where no subscriber gives it one.
#[must_use]
pub fn trace_id(span: &Span) -> Option<String> {
    valid(span).map(|ids| ids.trace_id().to_string())
}

/// `traceparent` of `span`, for a column or a header.
#[must_use]
pub fn traceparent(span: &Span) -> Option<String> {
    let ids = valid(span)?;
    let flags = ids.trace_flags().to_u8();
    Some(format!(
        "00-{}-{}-{flags:02x}",
        ids.trace_id(),
        ids.span_id()
    ))
}

/// Links `span` to the trace that `traceparent` names, if it names one: for work on many traces
/// at once.
pub fn link(span: &Span, traceparent: &str) {
    if let Some(ids) = parse(traceparent) {
        span.add_link(ids);
    }
}

/// Makes `span` a child of the span that `traceparent` names, if it names one. Must come before
/// the span is entered.
pub fn continue_as(span: &Span, traceparent: &str) {
    if let Some(ids) = parse(traceparent) {
        let parent = Context::new().with_remote_span_context(ids);
        // Fails only for a span that is disabled, which has no trace to join.
        span.set_parent(parent).unwrap_or_default();
    }
}

fn parse(traceparent: &str) -> Option<SpanContext> {
    let mut headers = HeaderMap::new();
    headers.insert("traceparent", traceparent.parse().ok()?);
    let parent = TraceContextPropagator::new().extract(&Headers(&headers));
    let ids = parent.span().span_context().clone();
    ids.is_valid().then_some(ids)
}

fn valid(span: &Span) -> Option<SpanContext> {
    let ids = span.context().span().span_context().clone();
    ids.is_valid().then_some(ids)
}

struct Headers<'h>(&'h HeaderMap);

impl Extractor for Headers<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key).and_then(|value| value.to_str().ok())
    }

    fn keys(&self) -> Vec<&str> {
        self.0.keys().map(http::HeaderName::as_str).collect()
    }
}
