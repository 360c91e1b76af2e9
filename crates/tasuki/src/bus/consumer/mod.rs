//! The worker that reads a stream and hands its messages on, a batch at a time.
//!
//! A [`Consumer`] makes sure that stream and durable exist, fetches a batch, gives it to its
//! [`Handler`], and tells the broker what became of each message strictly after the handler
//! has returned, which is after its transaction has committed. A crash in between delivers
//! again, so a handler records every id in its inbox.
//!
//! What holds:
//! - A batch that takes long is kept alive, for five minutes at most (then it is cut, and delivered
//!   again); one that a stop cuts off is given back at once.
//! - A handler that fails as a whole, or panics, costs every message of the batch one retry
//!   with a delay that grows with its deliveries, and the worker backs off besides. There is
//!   no limit of deliveries that an outage could use up: messages are bounded by the age
//!   limit of the stream, and [`published_at`](super::Delivered::published_at) lets a handler
//!   give up earlier.
//! - A stream that was deleted and made again, or that lost its end, is noticed: at every
//!   reconnect and every few seconds the consumer compares when the stream was created and
//!   which message stands where it last read. After a loss it starts the stream over, because
//!   numbers are used again and what is new may stand below where it had been. That what it last
//!   read outlives the process is for [`remembering`](Consumer::remembering) to see to.
//!
//! Not promised: order. A message that is retried comes after later ones; handlers that care
//! compare versions.

mod settle;
mod store;
mod watch;

use std::collections::HashSet;
use std::convert::Infallible;
use std::fmt;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{Either, select};
use sqlx::PgPool;
use time::OffsetDateTime;
use tokio::sync::Mutex;
use tokio::time::sleep;
use tracing::{Instrument, Span};

use self::store::{Place, Places};
use self::watch::Open;
use super::{ConsumerSpec, Delivery, Streams, Subscriber, Subscription};
use crate::Schema;
use crate::lease::Route;
use crate::retry::Backoff;
use crate::testing::crash_point;
use crate::worker::{Error, Tick, Worker};

/// What is to become of a delivery.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Verdict {
    /// Its effect is committed, now or earlier: acknowledged.
    Done,
    /// Not now: delivered again.
    Retry {
        /// When; `None` for a delay that grows with the number of deliveries.
        after: Option<Duration>,
    },
    /// Never: the message itself is at fault. It is not delivered again, and the stream keeps
    /// it until its age limit; a handler that wants it kept for longer stores it before it says
    /// this, or enqueues a job that does what is to be done about it.
    Reject {
        /// Why, for the broker's advisory and the log.
        reason: String,
    },
}

/// What a service does with the messages of a stream.
pub trait Handler: Send + Sync + 'static {
    /// Works on `batch` and says for each delivery, in order, what is to become of it.
    ///
    /// Everything that must hold when a delivery is [`Done`](Verdict::Done) is committed when
    /// this returns. An error, or a wrong number of verdicts, stands for the whole batch: all
    /// of it is delivered again. Dropping the future at any await must be safe.
    fn handle(
        &self,
        batch: &[Delivery],
    ) -> impl Future<Output = Result<Vec<Verdict>, Error>> + Send;

    /// Whether it makes sense to go on after a batch that failed as a whole: asked before the
    /// next one is fetched, so that an outage of what the handler stands on does not use up the
    /// deliveries of one message after the other.
    fn ready(&self) -> impl Future<Output = Result<(), Error>> + Send {
        async { Ok(()) }
    }
}

/// Reads one durable and hands its messages to a [`Handler`]. Run it under a
/// [`Supervisor`](crate::worker::Supervisor), in as many processes as you like.
pub struct Consumer<B: Subscriber, H> {
    name: String,
    bus: B,
    spec: ConsumerSpec,
    handler: H,
    max_batch: usize,
    wait: Duration,
    places: Option<Places>,
    link: fn(&Span, &str),
    backoff: Backoff,
    /// The last batch failed as a whole.
    failed: AtomicBool,
    open: Mutex<Open<B::Subscription>>,
    /// What is being worked on, to be given back if that is cut.
    held: std::sync::Mutex<Option<Arc<[Delivery]>>>,
}

impl<B: Subscriber + Streams, H: Handler> Consumer<B, H> {
    /// A consumer of `spec`. `name` is its name as a worker: `<service>.<noun>`.
    pub fn new(name: impl Into<String>, bus: B, spec: ConsumerSpec, handler: H) -> Self {
        Self {
            name: name.into(),
            bus,
            spec,
            handler,
            max_batch: 500,
            wait: Duration::from_secs(1),
            places: None,
            link: |_, _| {},
            backoff: settle::backoff(),
            failed: AtomicBool::new(false),
            open: Mutex::default(),
            held: std::sync::Mutex::default(),
        }
    }

    /// The same, handing over at most `max` messages at a time. More cost fewer transactions,
    /// and repeat more after a crash.
    #[must_use]
    pub fn with_max_batch(mut self, max: usize) -> Self {
        self.max_batch = max.max(1);
        self
    }

    /// The same, waiting so long for a message before it says that there is none. A stop
    /// waits for that too.
    #[must_use]
    pub fn with_wait(mut self, wait: Duration) -> Self {
        self.wait = wait;
        self
    }

    /// The same with other delays before a message is delivered again (1 s, doubled up to 60 s).
    /// Where deliveries are limited, they decide how much time they span.
    #[must_use]
    pub fn with_backoff(mut self, backoff: Backoff) -> Self {
        self.backoff = backoff;
        self
    }

