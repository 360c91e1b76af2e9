//! What upkeep reports.

use time::Duration;

use super::rules::Partitioned;
use super::span::covered_until;
use super::step::Look;

/// Rows in the DEFAULT partition by table, counted up to 1,000. More than none means that upkeep
/// did not run in time, or that ids of another make arrive.
const DEFAULT_ROWS: &str = "tasuki_upkeep_default_rows";
/// Partitions by table, the DEFAULT one not counted.
const PARTITIONS: &str = "tasuki_upkeep_partitions";
/// For how long from now every moment has a partition, by table. Below an hour somebody should
/// look at why none are made.
const AHEAD_SECONDS: &str = "tasuki_upkeep_ahead_seconds";
/// For how long the oldest partition that is to be dropped has been, by table; those are not counted
/// in which a row that came late was found. Above three hours somebody should look at what keeps it.
const OVERDUE_SECONDS: &str = "tasuki_upkeep_overdue_seconds";
/// Partitions made, by table.
const CREATED_TOTAL: &str = "tasuki_upkeep_created_total";
/// Partitions dropped, by table.
const DROPPED_TOTAL: &str = "tasuki_upkeep_dropped_total";
/// Rows deleted one by one, by table.
const DELETED_ROWS_TOTAL: &str = "tasuki_upkeep_deleted_rows_total";
/// Steps left for the next tick because somebody held a lock, by table.
const POSTPONED_TOTAL: &str = "tasuki_upkeep_postponed_total";
/// Attempts to drop a partition that took too long, by table.
const TOO_SLOW_TOTAL: &str = "tasuki_upkeep_too_slow_total";

pub(super) fn created(table: &str) {
    metrics::counter!(CREATED_TOTAL, "table" => table.to_owned()).increment(1);
}

pub(super) fn dropped(table: &str) {
    metrics::counter!(DROPPED_TOTAL, "table" => table.to_owned()).increment(1);
}

pub(super) fn deleted(table: &str, rows: u64) {
    metrics::counter!(DELETED_ROWS_TOTAL, "table" => table.to_owned()).increment(rows);
}

pub(super) fn postponed(table: &str) {
    metrics::counter!(POSTPONED_TOTAL, "table" => table.to_owned()).increment(1);
}

pub(super) fn too_slow(table: &str) {
    metrics::counter!(TOO_SLOW_TOTAL, "table" => table.to_owned()).increment(1);
}

/// Reports a table as it is after a pass.
pub(super) fn state(rule: &Partitioned, look: &Look, default_rows: i64, overdue: Duration) {
    let spans = look.spans();
    let now = look.turn.now;
    let ahead = (covered_until(&spans, now) - now).as_seconds_f64();
    let table = || rule.table.clone();
    metrics::gauge!(PARTITIONS, "table" => table()).set(spans.len() as f64);
    metrics::gauge!(AHEAD_SECONDS, "table" => table()).set(ahead);
    metrics::gauge!(OVERDUE_SECONDS, "table" => table()).set(overdue.as_seconds_f64());
    metrics::gauge!(DEFAULT_ROWS, "table" => table()).set(default_rows as f64);
}
