//! The metrics of two-phase commits, by schema.

use std::time::Duration;

use super::store::session::Found;
use super::{Committed, Error};
use crate::Schema;

/// Transactions by outcome: `committed`, `alone` (one participant), `waiting` (committed, and
/// somebody has not confirmed), `aborted`, `unsure`. Alert `twopc-unsure`: `unsure` grows.
const TRANSACTIONS: &str = "tasuki_twopc_transactions_total";
/// How long commits took, which is how long locks were held beyond the work. No alert.
const COMMIT_SECONDS: &str = "tasuki_twopc_commit_seconds";
/// Prepared transactions that the log did not have open, by participant. No alert; many mean that
/// participants answer too late.
const ORPHANS: &str = "tasuki_twopc_orphans_total";
/// Branches that are prepared at this moment, by participant. No alert; explains the age.
const PREPARED: &str = "tasuki_twopc_prepared_rows";
/// Age of the oldest of them, by participant. Alert `twopc-prepared`: above 60 s. It holds locks and
/// keeps vacuum from working, in that server.
const PREPARED_AGE: &str = "tasuki_twopc_prepared_oldest_age_seconds";

pub(super) fn ended(
    schema: &Schema,
    is_short: bool,
    ended: &Result<Committed, Error>,
    took: Duration,
) {
    let outcome = match ended {
        Ok(_) if is_short => "alone",
        Ok(committed) if committed.waiting_for.is_empty() => "committed",
        Ok(_) => "waiting",
        Err(Error::Unsure { .. }) => "unsure",
        Err(_) => "aborted",
    };
    let schema = schema.to_string();
    metrics::counter!(TRANSACTIONS, "schema" => schema.clone(), "outcome" => outcome).increment(1);
    metrics::histogram!(COMMIT_SECONDS, "schema" => schema).record(took.as_secs_f64());
}

pub(super) fn orphan(schema: &Schema, participant: &str) {
    let (schema, participant) = (schema.to_string(), participant.to_owned());
    metrics::counter!(ORPHANS, "schema" => schema, "participant" => participant).increment(1);
}

#[expect(
    clippy::cast_precision_loss,
    reason = "a gauge is a float; there are at most thousands"
)]
pub(super) fn prepared(schema: &Schema, participant: &str, found: &[Found]) {
    let oldest = found.iter().map(|found| found.age).max();
    let oldest = oldest.unwrap_or_default().as_secs_f64();
    set(schema, participant, found.len() as f64, oldest);
}

/// Nobody knows: a gap in the graph, and above no threshold.
pub(super) fn unseen(schema: &Schema, participant: &str) {
    set(schema, participant, f64::NAN, f64::NAN);
}

fn set(schema: &Schema, participant: &str, rows: f64, oldest: f64) {
    for (metric, value) in [(PREPARED, rows), (PREPARED_AGE, oldest)] {
        let (schema, participant) = (schema.to_string(), participant.to_owned());
        metrics::gauge!(metric, "schema" => schema, "participant" => participant).set(value);
    }
}
