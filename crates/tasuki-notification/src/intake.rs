//! From a message to notifications, once.
//!
//! One transaction for a whole batch: the ids of its events into the inbox, the notifications of
//! the new ones beside them. Only after the commit is anything acknowledged. A batch that fails is
//! taken apart, so that one bad message can't hold up the others; unless the database is away or
//! takes nothing, which is nobody's fault. Then no other message is asked for until the events that
//! failed go in: a database that merely answers may be a standby, or have a full disk.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sqlx::{PgConnection, PgPool};
use tasuki::Clock;
use tasuki::bus::{Delivery, Handler, Verdict};
use tasuki::inbox::{self, Arrival, Inbox};
use tasuki::testing::crash_point;
use tasuki::worker::{Bell, Error};
use tasuki_contract::ids::NotificationId;
use tasuki_service::database::{self, Held};

use crate::NAME;
use crate::domain::{Channel, Incoming, Wishes};
use crate::events::{Poison, Reader};
use crate::store::{self, New};

/// Messages that can't be read, by consumer. Alert `poison`: above 0.
const POISON_TOTAL: &str = "tasuki_notification_poison_total";

/// Why events were not taken in.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failed {
    #[error("no transaction could be begun")]
    Begin(#[source] sqlx::Error),
    #[error("the inbox could not be written")]
    Inbox(#[from] inbox::Error),
    #[error("notifications could not be written")]
    Store(#[from] sqlx::Error),
}

impl Failed {
    fn is_away(&self) -> bool {
        match self {
            // Nothing was said of any event yet. A standby refuses already here.
            Self::Begin(_) => true,
            Self::Inbox(inbox::Error::Store(error)) | Self::Store(error) => {
                database::is_away(error)
            }
            Self::Inbox(_) => false,
        }
    }
}

/// Takes in the events of one subject.
#[derive(Clone, Debug)]
pub(crate) struct Intake {
    pub(crate) consumer: String,
    pub(crate) read: Reader,
    pub(crate) pool: PgPool,
    pub(crate) inbox: Inbox,
    pub(crate) default_channels: Vec<Channel>,
    pub(crate) clock: Clock,
    /// Rung when there is something to deliver.
    pub(crate) bell: Bell,
    /// The events of a batch that did not go in because the database was away, until something
    /// does. All of them: one that was here before would go in without a write.
    pub(crate) stuck: Arc<Mutex<Vec<Incoming>>>,
}

impl Intake {
    /// What a message means here.
    pub(crate) fn parse(&self, payload: &[u8], trace: Option<&str>) -> Result<Incoming, Poison> {
        (self.read)(payload, trace)
    }

    /// Takes in events in one transaction of its own.
    async fn take_all(&self, events: &[&Incoming]) -> Result<(), Failed> {
        // If it was committed all the same, the inbox says so when the events come again.
        let taken = database::in_time(self.commit(events)).await;
        let is_away = taken.as_ref().is_err_and(Failed::is_away);
        let stuck = events.iter().filter(|_| is_away);
        *self.stuck() = stuck.map(|event| (*event).clone()).collect();
        taken
    }

    fn stuck(&self) -> MutexGuard<'_, Vec<Incoming>> {
        self.stuck.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn commit(&self, events: &[&Incoming]) -> Result<(), Failed> {
        let mut held = Held::of(&self.pool).await.map_err(Failed::Begin)?;
        let mut tx = held.begin().await.map_err(Failed::Begin)?;
        self.take(&mut tx, events).await?;
        crash_point("notification.before_commit");
        tx.commit().await?;
        held.give_back();
        crash_point("notification.committed");
        self.bell.ring();
        Ok(())
    }

    /// Takes in events in the caller's transaction: those that were here before have no effect.
    pub(crate) async fn take(
        &self,
        tx: &mut PgConnection,
        events: &[&Incoming],
    ) -> Result<(), Failed> {
        let mut users: Vec<_> = events.iter().flat_map(|it| &it.recipients).collect();
        users.sort_unstable();
        users.dedup();
        let users: Vec<String> = users.into_iter().cloned().collect();
        let wishes = match users.is_empty() {
            true => Wishes::default(),
            false => store::wishes(tx, &users, &self.default_channels).await?,
        };
        let owed: Vec<_> = events.iter().map(|it| self.owed(it, &wishes)).collect();
        // How many there are is kept beside the event: whoever finds fewer knows that one is lost.
        let recorded = events.iter().zip(&owed).map(|(it, owed)| {
            let event = inbox::Event::new(it.event_id).effects(owed.len());
            match &it.traceparent {
                Some(trace) => event.traceparent(trace),
                None => event,
            }
        });
        let recorded: Vec<_> = recorded.collect();
        let arrivals = self.inbox.record_all(tx, NAME, &recorded).await?;
        let new = owed.into_iter().zip(arrivals);
        let new = new.filter(|(_, arrival)| *arrival == Arrival::New);
        let rows: Vec<_> = new.flat_map(|(owed, _)| owed).collect();
        if !rows.is_empty() {
            store::insert(tx, &rows).await?;
        }
        Ok(())
    }

    /// The notifications that an event makes.
    fn owed<'a>(&self, event: &'a Incoming, wishes: &Wishes) -> Vec<New<'a>> {
        let mut owed = Vec::new();
        for user in &event.recipients {
            let told = wishes.of(user, event.kind, &self.default_channels);
            owed.extend(told.into_iter().map(|(channel, endpoint)| New {
                id: NotificationId::new(&self.clock).as_uuid(),
                event_id: event.event_id,
                user,
                kind: event.kind,
                channel,
                endpoint,
                aggregate_key: &event.aggregate_key,
                version: event.version,
                occurred_at: event.occurred_at,
                payload: &event.payload,
                traceparent: event.traceparent.as_deref(),
            }));
        }
        owed
    }

    /// What is to become of an event that was taken in alone.
    async fn take_one(&self, event: &Incoming) -> Result<Verdict, Failed> {
        match self.take_all(&[event]).await {
            Ok(()) => Ok(Verdict::Done),
            // Not this event's fault, and the others would only wait for it in turn.
            Err(error) if error.is_away() => Err(error),
            Err(error) => {
                tracing::warn!(
                    event.id = %event.event_id,
                    event.kind = event.kind,
                    error = &error as &(dyn std::error::Error + 'static),
                    "event could not be taken in, it will come again",
                );
                Ok(Verdict::Retry { after: None })
            }
        }
    }

    fn refuse(&self, poison: &Poison) -> Verdict {
        let consumer = self.consumer.clone();
        metrics::counter!(POISON_TOTAL, "consumer" => consumer).increment(1);
        Verdict::Reject {
            reason: poison.to_string(),
        }
    }
}

impl Handler for Intake {
    async fn handle(&self, batch: &[Delivery]) -> Result<Vec<Verdict>, Error> {
        let read = batch
            .iter()
            .map(|it| self.parse(&it.payload, it.traceparent()));
        let read: Vec<_> = read.collect();
        let good: Vec<_> = read.iter().filter_map(|it| it.as_ref().ok()).collect();
        let together = match self.take_all(&good).await {
            Ok(()) => true,
            Err(error) if error.is_away() => return Err(error.into()),
            Err(error) => {
                tracing::warn!(
                    consumer = self.consumer,
                    events = good.len(),
                    error = &error as &(dyn std::error::Error + 'static),
                    "batch failed, its events are taken in one by one",
                );
                false
            }
        };
        let mut verdicts = Vec::with_capacity(batch.len());
        for read in &read {
            verdicts.push(match read {
                Err(poison) => self.refuse(poison),
                Ok(_) if together => Verdict::Done,
                Ok(event) => self.take_one(event).await?,
            });
        }
        Ok(verdicts)
    }

    async fn ready(&self) -> Result<(), Error> {
        let stuck = self.stuck().clone();
        if stuck.is_empty() {
            let pinged = async {
                let mut held = Held::of(&self.pool).await?;
                store::ping(held.connection()).await?;
                held.give_back();
                Ok::<_, sqlx::Error>(())
            };
            return Ok(database::in_time(pinged).await?);
        }
        let events: Vec<_> = stuck.iter().collect();
        match self.take_all(&events).await {
            Err(error) if error.is_away() => Err(error.into()),
            // Their messages come again, and the inbox knows them; also a refusal is an answer.
            Ok(()) | Err(_) => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fails_before_any_event_is_named_is_not_the_fault_of_one() {
        // A standby answers every ping, and says at the beginning of a transaction that it takes
        // nothing: with the code of a feature that is not supported.
        let refused = || sqlx::Error::Protocol("cannot set transaction read-write mode".to_owned());
        assert!(Failed::Begin(refused()).is_away());
        assert!(!Failed::Store(refused()).is_away());
    }
}
