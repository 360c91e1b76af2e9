//! Advisories get lost: a broker that is killed during the last delivery neither delivers the
//! message again nor says so. So the stream itself is compared with what was processed.
//!
//! Everything below the consumer's floor is settled: it must be in the inbox, or among the
//! messages that were set aside. What is in neither is set aside as `MISSED`. The floor of the
//! look before is used, so that an advisory has had the time of one interval to arrive.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use sqlx::PgPool;
use tasuki::begin;
use tasuki::bus::{ConsumerSpec, NatsBus, Streams, Subscriber, Subscription};
use tasuki::inbox::Inbox;
use tasuki::worker::{Error, Tick, Worker};
use time::OffsetDateTime;
use tokio::sync::Mutex;
use uuid::Uuid;

use crate::NAME;
use crate::store::broker::{self, Lost};

/// Messages that are compared in one go.
const PAGE: u64 = 5_000;
/// Messages that a sweep found in neither place. Alert `missed-messages`: above 0.
const MISSED_TOTAL: &str = "tasuki_notification_missed_messages_total";

/// Compares one stream with what was processed.
pub(crate) struct Sweep {
    pub(crate) name: String,
    pub(crate) spec: ConsumerSpec,
    pub(crate) bus: Arc<NatsBus>,
    pub(crate) pool: PgPool,
    pub(crate) inbox: Inbox,
    pub(crate) every: Duration,
    /// The floor that the look before found, and on which stream.
    pub(crate) before: Mutex<Option<(OffsetDateTime, u64)>>,
}

impl Sweep {
    /// Compares the messages in `from..=to`, and remembers that it did.
    async fn compare(&self, created_at: OffsetDateTime, from: u64, to: u64) -> Result<(), Error> {
        let (stream, consumer) = (&*self.spec.stream.name, &*self.spec.durable);
        let held = self.bus.ids_between(stream, from, to).await?;
        let ids: Vec<Uuid> = held.iter().map(|(_, id)| *id).collect();
        let mut tx = begin(&self.pool).await?;
        let seen = self.inbox.seen(&mut tx, NAME, &ids).await?;
        let unseen: Vec<_> = held
            .into_iter()
            .filter(|(_, id)| !seen.contains(id))
            .collect();
        let numbers: Vec<i64> = unseen
            .iter()
            .filter_map(|it| i64::try_from(it.0).ok())
            .collect();
        let known = broker::recorded(&mut tx, stream, created_at, &numbers).await?;
        let known: HashSet<i64> = known.into_iter().collect();
        for (sequence, id) in unseen {
            let sequence = i64::try_from(sequence)?;
            if known.contains(&sequence) {
                continue;
            }
            let lost = Lost {
                stream,
                stream_created_at: created_at,
                stream_seq: sequence,
                consumer,
                message_id: Some(id),
                kind: "MISSED",
                reason: Some("settled by the broker, and never processed".to_owned()),
                deliveries: None,
            };
            broker::record(&mut tx, &lost).await?;
            metrics::counter!(MISSED_TOTAL, "consumer" => consumer.to_owned()).increment(1);
            tracing::error!(stream, sequence, message.id = %id, "message was missed, set aside");
        }
        broker::remember_sweep(&mut tx, stream, consumer, created_at, i64::try_from(to)?).await?;
        tx.commit().await?;
        Ok(())
    }
}

impl Worker for Sweep {
    fn name(&self) -> &str {
        &self.name
    }

    fn poll_interval(&self) -> Duration {
        self.every
    }

    async fn tick(&self) -> Result<Tick, Error> {
        let subscription = self.bus.subscribe(&self.spec).await?;
        let created_at = subscription.opened_on().created_at;
        let settled = subscription.progress().await?.settled;
        let mut before = self.before.lock().await;
        let ripe = before
            .filter(|(of, _)| *of == created_at)
            .map_or(0, |(_, floor)| floor);
        *before = Some((created_at, settled));
        let mut connection = self.pool.acquire().await?;
        let (stream, consumer) = (&*self.spec.stream.name, &*self.spec.durable);
        let swept = broker::swept(&mut connection, stream, consumer).await?;
        drop(connection);
        let swept = swept.filter(|(of, _)| *of == created_at);
        let swept = swept.map_or(0, |(_, sequence)| u64::try_from(sequence).unwrap_or(0));
        // What is too old is gone.
        let from = (swept + 1).max(subscription.opened_on().first_sequence);
        let to = ripe.min(from + PAGE - 1);
        if from > to {
            return Ok(Tick::Idle);
        }
        self.compare(created_at, from, to).await?;
        // At the end there is nothing more until the next look.
        if to == ripe {
            return Ok(Tick::Idle);
        }
        *before = Some((created_at, ripe));
        Ok(Tick::Worked)
    }
}
