//! The description of a log: where rows wait for their number, and where they have one.

/// A log of your own: its tables, and what they hold beside the number.
///
/// Both tables are in the schema of the library's own. The log is partitioned by a time, so that
/// [`upkeep`](crate::upkeep) can drop what is old ([`Log::retention`](super::Log::retention)):
///
/// ```sql
/// CREATE TABLE app.orders_log_pending (
///     append_tx bigint NOT NULL DEFAULT pg_current_xact_id()::text::bigint,
///     append_id bigint GENERATED ALWAYS AS IDENTITY,
///     appended_at timestamptz NOT NULL DEFAULT now(),
///     -- your columns, here and in the log
///     order_id uuid NOT NULL,
///     change text NOT NULL,
///     PRIMARY KEY (append_tx, append_id)
/// );
/// CREATE TABLE app.orders_log (
///     seq bigint NOT NULL,
///     order_id uuid NOT NULL,
///     change text NOT NULL,
///     -- when it got its number
///     numbered_at timestamptz NOT NULL
/// ) PARTITION BY RANGE (numbered_at);
/// CREATE INDEX orders_log_seq_idx ON app.orders_log (seq);
/// CREATE TABLE app.orders_log_default PARTITION OF app.orders_log DEFAULT;
/// CREATE INDEX orders_log_default_numbered_at_idx ON app.orders_log_default (numbered_at);
/// ```
///
/// To append is to insert into the first of them, in your transaction, without naming the three
/// columns at its head: one row, or many in one statement.
#[derive(Clone, Copy, Debug)]
pub struct Table {
    /// The log, without its schema; at most 40 characters. Also what the log is called.
    pub name: &'static str,
    /// Where rows wait for their number.
    pub pending: &'static str,
    /// Your columns, which both have: `order_id, change`. One that is also [`at`](Self::at) is read, and
    /// what `pending` has in it is not.
    pub columns: &'static [&'static str],
    /// The `timestamptz` of the log that says how old a row is; it is partitioned by it. The sequencer sets
    /// it, because a row is as old as its number: by the time of its writer, one whose transaction was
    /// open for long could be removed before those with lower numbers.
    pub at: &'static str,
    /// Where the highest number is told after each batch. `{schema}` stands for the schema: channels
    /// belong to the whole database.
    pub channel: &'static str,
}

/// The library's own log.
pub(super) const ENTRIES: Table = Table {
    name: "seqlog_entries",
    pending: "seqlog_pending",
    columns: &["kind", "key", "payload", "traceparent", "appended_at"],
    at: "numbered_at",
    channel: "{schema}_seqlog",
};

impl Table {
    /// The columns, each behind an alias.
    pub(super) fn columns_of(&self, alias: &str) -> String {
        behind(alias, self.columns)
    }

    /// Those among them that come from where rows wait, each behind an alias.
    pub(super) fn written_of(&self, alias: &str) -> String {
        behind(
            alias,
            self.columns.iter().filter(|column| **column != self.at),
        )
    }
}

fn behind<'a>(alias: &str, columns: impl IntoIterator<Item = &'a &'a str>) -> String {
    let columns = columns.into_iter();
    let columns: Vec<_> = columns.map(|column| format!("{alias}{column}")).collect();
    columns.join(", ")
}
