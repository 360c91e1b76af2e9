//! Advisories get lost: a broker that is killed during the last delivery neither delivers the
//! message again nor says so. So the stream itself is compared with what was processed.
//!
//! Everything below the consumer's floor is settled: it must be in the inbox, or among the
//! messages that were set aside. What is in neither is set aside as `MISSED`. The floor of the
//! look before is used, so that an advisory has had the time of one interval to arrive. A message
//! is known by its id; where that is none, or says nothing, by the event that is in it.
//!
//! A stream that was rolled back gives its numbers again: when the last message that was compared
//! is not there any more, it is swept from its beginning. What left the stream before it was
//! settled can't be named any more, but it is counted, and told.

use std::collections::{HashMap, HashSet};
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use sqlx::{PgConnection, PgPool};
use tasuki::begin;
use tasuki::bus::{ConsumerSpec, NatsBus, StreamState, Streams, Subscriber, Subscription};
use tasuki::inbox::Inbox;
use tasuki::worker::{Error, Tick, Worker};
use time::OffsetDateTime;
use tokio::sync::Mutex;
use uuid::Uuid;

use crate::NAME;
use crate::events::Reader;
use crate::lost::set_aside;
use crate::store::broker::{self, Lost, Reading, Swept};

/// Messages that are compared in one go.
const PAGE: u64 = 5_000;
/// Messages that a sweep found in neither place. Alert `missed-messages`: above 0.
const MISSED_TOTAL: &str = "tasuki_notification_missed_messages_total";
/// Messages that left the stream before they were settled, by consumer. Alert `aged-out`: above 0.
const AGED_OUT_TOTAL: &str = "tasuki_notification_aged_out_messages_total";

/// Compares one stream with what was processed.
pub(crate) struct Sweep {
    pub(crate) name: String,
    pub(crate) spec: ConsumerSpec,
    pub(crate) bus: Arc<NatsBus>,
    pub(crate) pool: PgPool,
    pub(crate) inbox: Inbox,
    pub(crate) read: Reader,
    pub(crate) every: Duration,
    /// The floor that the look before found, and on which stream.
    pub(crate) before: Mutex<Option<(OffsetDateTime, u64)>>,
}

/// A message that may have been missed.
struct Suspect {
    sequence: u64,
    id: Option<Uuid>,
    /// The event in it, if it can be read.
    event: Option<Uuid>,
    reason: String,
}

impl Sweep {
    fn count_missed(&self, messages: u64) {
        let consumer = self.spec.durable.to_string();
        metrics::counter!(MISSED_TOTAL, "consumer" => consumer).increment(messages);
    }

