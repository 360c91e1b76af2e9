//! What sagas count.

/// Sagas that ended or came to need a person, by worker, definition and state.
const ENDED_TOTAL: &str = "tasuki_saga_ended_total";
/// Sagas that were lost to another process, by worker. Alert `saga-lost`: more than a few a minute.
const LOST_TOTAL: &str = "tasuki_saga_lost_total";

pub(super) fn ended(worker: &str, definition: &str, state: &'static str) {
    let (worker, definition) = (worker.to_owned(), definition.to_owned());
    metrics::counter!(ENDED_TOTAL, "worker" => worker, "saga" => definition, "state" => state)
        .increment(1);
}

pub(super) fn lost(worker: &str) {
    metrics::counter!(LOST_TOTAL, "worker" => worker.to_owned()).increment(1);
}
