//! Inbox: an event that arrives twice has one effect.
//!
//! A broker delivers at least once. [`Inbox::record`] writes the event's id in the
//! transaction of the effect and says whether it is new; both commit, or neither does. A
//! twin that arrives at the same moment waits until the first transaction ends: it is a
//! duplicate if that committed, and new if that rolled back.
//!
//! ```no_run
//! # use tasuki::inbox::{self, Inbox};
//! # async fn effect(_: &mut sqlx::PgConnection) -> Result<(), inbox::Error> { Ok(()) }
//! # async fn example(pool: sqlx::PgPool, inbox: Inbox, id: uuid::Uuid) -> Result<(), inbox::Error> {
//! inbox.once(&pool, "billing", id, async |tx| effect(tx).await).await?;
//! // Acknowledge the message only now.
//! # Ok(()) }
//! ```
//!
//! Every consumer has its own view: an id that `billing` has seen is new to `search`.
//!
//! Transactions must be `READ COMMITTED`, PostgreSQL's default: under a stricter level a twin
//! is told by a serialization failure instead. A duplicate is recognised for as long as its
//! row is kept (see [`upkeep`](crate::upkeep)).

mod store;

use std::collections::HashSet;
use std::sync::Arc;

use sqlx::{PgConnection, PgPool};
use tracing::Instrument;
use uuid::Uuid;

use crate::Schema;
use crate::testing::crash_point;
use crate::transaction;

/// Events by consumer and arrival (`new`, `duplicate`), counted when they are looked at; a
/// transaction that rolls back afterwards is counted again by its retry.
const EVENTS_TOTAL: &str = "tasuki_inbox_events_total";

/// The longest name of a consumer, in characters.
const MAX_CONSUMER: usize = 128;
/// The longest trace context that is kept; today's have 55 characters, later versions may
/// have more.
const MAX_TRACEPARENT: usize = 256;

/// Knows which events each consumer has had. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Inbox {
    statements: Arc<store::Statements>,
}

/// Whether an event has been here before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Arrival {
    /// The first time: have the effect, in the same transaction.
    New,
    /// It had its effect. Acknowledge it and do nothing else.
    Duplicate,
}

/// An event as it is recorded: its id and, where known, the trace it belongs to and how much is
/// made of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event<'a> {
    id: Uuid,
    traceparent: Option<&'a str>,
    effects: Option<i32>,
}

/// Why an event could not be recorded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The name of the consumer can't be stored.
    #[error(
        "a consumer is named by 1 to {MAX_CONSUMER} characters, none of them a control character"
    )]
    InvalidConsumer,
    /// The database refused, or can't be reached.
    #[error("inbox store failed")]
    Store(#[from] sqlx::Error),
}

impl Inbox {
    /// The inbox in `schema`.
    #[must_use]
    pub fn new(schema: &Schema) -> Self {
        Self {
            statements: Arc::new(store::Statements::new(schema)),
        }
    }

