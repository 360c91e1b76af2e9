//! The log of the relay: what became visible and what no longer is, for whoever follows.

use tasuki::Schema;
use tasuki::seqlog::{Log, Table};

/// `cn_relay.events_outbox`.
const EVENTS_OUTBOX: Table = Table {
    name: "events_outbox",
    pending: "events_outbox_pending",
    columns: &[
        "op",
        "event_id",
        "topic_id",
        "kind",
        "created_at",
        "ingested_at",
        "effective_key",
        "reason",
        "logged_at",
    ],
    at: "logged_at",
    channel: "cn_relay_outbox",
};

pub(crate) fn log(schema: &Schema) -> Log {
    Log::of(schema, EVENTS_OUTBOX)
}
