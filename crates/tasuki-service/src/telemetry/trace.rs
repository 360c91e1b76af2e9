//! W3C trace context: from headers into spans, and out of spans into text.

use http::HeaderMap;
use opentelemetry::Context;
use opentelemetry::propagation::{Extractor, TextMapPropagator};
use opentelemetry::trace::{SpanContext, SpanId, TraceContextExt, TraceFlags, TraceId, TraceState};
use opentelemetry_sdk::propagation::TraceContextPropagator;
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt;
use uuid::Uuid;

/// Names a trace to join for callers that know no `traceparent`.
const TRACE_ID: &str = "x-trace-id";

/// Makes `span` a child of the trace that `headers` name, if they name one: by `traceparent`, or
/// else by `X-Trace-Id`. Must come before the span is entered.
pub fn continue_from(span: &Span, headers: &HeaderMap) {
    let mut parent = TraceContextPropagator::new().extract(&Headers(headers));
    if !parent.span().span_context().is_valid() {
        let Some(ids) = named(headers) else { return };
        parent = Context::new().with_remote_span_context(ids);
    }
    // Fails only for a span that is disabled, which has no trace to join.
    span.set_parent(parent).unwrap_or_default();
}

/// The trace that `X-Trace-Id` names: 32 hex digits, or a UUID. The caller has named no span in it,
/// so all that come with the same id are made children of one that nobody reports.
fn named(headers: &HeaderMap) -> Option<SpanContext> {
    let text = headers.get(TRACE_ID)?.to_str().ok()?;
    let is_plain = matches!(text.len(), 32 | 36);
    let id = Uuid::try_parse(text).ok().filter(|_| is_plain)?;
    let (first, last) = id.as_u64_pair();
    let span = if last == 0 { first } else { last };
    let (trace, span) = (TraceId::from(id.as_u128()), SpanId::from(span));
    let state = TraceState::default();
    let ids = SpanContext::new(trace, span, TraceFlags::SAMPLED, true, state);
    ids.is_valid().then_some(ids)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_is_named_by_32_hex_digits_or_by_a_uuid_and_by_nothing_else() {
        let named = |text: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(TRACE_ID, text.parse().unwrap());
            named(&headers).map(|ids| ids.trace_id().to_string())
        };
        let id = "4bf92f3577b34da6a3ce929d0e0e4736";
        for text in [
            id,
            "4BF92F3577B34DA6A3CE929D0E0E4736",
            "4bf92f35-77b3-4da6-a3ce-929d0e0e4736",
        ] {
            assert_eq!(named(text).as_deref(), Some(id), "{text}");
        }
        let no_last = "4bf92f3577b34da60000000000000000";
        assert_eq!(named(no_last).as_deref(), Some(no_last));
        for text in [
            "",
            "order-7",
            "00000000000000000000000000000000",
            "{4bf92f35-77b3-4da6-a3ce-929d0e0e4736}",
            "urn:uuid:4bf92f35-77b3-4da6-a3ce-929d0e0e4736",
            "4bf92f3577b34da6a3ce929d0e0e473",
            "4bf92f3577b34da6a3ce929d0e0e4736 ",
        ] {
            assert_eq!(named(text), None, "{text:?}");
        }
    }
}