    fn reading(&self, stream: &StreamState) -> Reading<'_> {
        Reading {
            stream: &self.spec.stream.name,
            stream_created_at: stream.created_at,
            consumer: &self.spec.durable,
        }
    }

    /// Up to which number the stream was swept; nothing if it is not what it was then, and begins
    /// anew.
    async fn swept(&self, stream: &StreamState, settled: u64) -> Result<Option<u64>, Error> {
        let of = self.reading(stream);
        let mut connection = self.pool.acquire().await?;
        let swept = broker::swept(&mut connection, &of).await?;
        drop(connection);
        let is_lost = match &swept {
            Some(swept) => self.is_lost(stream, swept).await?,
            None => false,
        };
        // What has left the stream can't be settled any more.
        let reached = settled.max(stream.first_sequence.saturating_sub(1));
        let reached = i64::try_from(reached)?;
        let mut tx = begin(&self.pool).await?;
        let place = match swept {
            Some(swept) if !is_lost => {
                if swept.settled_seq != Some(reached)
                    && broker::remember_settled(&mut tx, &of, swept.settled_seq, reached).await?
                {
                    // Before the commit: told twice at worst.
                    self.tell_gone(swept.settled_seq, stream.first_sequence);
                }
                Some(u64::try_from(swept.swept_seq)?)
            }
            Some(_) => {
                let (stream, consumer) = (of.stream, of.consumer);
                tracing::warn!(
                    stream,
                    consumer,
                    "the stream has lost messages that were swept, sweeping it from its beginning"
                );
                broker::begin_sweep(&mut tx, &of, reached).await?;
                None
            }
            None => {
                broker::begin_sweep(&mut tx, &of, reached).await?;
                Some(0)
            }
        };
        tx.commit().await?;
        Ok(place)
    }

    /// Whether the stream ends before the place that was swept, or has another message there.
    async fn is_lost(&self, stream: &StreamState, swept: &Swept) -> Result<bool, Error> {
        if stream.last_sequence < u64::try_from(swept.swept_seq)? {
            return Ok(true);
        }
        let (Some(sequence), Some(id)) = (swept.known_seq, swept.known_id) else {
            return Ok(false);
        };
        let sequence = u64::try_from(sequence)?;
        let found = self.bus.ids_at(&stream.name, &[sequence]).await?;
        // None: too old, or deleted.
        let found = found.first().copied().flatten();
        Ok(found.is_some_and(|found| found != id))
    }

    /// Says that messages left the stream that were not settled when they were last looked at.
    fn tell_gone(&self, settled: Option<i64>, first: u64) {
        let Some(gone) = gone(settled, first) else {
            return;
        };
        let consumer = self.spec.durable.to_string();
        let messages = gone.end() - gone.start() + 1;
        metrics::counter!(AGED_OUT_TOTAL, "consumer" => consumer).increment(messages);
        tracing::error!(
            stream = &*self.spec.stream.name,
            consumer = &*self.spec.durable,
            from = gone.start(),
            to = gone.end(),
            messages,
            "messages left the stream before they were settled",
        );
    }

    /// Compares the messages in `range`, and remembers that it did; `false` if it was for nothing,
    /// because somebody else has changed how far the stream is `swept`.
    async fn compare(
        &self,
        stream: &StreamState,
        swept: u64,
        range: RangeInclusive<u64>,
    ) -> Result<bool, Error> {
        let of = self.reading(stream);
        let (from, to) = (*range.start(), *range.end());
        let held = self.bus.ids_between(of.stream, from, to).await?;
        let unknown = self.unknown(&of, range, &held).await?;
        let suspects = self.look_at(of.stream, &unknown).await?;
        let known = match held.last() {
            Some((sequence, id)) => Some((i64::try_from(*sequence)?, *id)),
            None => None,
        };
        let mut tx = begin(&self.pool).await?;
        let (before, now) = (i64::try_from(swept)?, i64::try_from(to)?);
        if !broker::remember_sweep(&mut tx, &of, before, now, known).await? {
            return Ok(false);
        }
        let events: Vec<Uuid> = suspects.iter().filter_map(|it| it.event).collect();
        let seen = self.inbox.seen(&mut tx, NAME, &events).await?;
        for suspect in &suspects {
            if suspect.event.is_none_or(|event| !seen.contains(&event)) {
                self.miss(&mut tx, &of, suspect).await?;
            }
        }
        tx.commit().await?;
        Ok(true)
    }

    /// The numbers whose messages are neither processed by their id nor set aside.
    async fn unknown(
        &self,
        of: &Reading<'_>,
        range: RangeInclusive<u64>,
        held: &[(u64, Uuid)],
    ) -> Result<Vec<u64>, Error> {
        let ids: Vec<Uuid> = held.iter().map(|(_, id)| *id).collect();
        let held: HashMap<u64, Uuid> = held.iter().copied().collect();
        let mut connection = self.pool.acquire().await?;
        let seen = self.inbox.seen(&mut connection, NAME, &ids).await?;
        let is_seen = |sequence: &u64| held.get(sequence).is_some_and(|id| seen.contains(id));
        let unseen: Vec<u64> = range.filter(|sequence| !is_seen(sequence)).collect();
        let numbers = unseen.iter().map(|it| i64::try_from(*it));
        let numbers = numbers.collect::<Result<Vec<_>, _>>()?;
        let aside =
            broker::recorded(&mut connection, of.stream, of.stream_created_at, &numbers).await?;
        // By number and id: after a roll-back the number is another message's.
        let aside: HashSet<(u64, Option<Uuid>)> = aside
            .into_iter()
            .map(|(sequence, id)| (sequence.unsigned_abs(), id))
            .collect();
        let is_aside = |it: &u64| aside.contains(&(*it, held.get(it).copied()));
        Ok(unseen.into_iter().filter(|it| !is_aside(it)).collect())
    }

    /// The messages at these numbers, as far as the stream has them.
    async fn look_at(&self, stream: &str, numbers: &[u64]) -> Result<Vec<Suspect>, Error> {
        let mut suspects = Vec::new();
        for &sequence in numbers {
            let Some(message) = self.bus.message_at(stream, sequence).await? else {
                continue;
            };
            let (event, reason) = match (self.read)(&message.payload, None) {
                Ok(event) => (
                    Some(event.event_id),
                    "settled by the broker, and never processed".to_owned(),
                ),
                Err(poison) => (
                    None,
                    format!("settled by the broker, and neither processed nor refused: {poison}"),
                ),
            };
            suspects.push(Suspect {
                sequence,
                id: message.id,
                event,
                reason,
            });
        }
        Ok(suspects)
    }

    async fn miss(
        &self,
        tx: &mut PgConnection,
        of: &Reading<'_>,
        suspect: &Suspect,
    ) -> Result<(), Error> {
        let lost = Lost {
            stream: of.stream,
            stream_created_at: of.stream_created_at,
            stream_seq: i64::try_from(suspect.sequence)?,
            consumer: of.consumer,
            message_id: suspect.id,
            kind: "MISSED",
            reason: Some(suspect.reason.clone()),
            deliveries: None,
        };
        if !set_aside(tx, &lost).await? {
            return Ok(());
        }
        self.count_missed(1);
        tracing::error!(
            stream = of.stream,
            sequence = suspect.sequence,
            message.id = suspect.id.map(display),
            "message was missed, set aside",
        );
        Ok(())
    }
}

