//! What the bus counts. Every label comes from a closed set or from the configuration.

use super::{Position, PublishError};

/// Messages by what became of them (`stored`, `duplicate`, `unreachable`, `refused`, `invalid`,
/// `held`).
pub(super) const MESSAGES_TOTAL: &str = "tasuki_bus_messages_total";
/// How many messages went to the broker together, by how (`atomic`, `pipelined`).
#[cfg(feature = "nats")]
pub(super) const BATCH_MESSAGES: &str = "tasuki_bus_batch_messages";
/// Batches that the broker would not take as one and that were pipelined instead, by reason
/// (`duplicate`, `unsupported`, `rejected`). Many duplicates mean that acknowledgements get
/// lost.
#[cfg(feature = "nats")]
pub(super) const FALLBACKS_TOTAL: &str = "tasuki_bus_batch_fallbacks_total";
/// Deliveries by consumer and outcome (`done`, `retried`, `rejected`).
pub(super) const DELIVERIES_TOTAL: &str = "tasuki_consumer_deliveries_total";
/// Settlements that the broker did not confirm, by consumer: those messages come again.
pub(super) const UNSETTLED_TOTAL: &str = "tasuki_consumer_unsettled_total";
/// Messages that a consumer has not been given yet, by consumer.
pub(super) const PENDING_MESSAGES: &str = "tasuki_consumer_pending_messages";
/// How often a consumer started its stream over because the stream had lost messages or was
/// another one, by consumer.
pub(super) const RESTARTS_TOTAL: &str = "tasuki_consumer_restarts_total";

const OUTCOMES: [&str; 6] = [
    "stored",
    "duplicate",
    "unreachable",
    "refused",
    "invalid",
    "held",
];

/// Counts what became of a batch.
pub(super) fn count_results(results: &[Result<Position, PublishError>]) {
    for outcome in OUTCOMES {
        let same = results.iter().filter(|result| name(result) == outcome);
        match u64::try_from(same.count()) {
            Ok(0) | Err(_) => {}
            Ok(count) => metrics::counter!(MESSAGES_TOTAL, "outcome" => outcome).increment(count),
        }
    }
}

fn name(result: &Result<Position, PublishError>) -> &'static str {
    match result {
        Ok(position) if position.duplicate => "duplicate",
        Ok(_) => "stored",
        Err(PublishError::Unreachable(_)) => "unreachable",
        Err(PublishError::Refused(_)) => "refused",
        Err(PublishError::Invalid(_)) => "invalid",
        Err(PublishError::Held) => "held",
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use time::OffsetDateTime;

    use super::*;

    #[test]
    fn every_outcome_is_counted() {
        let stored = |duplicate| Position {
            stream: Arc::from("orders"),
            stream_created_at: OffsetDateTime::UNIX_EPOCH,
            sequence: 1,
            duplicate,
        };
        for result in [
            Ok(stored(false)),
            Ok(stored(true)),
            Err(PublishError::unreachable("x")),
            Err(PublishError::refused("x")),
            Err(PublishError::invalid("x")),
            Err(PublishError::Held),
        ] {
            assert!(OUTCOMES.contains(&name(&result)), "{result:?}");
        }
    }
}
