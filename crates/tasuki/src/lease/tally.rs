//! What a runner did, as metrics.

use std::time::Duration;

use metrics::{Counter, Gauge, Histogram};

/// Rows claimed, by worker.
pub(super) const CLAIMED: &str = "tasuki_lease_claimed_total";
/// Rows whose work ended, by worker and outcome: `done`, `retry`, `back`, `dead`.
pub(super) const ENDED: &str = "tasuki_lease_ended_total";
/// Claims that were lost to somebody else before they could be settled or renewed, by worker.
pub(super) const LOST: &str = "tasuki_lease_lock_lost_total";
/// Time a claim takes in the database, by worker.
pub(super) const CLAIM_SECONDS: &str = "tasuki_lease_claim_seconds";
/// Rows that this process holds, by worker.
pub(super) const HELD: &str = "tasuki_lease_held_rows";

/// The handles of one worker, made once.
pub(super) struct Tally {
    claimed: Counter,
    done: Counter,
    retry: Counter,
    back: Counter,
    dead: Counter,
    lost: Counter,
    claim_seconds: Histogram,
    held: Gauge,
}

impl Tally {
    pub(super) fn new(worker: &str) -> Self {
        let worker = worker.to_owned();
        let ended =
            |outcome| metrics::counter!(ENDED, "worker" => worker.clone(), "outcome" => outcome);
        Self {
            done: ended("done"),
            retry: ended("retry"),
            back: ended("back"),
            dead: ended("dead"),
            claimed: metrics::counter!(CLAIMED, "worker" => worker.clone()),
            lost: metrics::counter!(LOST, "worker" => worker.clone()),
            claim_seconds: metrics::histogram!(CLAIM_SECONDS, "worker" => worker.clone()),
            held: metrics::gauge!(HELD, "worker" => worker),
        }
    }

    pub(super) fn claimed(&self, rows: usize, took: Duration) {
        self.claimed.increment(count(rows));
        self.claim_seconds.record(took.as_secs_f64());
    }

    pub(super) fn done(&self, rows: usize) {
        self.done.increment(count(rows));
    }

    pub(super) fn retry(&self) {
        self.retry.increment(1);
    }

    pub(super) fn back(&self) {
        self.back.increment(1);
    }

    pub(super) fn dead(&self) {
        self.dead.increment(1);
    }

    pub(super) fn lost(&self, rows: usize) {
        self.lost.increment(count(rows));
    }

    pub(super) fn held(&self, rows: usize) {
        self.held.set(u32::try_from(rows).unwrap_or(u32::MAX));
    }
}

fn count(rows: usize) -> u64 {
    u64::try_from(rows).unwrap_or(u64::MAX)
}
