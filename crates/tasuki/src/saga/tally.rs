//! What sagas count.

/// Sagas that ended or came to need a person, by worker, definition and state.
const ENDED_TOTAL: &str = "tasuki_saga_ended_total";
/// Sagas that were lost to another process, by worker. Alert `saga-lost`: more than a few a minute.
const LOST_TOTAL: &str = "tasuki_saga_lost_total";

/// Sagas that are due and whose version this engine does not know, by worker, definition and version; 0
/// for those that it knows. Alert `saga-unknown`: the least of all processes is above 0.
const UNKNOWN: &str = "tasuki_saga_unknown_rows";

pub(super) fn ended(worker: &str, definition: &str, state: &'static str) {
    let (worker, definition) = (worker.to_owned(), definition.to_owned());
    metrics::counter!(ENDED_TOTAL, "worker" => worker, "saga" => definition, "state" => state)
        .increment(1);
}

pub(super) fn lost(worker: &str) {
    metrics::counter!(LOST_TOTAL, "worker" => worker.to_owned()).increment(1);
}

pub(super) fn unknown(worker: &str, definition: &str, version: i32, sagas: i64) {
    let (worker, definition) = (worker.to_owned(), definition.to_owned());
    // At most ten thousand.
    let sagas = i32::try_from(sagas).unwrap_or(i32::MAX);
    metrics::gauge!(UNKNOWN, "worker" => worker, "saga" => definition, "version" => version.to_string())
        .set(sagas);
}
