//! What logs and their consumers count.

/// Rows numbered, by log.
const NUMBERED_TOTAL: &str = "tasuki_seqlog_numbered_rows_total";
/// Rows handled, by consumer and outcome: `done`, `failed` (it is tried again), `set_aside`, `away`
/// (nobody's fault). Alert `seqlog-failing`: `failed` grows for ten minutes.
const HANDLED_TOTAL: &str = "tasuki_seqlog_handled_rows_total";
/// Batches that were given up because the consumer was taken over or moved, by consumer. No alert; many
/// mean that the lease is shorter than a batch takes.
const LOST_TOTAL: &str = "tasuki_seqlog_lost_batches_total";

pub(super) fn numbered(log: &str, rows: usize) {
    metrics::counter!(NUMBERED_TOTAL, "log" => log.to_owned()).increment(rows as u64);
}

pub(super) fn handled(consumer: &str, outcome: &'static str, rows: usize) {
    let consumer = consumer.to_owned();
    metrics::counter!(HANDLED_TOTAL, "consumer" => consumer, "outcome" => outcome)
        .increment(rows as u64);
}

pub(super) fn lost(consumer: &str) {
    metrics::counter!(LOST_TOTAL, "consumer" => consumer.to_owned()).increment(1);
}
