//! A reaction as the handler of a consumer: acknowledged strictly after its commit.

use std::future::Future;

use sqlx::{PgConnection, PgPool};
use tracing::Instrument;

use super::{Cause, Choreography, Error};
use crate::bus::{Delivery, Handler, Verdict};
use crate::inbox::Arrival;
use crate::jobs::Failure;
use crate::outbox::Event;
use crate::transaction::{self, Transaction};
use crate::{retry, worker};

/// Messages that share a transaction. More would hold their locks for longer.
const AT_ONCE: usize = 100;
/// How long a shared transaction waits for a lock. Whoever holds it may wait for one of ours; alone,
/// a reaction waits as long as it takes.
const PATIENCE: &str = "SET LOCAL lock_timeout = '50ms'";

/// What a service does when it hears of an event.
pub trait Reaction: Send + Sync + 'static {
    /// Who it is, to the inbox: an event has its effect once for each consumer.
    fn consumer(&self) -> &str;

    /// Whether it wants to hear of this event. One that it does not want is acknowledged, and costs
    /// neither a transaction nor a row in the inbox and the story.
    fn wants(&self, _delivery: &Delivery) -> bool {
        true
    }

    /// Does this service's part in the transaction `tx`, and says what happened. Events that it
    /// does not know it answers with none. Nothing but the database is awaited here: others may
    /// share the transaction.
    fn react(
        &self,
        tx: &mut PgConnection,
        delivery: &Delivery,
    ) -> impl Future<Output = Result<Vec<Event>, Failure>> + Send;

    /// Called when reactions have been committed: rings whoever they left work for.
    fn committed(&self) {}
}

/// Runs a [`Reaction`] for each message of a batch, in its order: the [`Handler`] of a
/// [`Consumer`](crate::bus::Consumer).
///
/// Messages that have come together share a transaction, and so its commit, its row locks and its
/// round trips for inbox, story and outbox. If one of them fails, or somebody holds a lock that one
/// of them needs, it is rolled back, and each has a transaction of its own. So a [`Failure`] says
/// what becomes of its message and of no other; a database that can't be reached gives the whole
/// batch back.
#[derive(Clone, Debug)]
pub struct Reactor<R> {
    choreography: Choreography,
    pool: PgPool,
    reaction: R,
}

impl<R: Reaction> Reactor<R> {
    /// Runs `reaction` on connections of `pool`.
    pub const fn new(choreography: Choreography, pool: PgPool, reaction: R) -> Self {
        Self {
            choreography,
            pool,
            reaction,
        }
    }

    async fn some(&self, some: &[Delivery]) -> Result<Vec<Verdict>, worker::Error> {
        let wanted = some.iter().filter(|it| self.reaction.wants(it));
        let heard = wanted.filter_map(|it| Some((it, Cause::of(it)?)));
        let heard: Vec<(&Delivery, Cause)> = heard.collect();
        let is_done = heard.len() > 1 && self.together(&heard).await?;
        let mut verdicts = Vec::with_capacity(some.len());
        for delivery in some {
            verdicts.push(match self.unheard(delivery) {
                Some(verdict) => verdict,
                None if is_done => Verdict::Done,
                None => self.alone(delivery).await?,
            });
        }
        Ok(verdicts)
    }

    /// What becomes of a message that there is no reaction to.
    fn unheard(&self, delivery: &Delivery) -> Option<Verdict> {
        if !self.reaction.wants(delivery) {
            return Some(Verdict::Done);
        }
        delivery.id.is_none().then(|| Verdict::Reject {
            reason: "a message without an id".to_owned(),
        })
    }

    /// Reacts to all of them in one transaction, and says whether that went well. If not, nothing
    /// was done, or nobody knows: then the inbox does.
    async fn together(&self, heard: &[(&Delivery, Cause)]) -> Result<bool, worker::Error> {
        let mut tx = transaction::begin_with(&self.pool, PATIENCE).await?;
        match self.react(&mut tx, heard).await {
            Ok(_) => Ok(self.commit(tx).await.is_ok()),
            Err(failure) => {
                transaction::roll_back(tx).await;
                tracing::debug!(
                    consumer = self.reaction.consumer(),
                    messages = heard.len(),
                    error = failure.error() as &(dyn std::error::Error + 'static),
                    "one of them failed: one by one",
                );
                Ok(false)
            }
        }
    }

    async fn alone(&self, delivery: &Delivery) -> Result<Verdict, worker::Error> {
        let Some(cause) = Cause::of(delivery) else {
            return Ok(Verdict::Done);
        };
        let heard = [(delivery, cause)];
        let mut tx = transaction::begin(&self.pool).await?;
        let failure = match self.react(&mut tx, &heard).await {
            Ok(0) => {
                transaction::roll_back(tx).await;
                return Ok(Verdict::Done);
            }
            Ok(_) => match self.commit(tx).await {
                Ok(()) => return Ok(Verdict::Done),
                Err(Error::Store(error)) if transaction::is_away(&error) => {
                    return Err(error.into());
                }
                Err(error) => error.into(),
            },
            Err(failure) => {
                transaction::roll_back(tx).await;
                failure
            }
        };
        let [(_, cause)] = &heard;
        Ok(self.failed(cause, &failure))
    }

    /// Reacts to those that are new, and says how many are.
    async fn react(
        &self,
        tx: &mut Transaction,
        heard: &[(&Delivery, Cause)],
    ) -> Result<usize, Failure> {
        let consumer = self.reaction.consumer();
        let causes: Vec<&Cause> = heard.iter().map(|(_, cause)| cause).collect();
        let arrivals = self.choreography.arrive(tx, consumer, &causes).await?;
        let mut told = Vec::with_capacity(heard.len());
        for ((delivery, cause), arrival) in heard.iter().zip(arrivals) {
            if arrival == Arrival::New {
                let span = self.choreography.span(consumer, cause);
                let events = self.reaction.react(tx, delivery).instrument(span).await?;
                told.push((cause, events));
            }
        }
        let new = told.len();
        if new > 0 {
            let told = self.choreography.tell(tx, consumer, told);
            told.await.map_err(judged)?;
        }
        Ok(new)
    }

    async fn commit(&self, tx: Transaction) -> Result<(), Error> {
        self.choreography.commit(tx).await?;
        self.reaction.committed();
        Ok(())
    }

    fn failed(&self, cause: &Cause, failure: &Failure) -> Verdict {
        tracing::warn!(
            consumer = self.reaction.consumer(),
            event.id = %cause.id,
            event.r#type = cause.event_type,
            correlation_id = cause.correlation_id,
            error = failure.error() as &(dyn std::error::Error + 'static),
            "reaction failed",
        );
        match failure.verdict() {
            retry::Verdict::Retry => Verdict::Retry { after: None },
            retry::Verdict::RetryAfter(pause) | retry::Verdict::Snooze(pause) => {
                Verdict::Retry { after: Some(pause) }
            }
            retry::Verdict::Reject => Verdict::Reject {
                reason: failure.error().to_string(),
            },
        }
    }
}

/// An event that can't be sent never can be: it is what the reaction makes of this message.
fn judged(error: Error) -> Failure {
    match error {
        Error::Outbox(crate::outbox::Error::Invalid(_)) => Failure::reject(error),
        error => error.into(),
    }
}

impl<R: Reaction> Handler for Reactor<R> {
    async fn handle(&self, batch: &[Delivery]) -> Result<Vec<Verdict>, worker::Error> {
        let mut verdicts = Vec::with_capacity(batch.len());
        for some in batch.chunks(AT_ONCE) {
            verdicts.extend(self.some(some).await?);
        }
        Ok(verdicts)
    }
}
