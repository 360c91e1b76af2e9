//! `/livez`, `/readyz` and `/metrics`.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use futures_util::future::join_all;
use http::StatusCode;
use http::header::CONTENT_TYPE;
use serde_json::json;
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout};

use super::error::ApiError;
use crate::shutdown::Phases;
use crate::telemetry::Meter;

/// How long one check may take. Probes have a period of seconds.
const CHECK_LIMIT: Duration = Duration::from_secs(3);
/// How long an answer is given again: asking often costs the servers nothing.
const BELIEVED_FOR: Duration = Duration::from_millis(250);

type Checking = Pin<Box<dyn Future<Output = Result<(), String>> + Send>>;

/// Something that a service needs to be ready.
#[derive(Clone)]
pub struct Check {
    name: &'static str,
    run: Arc<dyn Fn() -> Checking + Send + Sync>,
}

impl Check {
    /// A check that passes when `run` does; its error is one sentence for the operator.
    pub fn new<F, R>(name: &'static str, run: F) -> Self
    where
        F: Fn() -> R + Send + Sync + 'static,
        R: Future<Output = Result<(), String>> + Send + 'static,
    {
        Self {
            name,
            run: Arc::new(move || Box::pin(run())),
        }
    }

    async fn problem(&self) -> Option<String> {
        let outcome = timeout(CHECK_LIMIT, (self.run)()).await;
        let problem = match outcome {
            Ok(Ok(())) => return None,
            Ok(Err(problem)) => problem,
            Err(_elapsed) => format!("no answer within {}s", CHECK_LIMIT.as_secs()),
        };
        Some(format!("{}: {problem}", self.name))
    }
}

impl fmt::Debug for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Check({})", self.name)
    }
}

/// What was missing, and when.
#[derive(Debug)]
struct Answer {
    at: Instant,
    missing: Vec<String>,
}

/// The health of one service.
#[derive(Clone, Debug)]
pub struct Health {
    checks: Arc<[Check]>,
    phases: Phases,
    meter: Meter,
    last: Arc<Mutex<Option<Answer>>>,
}

impl Health {
    /// Ready when every check passes and nobody has said stop.
    #[must_use]
    pub fn new(checks: Vec<Check>, phases: &Phases, meter: &Meter) -> Self {
        Self {
            checks: checks.into(),
            phases: phases.clone(),
            meter: meter.clone(),
            last: Arc::default(),
        }
    }

    /// What is missing, a sentence each; empty when ready.
    pub async fn missing(&self) -> Vec<String> {
        if self.phases.is_draining() {
            return vec!["shutting down".to_owned()];
        }
        // One asks, the others wait for its answer.
        let mut last = self.last.lock().await;
        if let Some(answer) = &*last
            && answer.at.elapsed() < BELIEVED_FOR
        {
            return answer.missing.clone();
        }
        let problems = join_all(self.checks.iter().map(Check::problem)).await;
        let missing: Vec<_> = problems.into_iter().flatten().collect();
        *last = Some(Answer {
            at: Instant::now(),
            missing: missing.clone(),
        });
        missing
    }

    /// The three paths.
    pub fn routes(self) -> Router {
        Router::new()
            .route(
                "/livez",
                get(async || axum::Json(json!({ "status": "ok" }))),
            )
            .route("/readyz", get(readyz))
            .route("/metrics", get(metrics))
            .with_state(self)
    }
}

async fn readyz(State(health): State<Health>) -> Response {
    let missing = health.missing().await;
    if missing.is_empty() {
        return axum::Json(json!({ "status": "ready" })).into_response();
    }
    ApiError::new(
        StatusCode::SERVICE_UNAVAILABLE,
        "NOT_READY",
        missing.join("; "),
    )
    .retry_after(Duration::from_secs(1))
    .into_response()
}

async fn metrics(State(health): State<Health>) -> Response {
    let text = "text/plain; version=0.0.4";
    ([(CONTENT_TYPE, text)], health.meter.render()).into_response()
}