    /// Records that `consumer` has had `event`, and says whether it is new. Commit it with
    /// the effect.
    ///
    /// # Errors
    /// When the name is invalid or the database fails.
    pub async fn record<'a>(
        &self,
        tx: &mut PgConnection,
        consumer: &str,
        event: impl Into<Event<'a>>,
    ) -> Result<Arrival, Error> {
        check(consumer)?;
        let is_new = store::record(tx, &self.statements, consumer, event.into()).await?;
        let arrival = if is_new {
            Arrival::New
        } else {
            Arrival::Duplicate
        };
        count(consumer, &[arrival]);
        Ok(arrival)
    }

    /// As [`record`](Self::record), for many events in one statement: one answer per event,
    /// in their order. Of an event that is in the batch twice, the first is new.
    ///
    /// Two batches that overlap never deadlock on it: both take the ids in the same order.
    ///
    /// # Errors
    /// When the name is invalid or the database fails.
    pub async fn record_all<'a, E>(
        &self,
        tx: &mut PgConnection,
        consumer: &str,
        events: &[E],
    ) -> Result<Vec<Arrival>, Error>
    where
        E: Copy + Into<Event<'a>>,
    {
        check(consumer)?;
        let events: Vec<Event<'a>> = events.iter().copied().map(Into::into).collect();
        let mut sorted = events.clone();
        sorted.sort_by_key(|event| event.id);
        sorted.dedup_by_key(|event| event.id);
        let mut new = store::record_all(tx, &self.statements, consumer, &sorted).await?;
        let arrivals = arrivals(&events, |id| new.remove(&id));
        count(consumer, &arrivals);
        Ok(arrivals)
    }

    /// Says which events `consumer` has had, without recording anything. Only a hint: another
    /// transaction may be recording one at this moment.
    ///
    /// # Errors
    /// When the name is invalid or the database fails.
    pub async fn seen(
        &self,
        connection: &mut PgConnection,
        consumer: &str,
        ids: &[Uuid],
    ) -> Result<HashSet<Uuid>, Error> {
        check(consumer)?;
        Ok(store::seen(connection, &self.statements, consumer, ids).await?)
    }

    /// Does `work` in the transaction that records `event`, and commits both: the boundary
    /// between a subscription and a command. Returns nothing for a duplicate. An error of the
    /// work rolls back, so that the event is new when it is delivered again.
    ///
    /// # Errors
    /// Those of the work, and [`Error`]. After one of the database the event may have had its
    /// effect: delivered again, it is a duplicate then.
    pub async fn once<'a, T, E, W>(
        &self,
        pool: &PgPool,
        consumer: &str,
        event: impl Into<Event<'a>>,
        work: W,
    ) -> Result<Option<T>, E>
    where
        E: From<Error>,
        W: AsyncFnOnce(&mut PgConnection) -> Result<T, E>,
    {
        check(consumer)?;
        let mut tx = transaction::begin(pool).await.map_err(Error::Store)?;
        if self.record(&mut tx, consumer, event).await? == Arrival::Duplicate {
            transaction::roll_back(tx).await;
            return Ok(None);
        }
        let span = tracing::info_span!("inbox", consumer);
        match work(&mut tx).instrument(span).await {
            Ok(value) => {
                crash_point("inbox.before_commit");
                transaction::commit(tx).await.map_err(Error::Store)?;
                crash_point("inbox.committed");
                Ok(Some(value))
            }
            Err(error) => {
                transaction::roll_back(tx).await;
                Err(error)
            }
        }
    }
}

impl<'a> Event<'a> {
    /// An event of an unknown trace.
    #[must_use]
    pub const fn new(id: Uuid) -> Self {
        Self {
            id,
            traceparent: None,
            effects: None,
        }
    }

    /// Says which trace it belongs to, by the W3C `traceparent` that came with it. Text that
    /// can't be one is left out: a sender's mistake there must not keep the event from its
    /// effect.
    #[must_use]
    pub fn traceparent(mut self, traceparent: &'a str) -> Self {
        let plain = traceparent.bytes().all(|byte| byte.is_ascii_graphic());
        self.traceparent = Some(traceparent).filter(|text| plain && text.len() <= MAX_TRACEPARENT);
        self
    }

    /// Says how many things this transaction makes of it, rows say. Kept beside the event, so
    /// that somebody can find out later whether they are all there.
    #[must_use]
    pub fn effects(mut self, effects: usize) -> Self {
        self.effects = Some(i32::try_from(effects).unwrap_or(i32::MAX));
        self
    }
}

impl From<Uuid> for Event<'_> {
    fn from(id: Uuid) -> Self {
        Self::new(id)
    }
}

fn check(consumer: &str) -> Result<(), Error> {
    let long = consumer.chars().count() > MAX_CONSUMER;
    if consumer.is_empty() || long || consumer.chars().any(char::is_control) {
        return Err(Error::InvalidConsumer);
    }
    Ok(())
}

fn arrivals(events: &[Event<'_>], mut is_new: impl FnMut(Uuid) -> bool) -> Vec<Arrival> {
    let arrival = |event: &Event<'_>| match is_new(event.id) {
        true => Arrival::New,
        false => Arrival::Duplicate,
    };
    events.iter().map(arrival).collect()
}

fn count(consumer: &str, arrivals: &[Arrival]) {
    for (arrival, label) in [(Arrival::New, "new"), (Arrival::Duplicate, "duplicate")] {
        let found = arrivals.iter().filter(|found| **found == arrival).count();
        if found > 0 {
            // Consumers are a closed set: they are named in the code that subscribes.
            metrics::counter!(EVENTS_TOTAL, "consumer" => consumer.to_owned(), "arrival" => label)
                .increment(u64::try_from(found).unwrap_or(u64::MAX));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_consumer_has_a_name_that_can_be_stored_and_shown() {
        for name in ["a", "billing.v2", "請求", &"é".repeat(128)] {
            assert!(check(name).is_ok(), "{name}");
        }
        for name in ["", "a\0b", "a\nb", "\u{7f}", &"x".repeat(129)] {
            assert!(check(name).is_err(), "{name:?}");
        }
    }
}
