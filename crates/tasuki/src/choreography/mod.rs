//! Choreography: services that react to each other's events, and the chain as one story.
//!
//! Nobody conducts. A service hears of an event, does its part, and tells what it did; the next
//! one hears of that. [`Choreography::react`] is one such reaction, in one transaction: the event
//! is recorded in the [inbox] (a duplicate ends here), the work is done, and the
//! events that it returns are in the [outbox]. They inherit the `correlation_id` of
//! the event, have its id as `causation_id`, and go on in its trace.
//!
//! ```no_run
//! # use tasuki::choreography::{Cause, Choreography, Error};
//! # use tasuki::outbox::Event;
//! # async fn charge(_: &mut sqlx::PgConnection) -> Result<(), Error> { Ok(()) }
//! # async fn example(pool: sqlx::PgPool, payment: Choreography, delivery: tasuki::bus::Delivery,
//! #     id: uuid::Uuid) -> Result<(), Error> {
//! // The first event of a chain, in the transaction of a command:
//! # let shop = payment.clone();
//! let mut tx = tasuki::begin(&pool).await?;
//! let placed = Event::new(id, "OrderPlaced", "order:17", "{}");
//! shop.begin(&mut tx, "order:17", vec![placed]).await?;
//! tx.commit().await?;
//!
//! // Another service, which hears of it:
//! let Some(cause) = Cause::of(&delivery) else { return Ok(()) };
//! payment
//!     .react(&pool, "payment", &cause, async |tx| {
//!         charge(tx).await?;
//!         let id = uuid::Uuid::now_v7();
//!         Ok::<_, Error>(vec![Event::new(id, "OrderPaid", "order:17", "{}")])
//!     })
//!     .await?;
//! // Acknowledge the message only now.
//! # Ok(()) }
//! ```
//!
//! A [`Reaction`] in a [`Reactor`] is the same as a handler for a
//! [`Consumer`](crate::bus::Consumer), which acknowledges by itself.
//!
//! # The story
//! Each service keeps its own part in its table `stories`: what it told, and what it reacted to.
//! [`Choreography::part`] lists it by correlation id; [`Story::of`] makes one story of the parts of
//! all services, wherever they come from. A row commits with the reaction, in the statement that
//! writes the events, so it costs no round trip; what is not choreographed has no rows at all.
//!
//! What holds: one event, one reaction per consumer, however often it arrives; its events are
//! published if, and only if, it commits; and the story shows it if, and only if, it happened.
//!
//! Not promised: an order of everything. Services have databases of their own, and their clocks
//! differ: a story shows causes before what they caused, and the rest by the times that there are.
//! Stories are kept for 30 days unless [upkeep](crate::upkeep) is told otherwise.

mod cause;
mod reactor;
mod store;
mod story;

use std::sync::Arc;

use sqlx::{PgConnection, PgPool};
use tracing::{Instrument, Span};
use uuid::Uuid;

pub use cause::Cause;
pub use reactor::{Reaction, Reactor};
pub use story::{Entry, Story, Told, Turn};

use crate::Schema;
use crate::inbox::{self, Arrival, Inbox};
use crate::outbox::{self, Event, Outbox};
use crate::testing::crash_point;
use crate::together;
use crate::transaction::{self, Transaction};

/// The longest name of a service, in characters.
const MAX_SERVICE: usize = 128;
/// The longest part that is listed.
const MAX_PART: u32 = 10_000;

/// One service's part in chains of events. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Choreography {
    service: Arc<str>,
    inbox: Inbox,
    outbox: Outbox,
    statements: Arc<store::Statements>,
    adopt: fn(&Span, &str),
}

/// What became of an event.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reacted {
    /// It had its effect now, and these events tell of it.
    Now(Vec<Uuid>),
    /// It had its effect before. Acknowledge it.
    Before,
}

