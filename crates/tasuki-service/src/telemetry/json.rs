//! Log lines for machines: one JSON object a line, fields of the spans around it included.

use std::error::Error;
use std::fmt;
use std::io::Write;
use std::sync::{Mutex, PoisonError};

use opentelemetry::trace::TraceContextExt;
use serde_json::{Map, Value};
use tasuki::Clock;
use tasuki_contract::timestamp;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;
use tracing_subscriber::registry::LookupSpan;

/// Writes events as JSON lines.
pub(super) struct Lines<W> {
    out: Mutex<W>,
    clock: Clock,
}

impl<W: Write + Send + 'static> Lines<W> {
    pub(super) fn to(out: W) -> Self {
        Self {
            out: Mutex::new(out),
            clock: Clock::system(),
        }
    }
}

/// The fields of one span, kept with it.
struct Fields(Map<String, Value>);

impl<S, W> Layer<S> for Lines<W>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    W: Write + Send + 'static,
{
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let Some(span) = context.span(id) else { return };
        let mut fields = Map::new();
        attributes.record(&mut Collect(&mut fields));
        span.extensions_mut().insert(Fields(fields));
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        let Some(span) = context.span(id) else { return };
        if let Some(Fields(fields)) = span.extensions_mut().get_mut() {
            values.record(&mut Collect(fields));
        }
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let mut line = Map::new();
        let now = timestamp::format(self.clock.now()).unwrap_or_default();
        line.insert("timestamp".to_owned(), now.into());
        line.insert("level".to_owned(), event.metadata().level().as_str().into());
        line.insert("target".to_owned(), event.metadata().target().into());
        for span in context.event_scope(event).into_iter().flatten() {
            if let Some(Fields(fields)) = span.extensions().get() {
                // Inner spans come first, and win.
                for (name, value) in fields {
                    line.entry(name).or_insert_with(|| value.clone());
                }
            }
        }
        let current = opentelemetry::Context::current();
        let ids = current.span().span_context().clone();
        if ids.is_valid() {
            line.insert("trace_id".to_owned(), ids.trace_id().to_string().into());
            line.insert("span_id".to_owned(), ids.span_id().to_string().into());
        }
        event.record(&mut Collect(&mut line));
        let mut bytes = Value::Object(line).to_string().into_bytes();
        bytes.push(b'\n');
        let mut out = self.out.lock().unwrap_or_else(PoisonError::into_inner);
        // There is nobody left to tell when the log itself can't be written.
        out.write_all(&bytes).unwrap_or_default();
    }
}

struct Collect<'m>(&'m mut Map<String, Value>);

impl Collect<'_> {
    fn put(&mut self, field: &Field, value: impl Into<Value>) {
        self.0.insert(field.name().to_owned(), value.into());
    }
}

impl Visit for Collect<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.put(field, format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.put(field, value);
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.put(field, value);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.put(field, value);
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.put(field, value);
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.put(field, value);
    }

    /// The whole chain: each level says its own part.
    fn record_error(&mut self, field: &Field, value: &(dyn Error + 'static)) {
        self.put(field, tasuki::lease::told(value));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tracing_subscriber::layer::SubscriberExt;

    use super::*;

    #[derive(Clone, Default)]
    struct Shared(Arc<Mutex<Vec<u8>>>);

    impl Write for Shared {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_line_holds_its_fields_those_of_its_spans_and_the_chain_of_its_error() {
        let out = Shared::default();
        let subscriber = tracing_subscriber::registry().with(Lines::to(out.clone()));
        tracing::subscriber::with_default(subscriber, || {
            let _outer = tracing::info_span!("outer", service = "system", job.id = 1).entered();
            let _inner = tracing::info_span!("inner", job.id = 2).entered();
            let error = config_error();
            tracing::warn!(
                error = &error as &(dyn Error + 'static),
                tries = 3,
                "it failed"
            );
        });

        let line: Value = serde_json::from_slice(&out.0.lock().unwrap()).unwrap();
        assert_eq!(line["message"], "it failed");
        assert_eq!(line["level"], "WARN");
        assert_eq!(line["service"], "system");
        assert_eq!(line["job.id"], 2);
        assert_eq!(line["tries"], 3);
        assert_eq!(line["error"], "outside: inside");
    }

    #[derive(Debug, thiserror::Error)]
    #[error("outside")]
    struct Outside(#[source] Inside);

    #[derive(Debug, thiserror::Error)]
    #[error("inside")]
    struct Inside;

    fn config_error() -> Outside {
        Outside(Inside)
    }
}
