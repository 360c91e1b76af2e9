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
use tracing_subscriber::filter::{FilterFn, Filtered, filter_fn};
use tracing_subscriber::layer::SubscriberExt;
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
    let traces = tracing_opentelemetry::layer()
        .with_tracer(provider.tracer("tasuki"))
        .with_location(false)
        .with_threads(false)
        .with_filter(filter_fn(is_traced as fn(&Metadata<'_>) -> bool));
    std::panic::set_hook(Box::new(log_panic));
    Registry::default()
        .with(traces)
        .with(lines(settings.log_format, target)?.with_filter(EnvFilter::try_new(&settings.log)?))
        .try_init()
        .map_err(|_error| Error::Twice)?;
    Ok(Guard {
        provider,
        meter: Meter::install().map_err(|_error| Error::Twice)?,
    })
}

/// What leaves the process as a trace: our own spans, and what they warn of. A tick is none,
/// because most of them find nothing to do; what it finds has spans of its own.
fn is_traced(metadata: &Metadata<'_>) -> bool {
    let level = if metadata.is_span() {
        Level::INFO
    } else {
        Level::WARN
    };
    metadata.target().starts_with("tasuki")
        && *metadata.level() <= level
        && metadata.name() != "tick"
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
    FilterFn<fn(&Metadata<'_>) -> bool>,
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
