//! Logs, traces and metrics of one process.
//!
//! [`init`] is called once, by `main`. The subscriber and the metrics recorder are the only
//! globals of the platform; everything else is passed down.
//!
//! Every log line inside a request carries the trace and span id, whether traces are
//! exported or not. Secrets, bodies, e-mail and IP addresses are never logged.

mod json;
mod meter;
pub mod trace;

use std::fs::File;
use std::io::IsTerminal;
use std::panic::PanicHookInfo;
use std::path::PathBuf;
use std::sync::Mutex;

use opentelemetry::trace::TracerProvider as _;
use opentelemetry_otlp::{SpanExporter, WithExportConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{Sampler, SdkTracerProvider};
use tracing::{Level, Metadata};
use tracing_subscriber::filter::{Filtered, LevelFilter};
use tracing_subscriber::layer::{Context, Filter, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, Registry};

use crate::config::{self, LogFormat};

pub use meter::Meter;

/// Where log lines go.
#[derive(Clone, Debug)]
pub enum LogTarget {
    /// To standard error.
    Stderr,
    /// To a file, which is begun anew.
    File(PathBuf),
}

/// Why telemetry could not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// `telemetry.log` is not a filter.
    #[error("telemetry.log is not a log filter: {0}")]
    Filter(#[from] tracing_subscriber::filter::ParseError),
    /// `telemetry.otlp-endpoint` can't be used.
    #[error("telemetry.otlp-endpoint can't be used: {0}")]
    Exporter(#[from] opentelemetry_otlp::ExporterBuildError),
    /// The log file can't be written.
    #[error("log file {path} can't be written: {source}")]
    LogFile {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// Telemetry was started before in this process.
    #[error("telemetry was started twice in one process")]
    Twice,
}

/// Keeps telemetry alive; [`finish`](Self::finish) sends what is still waiting.
#[derive(Debug)]
pub struct Guard {
    provider: SdkTracerProvider,
    /// Renders `/metrics`.
    pub meter: Meter,
}

impl Guard {
    /// Sends the last spans. Blocks for a few seconds at most when nobody takes them.
    pub async fn finish(self) {
        let provider = self.provider;
        let done = tokio::task::spawn_blocking(move || provider.shutdown()).await;
        if let Ok(Err(error)) = done {
            tracing::warn!(error = %error, "last traces could not be sent");
        }
    }
}

/// Starts logs, traces and metrics for this process.
///
/// # Errors
/// When a setting can't be used, or when called twice.
pub fn init(
    settings: &config::Telemetry,
    target: &LogTarget,
    service_name: String,
) -> Result<Guard, Error> {
    let provider = provider(settings, service_name)?;
    std::panic::set_hook(Box::new(log_panic));
    Registry::default()
        .with(traces(&provider))
        .with(lines(settings.log_format, target)?.with_filter(EnvFilter::try_new(&settings.log)?))
        .try_init()
        .map_err(|_error| Error::Twice)?;
    Ok(Guard {
        provider,
        meter: Meter::install().map_err(|_error| Error::Twice)?,
    })
}

fn traces(provider: &SdkTracerProvider) -> Traces {
    tracing_opentelemetry::layer()
        .with_tracer(provider.tracer("tasuki"))
        .with_location(false)
        .with_threads(false)
        .with_filter(Traced)
}

/// What leaves the process as a trace: our own spans, and what they warn of. A tick is none,
/// because most of them find nothing to do; what it finds has spans of its own.
///
/// It must be asked anew every time (`callsite_enabled` stays "sometimes"): where all filters
/// remember their answers, a `tracing::enabled!` of a dependency, which asks and sends nothing,
/// leaves its answer behind for the next span on that thread, and that span is lost.
struct Traced;

impl<S> Filter<S> for Traced {
    fn enabled(&self, metadata: &Metadata<'_>, _context: &Context<'_, S>) -> bool {
        let level = if metadata.is_span() {
            Level::INFO
        } else {
            Level::WARN
        };
        metadata.target().starts_with("tasuki")
            && *metadata.level() <= level
            && metadata.name() != "tick"
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(LevelFilter::INFO)
    }
}

/// A panic is one log line, as everything else is.
fn log_panic(panic: &PanicHookInfo<'_>) {
    let message = panic.payload_as_str().unwrap_or("no message");
    let location = panic
        .location()
        .map(ToString::to_string)
        .unwrap_or_default();
    tracing::error!(panic = message, location, "panicked");
}

fn provider(
    settings: &config::Telemetry,
    service_name: String,
) -> Result<SdkTracerProvider, Error> {
    let builder = SdkTracerProvider::builder()
        .with_resource(Resource::builder().with_service_name(service_name).build());
    if settings.otlp_endpoint.is_empty() {
        // Nothing is recorded, but every span still has its ids.
        return Ok(builder.with_sampler(Sampler::AlwaysOff).build());
    }
    let endpoint = settings.otlp_endpoint.trim_end_matches('/');
    let exporter = SpanExporter::builder()
        .with_http()
        .with_endpoint(format!("{endpoint}/v1/traces"))
        .build()?;
    let ratio = Sampler::TraceIdRatioBased(settings.trace_sample_ratio);
    Ok(builder
        .with_sampler(Sampler::ParentBased(Box::new(ratio)))
        .with_batch_exporter(exporter)
        .build())
}

type Lines = Box<dyn Layer<tracing_subscriber::layer::Layered<Traces, Registry>> + Send + Sync>;
type Traces = Filtered<
    tracing_opentelemetry::OpenTelemetryLayer<Registry, opentelemetry_sdk::trace::SdkTracer>,
    Traced,
    Registry,
>;

fn lines(format: LogFormat, target: &LogTarget) -> Result<Lines, Error> {
    let terminal = matches!(target, LogTarget::Stderr) && std::io::stderr().is_terminal();
    let json = match format {
        LogFormat::Json => true,
        LogFormat::Pretty => false,
        LogFormat::Auto => !terminal,
    };
    let layer = tracing_subscriber::fmt::layer()
        .compact()
        .with_ansi(terminal);
    Ok(match target {
        LogTarget::Stderr if json => json::Lines::to(std::io::stderr()).boxed(),
        LogTarget::Stderr => layer.with_writer(std::io::stderr).boxed(),
        LogTarget::File(path) => {
            let file = File::create(path).map_err(|source| Error::LogFile {
                path: path.clone(),
                source,
            })?;
            if json {
                json::Lines::to(file).boxed()
            } else {
                layer.with_writer(Mutex::new(file)).boxed()
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_span_is_lost_to_a_dependency_that_asks_whether_it_may_log() {
        let provider = SdkTracerProvider::builder().build();
        let lines = json::Lines::to(std::io::sink()).with_filter(EnvFilter::new("info"));
        let subscriber = Registry::default().with(traces(&provider)).with(lines);
        tracing::subscriber::with_default(subscriber, || {
            let traced = || trace::trace_id(&tracing::info_span!("request")).is_some();
            assert!(traced());
            for _ in 0..3 {
                // The lines would take it, the traces would not, and nothing follows.
                assert!(tracing::enabled!(target: "sqlx::query", Level::WARN));
                assert!(traced());
            }
        });
    }

    #[test]
    fn ticks_and_dependencies_are_no_traces() {
        let provider = SdkTracerProvider::builder().build();
        let subscriber = Registry::default().with(traces(&provider));
        tracing::subscriber::with_default(subscriber, || {
            assert!(trace::trace_id(&tracing::info_span!("tick")).is_none());
            assert!(trace::trace_id(&tracing::info_span!(target: "hyper", "other")).is_none());
            assert!(trace::trace_id(&tracing::debug_span!("detail")).is_none());
        });
    }
}