/// Why a service could not react.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The name of the service can't be stored.
    #[error(
        "a service is named by 1 to {MAX_SERVICE} characters, none of them a control character"
    )]
    InvalidService,
    /// The event could not be recorded.
    #[error(transparent)]
    Inbox(#[from] inbox::Error),
    /// What follows from it could not be written.
    #[error(transparent)]
    Outbox(#[from] outbox::Error),
    /// The story, and the events with it, could not be written.
    #[error("the story could not be written")]
    Story(#[from] together::Error),
    /// The database refused, or can't be reached.
    #[error("choreography store failed")]
    Store(#[from] sqlx::Error),
}

impl Choreography {
    /// The part of `service`, whose tables are in `schema`.
    #[must_use]
    pub fn new(schema: &Schema, service: impl Into<Arc<str>>, outbox: &Outbox) -> Self {
        Self {
            service: service.into(),
            inbox: Inbox::new(schema),
            outbox: outbox.clone(),
            statements: Arc::new(store::Statements::new(schema)),
            adopt: |_, _| {},
        }
    }

    /// Lets this make the span of a reaction a child of the `traceparent` of its cause. Messages of
    /// many traces come in one batch, so the span of whoever hears them is of none of them.
    #[must_use]
    pub fn continuing_trace(mut self, adopt: fn(&Span, &str)) -> Self {
        self.adopt = adopt;
        self
    }

    /// Tells the first events of a chain, in the caller's transaction: what an order, say, begins
    /// with. `correlation_id` names the chain, for every service that takes part in it. Returns the
    /// ids; [`ring`](Outbox::ring) the outbox after the commit.
    ///
    /// # Errors
    /// When an event can't be sent, or the database fails.
    pub async fn begin(
        &self,
        tx: &mut PgConnection,
        correlation_id: &str,
        mut events: Vec<Event>,
    ) -> Result<Vec<Uuid>, Error> {
        self.check()?;
        for event in &mut events {
            event.join(correlation_id, None, None);
        }
        self.write(tx, &[], &events).await
    }

    /// Does `work` because of `cause`, in a transaction of its own, and tells the events that it
    /// returns. An error rolls all of it back, so that the event is new when it is delivered again.
    ///
    /// # Errors
    /// Those of the work, and [`Error`]. After one of the database the event may have had its
    /// effect: delivered again, it is a duplicate then.
    pub async fn react<E, W>(
        &self,
        pool: &PgPool,
        consumer: &str,
        cause: &Cause,
        work: W,
    ) -> Result<Reacted, E>
    where
        E: From<Error>,
        W: AsyncFnOnce(&mut PgConnection) -> Result<Vec<Event>, E>,
    {
        let mut tx = transaction::begin(pool).await.map_err(Error::Store)?;
        match self.react_in(&mut tx, consumer, cause, work).await {
            Ok(Reacted::Before) => {
                transaction::roll_back(tx).await;
                Ok(Reacted::Before)
            }
            Ok(reacted) => {
                self.commit(tx).await?;
                Ok(reacted)
            }
            Err(error) => {
                transaction::roll_back(tx).await;
                Err(error)
            }
        }
    }

    /// As [`react`](Self::react), in the caller's transaction: roll it back after an error.
    ///
    /// # Errors
    /// Those of the work, and [`Error`].
    pub async fn react_in<E, W>(
        &self,
        tx: &mut PgConnection,
        consumer: &str,
        cause: &Cause,
        work: W,
    ) -> Result<Reacted, E>
    where
        E: From<Error>,
        W: AsyncFnOnce(&mut PgConnection) -> Result<Vec<Event>, E>,
    {
        let arrived = self.arrive(tx, consumer, &[cause]).await?;
        if arrived != [Arrival::New] {
            return Ok(Reacted::Before);
        }
        let events = work(tx).instrument(self.span(consumer, cause)).await?;
        let told = self.tell(tx, consumer, vec![(cause, events)]).await?;
        Ok(Reacted::Now(told))
    }

    /// What this service told and reacted to of one chain, the oldest first; of a very long one the
    /// first 10,000. Give the parts of all services to [`Story::of`].
    ///
    /// # Errors
    /// When the database fails.
    pub async fn part(
        &self,
        connection: &mut PgConnection,
        correlation_id: &str,
    ) -> Result<Vec<Entry>, Error> {
        // No chain has a name that can't be stored.
        if !outbox::is_correlation_id(correlation_id) {
            return Ok(Vec::new());
        }
        Ok(store::part(connection, &self.statements, correlation_id, MAX_PART).await?)
    }

    /// Every statement, for a test that prepares them all.
    #[doc(hidden)]
    pub fn statements(&self) -> impl Iterator<Item = &str> {
        self.statements.all()
    }

    async fn arrive(
        &self,
        tx: &mut PgConnection,
        consumer: &str,
        causes: &[&Cause],
    ) -> Result<Vec<Arrival>, Error> {
        self.check()?;
        let arrived: Vec<_> = causes.iter().map(|cause| cause.arrived()).collect();
        Ok(self.inbox.record_all(tx, consumer, &arrived).await?)
    }

    /// Tells what came of each cause.
    async fn tell(
        &self,
        tx: &mut PgConnection,
        consumer: &str,
        told: Vec<(&Cause, Vec<Event>)>,
    ) -> Result<Vec<Uuid>, Error> {
        // It goes on as it came, whatever else is heard together with it; an event that was made in
        // the span of its reaction knows better. What came without a trace is a part of ours.
        let current = self.outbox.traceparent();
        let (mut heard, mut all) = (Vec::with_capacity(told.len()), Vec::new());
        for (cause, events) in told {
            let trace = cause.traceparent.as_deref().or(current.as_deref());
            heard.push((consumer, cause));
            all.extend(events.into_iter().map(|mut event| {
                event.join(&cause.correlation_id, Some(cause.id), trace);
                event
            }));
        }
        self.write(tx, &heard, &all).await
    }

    /// The story and the events, in one statement.
    async fn write(
        &self,
        tx: &mut PgConnection,
        heard: &[(&str, &Cause)],
        events: &[Event],
    ) -> Result<Vec<Uuid>, Error> {
        let mut together = store::entries(&self.statements, &self.service, heard, events)?;
        self.outbox.enqueue_with(&mut together, events)?;
        together.run(tx).await?;
        Ok(events.iter().map(Event::id).collect())
    }

    async fn commit(&self, tx: Transaction) -> Result<(), Error> {
        crash_point("choreography.before_commit");
        transaction::commit(tx).await?;
        crash_point("choreography.committed");
        self.outbox.ring();
        Ok(())
    }

    fn span(&self, consumer: &str, cause: &Cause) -> Span {
        let span = tracing::info_span!(
            "reaction",
            service = &*self.service,
            consumer,
            event.id = %cause.id,
            event.r#type = cause.event_type,
            correlation_id = cause.correlation_id,
        );
        if let Some(traceparent) = &cause.traceparent {
            (self.adopt)(&span, traceparent);
        }
        span
    }

    fn check(&self) -> Result<(), Error> {
        let long = self.service.chars().count() > MAX_SERVICE;
        if self.service.is_empty() || long || self.service.contains(char::is_control) {
            return Err(Error::InvalidService);
        }
        Ok(())
    }
}
