//! What the job queue did, as metrics. Kinds and queues are what the code names: closed sets.

use std::time::Duration;

use metrics::{Counter, Histogram};

use super::Job;

/// Jobs enqueued, by queue and kind; those whose transaction rolled back are among them.
const ENQUEUED: &str = "tasuki_jobs_enqueued_total";
/// Attempts begun, by queue and kind.
const STARTED: &str = "tasuki_jobs_started_total";
/// Attempts that succeeded, by queue and kind.
const FINISHED: &str = "tasuki_jobs_finished_total";
/// Attempts that failed, timeouts and panics included, by queue and kind.
const FAILED: &str = "tasuki_jobs_failed_total";
/// Attempts that were cut at their timeout, by queue and kind.
const TIMEOUTS: &str = "tasuki_jobs_timeouts_total";
/// Jobs that died, by queue and kind.
const DEAD: &str = "tasuki_jobs_dead_total";
/// Jobs given back because this release has no handler for them, by queue.
const UNKNOWN: &str = "tasuki_jobs_unknown_kind_total";
/// How long attempts ran, by queue and kind.
const RUN_SECONDS: &str = "tasuki_jobs_run_seconds";
/// From the time a job is due (for the first attempt: enqueued) to its start, by queue and kind.
const WAIT_SECONDS: &str = "tasuki_jobs_wait_seconds";

/// The handles of one kind in one queue, made once.
pub(super) struct Tally {
    started: Counter,
    finished: Counter,
    failed: Counter,
    timeouts: Counter,
    dead: Counter,
    run_seconds: Histogram,
    wait_seconds: Histogram,
}

impl Tally {
    pub(super) fn new(queue: &str, kind: &'static str) -> Self {
        let counter = |name| metrics::counter!(name, "queue" => queue.to_owned(), "kind" => kind);
        let histogram =
            |name| metrics::histogram!(name, "queue" => queue.to_owned(), "kind" => kind);
        Self {
            started: counter(STARTED),
            finished: counter(FINISHED),
            failed: counter(FAILED),
            timeouts: counter(TIMEOUTS),
            dead: counter(DEAD),
            run_seconds: histogram(RUN_SECONDS),
            wait_seconds: histogram(WAIT_SECONDS),
        }
    }

    pub(super) fn started(&self, waited: Duration) {
        self.started.increment(1);
        self.wait_seconds.record(waited.as_secs_f64());
    }

    pub(super) fn finished(&self, took: Duration) {
        self.finished.increment(1);
        self.run_seconds.record(took.as_secs_f64());
    }

    pub(super) fn failed(&self, took: Duration) {
        self.failed.increment(1);
        self.run_seconds.record(took.as_secs_f64());
    }

    pub(super) fn timed_out(&self) {
        self.timeouts.increment(1);
    }

    pub(super) fn dead(&self) {
        self.dead.increment(1);
    }
}

pub(super) fn enqueued<J: Job>(jobs: usize) {
    let jobs = u64::try_from(jobs).unwrap_or(u64::MAX);
    metrics::counter!(ENQUEUED, "queue" => J::QUEUE, "kind" => J::KIND).increment(jobs);
}

pub(super) fn unknown_kind(queue: &str) {
    metrics::counter!(UNKNOWN, "queue" => queue.to_owned()).increment(1);
}
