//! How requests ended, as a metric and on the span.

use super::Error;

/// Requests by how they ended: `executed`, `replayed`, `conflict`, `in_progress`,
/// `undecided` (the work did not decide, or failed), `failed` (the database did, or an
/// invariant is broken), `dropped` (the client hung up, or the work panicked).
const REQUESTS_TOTAL: &str = "tasuki_idempotency_requests_total";

/// Counts one request when it is dropped, whatever way that comes about.
#[derive(Debug)]
pub(super) struct Tally(&'static str);

impl Tally {
    pub(super) fn new() -> Self {
        Self("dropped")
    }

    pub(super) fn ended(&mut self, outcome: &'static str) {
        self.0 = outcome;
    }

    pub(super) fn failed(&mut self, error: &Error) {
        self.0 = match error {
            Error::Conflict => "conflict",
            Error::InProgress | Error::Held => "in_progress",
            Error::InvalidKey
            | Error::InvalidCaller
            | Error::InvalidAnswer(_)
            | Error::Broken
            | Error::Store(_) => "failed",
        };
    }
}

impl Drop for Tally {
    fn drop(&mut self) {
        tracing::Span::current().record("idempotency.outcome", self.0);
        count(self.0, 1);
    }
}

pub(super) fn count(outcome: &'static str, requests: usize) {
    if requests > 0 {
        metrics::counter!(REQUESTS_TOTAL, "outcome" => outcome)
            .increment(u64::try_from(requests).unwrap_or(u64::MAX));
    }
}