    /// The same, letting this link the span of a batch to the `traceparent` of each of its
    /// messages.
    #[must_use]
    pub fn linking_traces(mut self, link: fn(&Span, &str)) -> Self {
        self.link = link;
        self
    }

    /// The same, remembering in `schema` how far it has read. Without it, a process that has just
    /// started can't tell a stream that lost its end, and has grown again since, from the one
    /// that was read before: what is new in it below that place would never be delivered.
    #[must_use]
    pub fn remembering(mut self, pool: PgPool, schema: &Schema) -> Self {
        self.places = Some(Places::new(pool, schema));
        self
    }

    /// The same, where the pool of [`remembering`](Self::remembering) reaches PostgreSQL by `route`.
    #[must_use]
    pub fn through(mut self, route: Route) -> Self {
        if let Some(places) = &mut self.places {
            places.route = route;
        }
        self
    }

    /// Writes down how far this batch goes.
    async fn remember(&self, created_at: OffsetDateTime, batch: &[Delivery]) -> Result<(), Error> {
        if let (Some(places), Some((sequence, id))) = (&self.places, watch::furthest(batch)) {
            let place = Place {
                created_at,
                sequence,
                id,
            };
            places.save(&self.spec, &place).await?;
        }
        Ok(())
    }

    async fn work(&self, created_at: OffsetDateTime, batch: Vec<Delivery>) -> Result<(), Error> {
        let batch: Arc<[Delivery]> = batch.into();
        self.hold(Some(Arc::clone(&batch)));
        let span = tracing::info_span!(
            "consume",
            consumer = &*self.spec.durable,
            stream = &*self.spec.stream.name,
            batch.messages = batch.len(),
        );
        let traces = batch.iter().filter_map(|it| it.header("traceparent"));
        for traceparent in traces.collect::<HashSet<_>>() {
            (self.link)(&span, traceparent);
        }
        let handled = self.handle(created_at, &batch).instrument(span).await;
        crash_point("consumer.handled");
        let (verdicts, failure) = match handled {
            Ok(verdicts) if verdicts.len() == batch.len() => (verdicts, None),
            Ok(verdicts) => {
                let (given, wanted) = (verdicts.len(), batch.len());
                let why = format!("the handler gave {given} verdicts for {wanted} messages");
                (settle::retry_all(&batch), Some(why.into()))
            }
            Err(error) => (settle::retry_all(&batch), Some(error)),
        };
        settle::settle(&self.spec.durable, &batch, &verdicts, &self.backoff).await;
        self.failed.store(failure.is_some(), Ordering::Relaxed);
        self.hold(None);
        failure.map_or(Ok(()), Err)
    }

    /// Runs the handler, and tells the broker meanwhile that the batch is alive.
    async fn handle(
        &self,
        created_at: OffsetDateTime,
        batch: &[Delivery],
    ) -> Result<Vec<Verdict>, Error> {
        let handled = async {
            let verdicts = self.handler.handle(batch).await?;
            // Before the broker is told: what it believes to be read, we know of.
            self.remember(created_at, batch).await?;
            Ok(verdicts)
        };
        // A handler that panicked has left nothing behind that a crash would not.
        let handled = AssertUnwindSafe(handled).catch_unwind();
        let alive = keep_alive(batch, self.spec.ack_wait / 3);
        match select(std::pin::pin!(handled), std::pin::pin!(alive)).await {
            Either::Left((Ok(verdicts), _)) => verdicts,
            Either::Left((Err(_panic), _)) => Err("the handler panicked".into()),
            Either::Right((never, _)) => match never {},
        }
    }

    fn hold(&self, batch: Option<Arc<[Delivery]>>) -> Option<Arc<[Delivery]>> {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut *held, batch)
    }

    /// Gives back what a cut tick left: somebody else may take it at once.
    async fn give_back(&self) {
        if let Some(batch) = self.hold(None) {
            settle::give_back(&self.spec.durable, &batch).await;
        }
    }
}

impl<B: Subscriber + Streams, H: Handler> Worker for Consumer<B, H> {
    fn name(&self) -> &str {
        &self.name
    }

    fn poll_interval(&self) -> Duration {
        // The tick itself waits for messages.
        const LEAST: Duration = Duration::from_millis(1);
        const POLL: Duration = Duration::from_millis(200);
        POLL.saturating_sub(self.wait).max(LEAST)
    }

    async fn tick(&self) -> Result<Tick, Error> {
        self.give_back().await;
        if self.failed.load(Ordering::Relaxed) {
            self.handler.ready().await?;
        }
        let mut open = self.open.lock().await;
        let places = self.places.as_ref();
        let subscription = open.subscription(&self.bus, &self.spec, places).await?;
        let fetched = subscription.fetch(self.max_batch, self.wait).await;
        let batch = match fetched {
            Ok(batch) => batch,
            Err(error) => {
                // The next tick opens anew and compares.
                open.close();
                return Err(error.into());
            }
        };
        if batch.is_empty() {
            return Ok(Tick::Idle);
        }
        open.has_read(&batch);
        let created_at = subscription.opened_on().created_at;
        self.work(created_at, batch).await?;
        Ok(Tick::Worked)
    }

    async fn release(&self) {
        self.give_back().await;
    }
}

async fn keep_alive(batch: &[Delivery], period: Duration) -> Infallible {
    loop {
        sleep(period).await;
        settle::in_progress(batch).await;
    }
}

impl<B: Subscriber, H> fmt::Debug for Consumer<B, H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Consumer")
            .field("name", &self.name)
            .field("spec", &self.spec)
            .finish_non_exhaustive()
    }
}
