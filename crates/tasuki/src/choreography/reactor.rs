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

/// What a service does when it hears of an event.
pub trait Reaction: Send + Sync + 'static {
    /// Who it is, to the inbox: an event has its effect once for each consumer.
    fn consumer(&self) -> &str;

    /// Does this service's part in the transaction `tx`, and says what happened. Events that it
    /// does not know it answers with none. Nothing but the database is awaited here.
    fn react(
        &self,
        tx: &mut PgConnection,
        delivery: &Delivery,
    ) -> impl Future<Output = Result<Vec<Event>, Failure>> + Send;
}

/// Runs a [`Reaction`] for each message of a batch, in its order, each in a transaction of its own:
/// the [`Handler`] of a [`Consumer`](crate::bus::Consumer).
///
/// A [`Failure`] says what becomes of its message and of no other; a database that can't be
/// reached gives the whole batch back.
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

    async fn one(&self, delivery: &Delivery) -> Result<Verdict, worker::Error> {
        let Some(cause) = Cause::of(delivery) else {
            return Ok(Verdict::Reject {
                reason: "a message without an id".to_owned(),
            });
        };
        let mut tx = transaction::begin(&self.pool).await?;
        match self.react(&mut tx, delivery, &cause).await {
            Ok(Arrival::New) => {
                self.choreography.commit(tx).await?;
                Ok(Verdict::Done)
            }
            Ok(Arrival::Duplicate) => {
                transaction::roll_back(tx).await;
                Ok(Verdict::Done)
            }
            Err(failure) => {
                transaction::roll_back(tx).await;
                Ok(self.failed(&cause, &failure))
            }
        }
    }

    async fn react(
        &self,
        tx: &mut Transaction,
        delivery: &Delivery,
        cause: &Cause,
    ) -> Result<Arrival, Failure> {
        let consumer = self.reaction.consumer();
        let arrival = self.choreography.arrive(tx, consumer, cause).await?;
        if arrival == Arrival::New {
            let span = self.choreography.span(consumer, cause);
            let events = self.reaction.react(tx, delivery).instrument(span).await?;
            let told = self.choreography.tell(tx, consumer, cause, events);
            told.await.map_err(judged)?;
        }
        Ok(arrival)
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
        for delivery in batch {
            verdicts.push(self.one(delivery).await?);
        }
        Ok(verdicts)
    }
}
