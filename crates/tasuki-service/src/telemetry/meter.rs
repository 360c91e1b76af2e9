//! Prometheus metrics of this process.

use metrics_exporter_prometheus::{BuildError, Matcher, PrometheusBuilder, PrometheusHandle};
use tasuki::worker::{Error, Tick, Worker};

/// Seconds. From a cached read to the longest request that is let through.
/// An objective is at the edge of one (`docs/slo.md`: 5 s from an event to the broker).
const BUCKETS: [f64; 15] = [
    0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0,
];

/// Renders what the process has counted.
#[derive(Clone)]
pub struct Meter(PrometheusHandle);

impl Meter {
    /// Makes this process's `metrics` calls arrive here.
    pub(super) fn install() -> Result<Self, BuildError> {
        Ok(Self(builder()?.install_recorder()?))
    }

    /// A meter that nothing arrives at: for tests, where several services share a process.
    ///
    /// # Panics
    /// Never: the buckets are a constant.
    #[must_use]
    pub fn detached() -> Self {
        let recorder = PrometheusBuilder::new().build_recorder();
        Self(recorder.handle())
    }

    /// The metrics in Prometheus's text format.
    #[must_use]
    pub fn render(&self) -> String {
        self.0.render()
    }

    /// The worker that keeps histograms small when nobody scrapes.
    #[must_use]
    pub fn upkeep(&self) -> impl Worker {
        Upkeep(self.0.clone())
    }
}

impl std::fmt::Debug for Meter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Meter")
    }
}

fn builder() -> Result<PrometheusBuilder, BuildError> {
    PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Suffix("_seconds".to_owned()), &BUCKETS)
}

struct Upkeep(PrometheusHandle);

impl Worker for Upkeep {
    fn name(&self) -> &str {
        "process.metrics-upkeep"
    }

    fn poll_interval(&self) -> std::time::Duration {
        std::time::Duration::from_secs(5)
    }

    async fn tick(&self) -> Result<Tick, Error> {
        self.0.run_upkeep();
        Ok(Tick::Idle)
    }
}