/// The numbers above `settled` that a stream whose first number is `first` has no longer.
fn gone(settled: Option<i64>, first: u64) -> Option<RangeInclusive<u64>> {
    let from = u64::try_from(settled?).ok()? + 1;
    let gone = from..=first.checked_sub(1)?;
    (!gone.is_empty()).then_some(gone)
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
        let stream = subscription.opened_on();
        let settled = subscription.progress().await?.settled;
        // There from the beginning: an increase from nothing is no increase to whoever watches.
        self.count_missed(0);
        let mut before = self.before.lock().await;
        let Some(swept) = self.swept(stream, settled).await? else {
            // The consumer has yet to find out, too: the floor is that of what was lost.
            *before = None;
            return Ok(Tick::Idle);
        };
        // A floor of before that is above the stream's end is that of what was lost: the numbers
        // below it are given again, and what gets them was not delivered yet.
        let ripe = before
            .filter(|(of, floor)| *of == stream.created_at && *floor <= stream.last_sequence)
            .map_or(0, |(_, floor)| floor.min(settled));
        *before = Some((stream.created_at, settled));
        // What is too old is gone.
        let from = (swept + 1).max(stream.first_sequence);
        let to = ripe.min(from + PAGE - 1);
        if from > to {
            return Ok(Tick::Idle);
        }
        if !self.compare(stream, swept, from..=to).await? {
            // Perhaps it begins again, and the floor is that of what was lost.
            *before = None;
            return Ok(Tick::Idle);
        }
        // At the end there is nothing more until the next look.
        if to == ripe {
            return Ok(Tick::Idle);
        }
        *before = Some((stream.created_at, ripe));
        Ok(Tick::Worked)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_left_the_stream_above_what_was_settled_is_gone() {
        for (settled, first, expected) in [
            (Some(4), 8, Some(5..=7)),
            (Some(0), 2, Some(1..=1)),
            (Some(7), 8, None),
            (Some(9), 8, None),
            // A stream without messages, and one that nobody has looked at before.
            (Some(0), 0, None),
            (None, 8, None),
        ] {
            assert_eq!(gone(settled, first), expected, "{settled:?} {first}");
        }
    }
}
