//! What the broker says of messages that it gave up, kept where a person can see it.
//!
//! An advisory names stream, consumer and number, and nothing of the message itself; so its id is
//! looked up, and when the stream was created, because numbers come back when a stream is made
//! again. Advisories are read from a stream of their own and acknowledged after the commit: those
//! that arrive while the database is away are stored when it is back.

use std::sync::Arc;

use serde::Deserialize;
use sqlx::PgPool;
use tasuki::bus::{Delivery, Handler, NatsBus, Streams, Verdict};
use tasuki::worker::Error;

use crate::store;
use crate::store::broker::{self, Lost};

/// Messages that the broker gave up, by kind. Alert `broker-dlq`: above 0.
const LOST_TOTAL: &str = "tasuki_notification_lost_messages_total";

/// `io.nats.jetstream.advisory.v1.max_deliver` and `…terminated`, as far as it concerns us.
#[derive(Debug, Deserialize)]
struct Advisory {
    #[serde(rename = "type")]
    kind: String,
    stream: String,
    consumer: String,
    stream_seq: u64,
    deliveries: Option<u64>,
    reason: Option<String>,
}

/// Stores advisories.
#[derive(Clone, Debug)]
pub(crate) struct Advisories {
    pub(crate) pool: PgPool,
    pub(crate) bus: Arc<NatsBus>,
}

impl Advisories {
    async fn keep(&self, advisory: &Advisory) -> Result<(), Error> {
        let state = self.bus.stream(&advisory.stream).await?;
        // The stream is gone: nothing is left that could be sent again.
        let Some(state) = state else { return Ok(()) };
        let ids = self
            .bus
            .ids_at(&advisory.stream, &[advisory.stream_seq])
            .await?;
        let terminated = advisory.kind.ends_with("terminated");
        let lost = Lost {
            stream: &advisory.stream,
            stream_created_at: state.created_at,
            stream_seq: i64::try_from(advisory.stream_seq)?,
            consumer: &advisory.consumer,
            message_id: ids.first().copied().flatten(),
            kind: if terminated {
                "TERMINATED"
            } else {
                "MAX_DELIVERIES"
            },
            reason: advisory.reason.as_deref().map(plain),
            deliveries: advisory.deliveries.and_then(|it| i64::try_from(it).ok()),
        };
        let mut connection = self.pool.acquire().await?;
        broker::record(&mut connection, &lost).await?;
        metrics::counter!(LOST_TOTAL, "kind" => lost.kind.to_owned()).increment(1);
        tracing::error!(
            stream = lost.stream,
            sequence = lost.stream_seq,
            consumer = lost.consumer,
            kind = lost.kind,
            reason = lost.reason,
            "message set aside",
        );
        Ok(())
    }
}

impl Handler for Advisories {
    async fn handle(&self, batch: &[Delivery]) -> Result<Vec<Verdict>, Error> {
        let mut verdicts = Vec::with_capacity(batch.len());
        for delivery in batch {
            verdicts.push(match serde_json::from_slice(&delivery.payload) {
                Ok(advisory) => {
                    self.keep(&advisory).await?;
                    Verdict::Done
                }
                Err(error) => Verdict::Reject {
                    reason: format!("no advisory: {error}"),
                },
            });
        }
        Ok(verdicts)
    }

    async fn ready(&self) -> Result<(), Error> {
        let mut connection = self.pool.acquire().await?;
        Ok(store::ping(&mut connection).await?)
    }
}

/// A reason as PostgreSQL stores it.
fn plain(text: &str) -> String {
    text.chars().filter(|c| *c != '\0').take(1000).collect()
}
