//! The description of a table whose rows are claimed.
//!
//! The columns `status`, `attempt_count`, `next_retry_at`, `locked_by`, `locked_at`,
//! `lease_until`, `claim_token`, `last_error` and `traceparent` have the same names everywhere. The waiting
//! state is `PENDING`, the dead one `FAILED`, with `next_retry_at` at `infinity`; what the
//! claimed state is called, the table says.

/// Where rows with a lease are, and how they are picked.
#[derive(Clone, Copy, Debug)]
pub struct Table {
    /// The table, without its schema. Also the `source` of its dead letters.
    pub name: &'static str,
    /// The primary key, a `uuid`.
    pub key: &'static str,
    /// The claimed state: `IN_FLIGHT`, `PROCESSING`.
    pub claimed: &'static str,
    /// What a claim hands to the worker, as a select list over the alias `t`.
    pub columns: &'static str,
    /// A query that yields the `ctid` of up to `$1` rows, locked with `FOR UPDATE SKIP LOCKED`.
    /// It says `{table}` for the table and `{claimable}` for the condition that a row (alias
    /// `t`) may be claimed; parameters of its own begin at `$5`.
    pub pick: &'static str,
    /// Common table expressions that `pick` draws on, for picks that tell how far they have
    /// come; the last one is `place (place)`, one row with the text that
    /// [`Leases::claim_from`](super::Leases::claim_from) answers. Empty: there is none.
    pub with: &'static str,
    /// What a dead letter shows of a row.
    pub letter: Letter,
    /// A column that counts the claims of a row that expired since its work last ended, in
    /// whatever way: for tables whose work may take the process down with it. A lost claim is
    /// not a failed attempt: the work may not even have begun.
    pub lost: Option<&'static str>,
}

/// What a dead letter shows of a row, as expressions over its columns.
#[derive(Clone, Copy, Debug)]
pub struct Letter {
    /// The queue, or where the row was to go.
    pub queue: &'static str,
    /// The kind of job, or the type of event.
    pub kind: &'static str,
    /// The payload as `bytea`.
    pub payload: &'static str,
}

impl Table {
    /// The condition that a row, alias `t`, may be claimed now.
    pub(crate) fn claimable(&self) -> String {
        format!(
            "t.next_retry_at <= now() AND (t.status = 'PENDING' OR (t.status = '{claimed}' AND \
             (t.lease_until IS NULL OR t.lease_until <= now())))",
            claimed = self.claimed
        )
    }
}
