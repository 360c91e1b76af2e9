//! The relay: claims committed events, publishes them in batches, settles them in batches.
//!
//! It dies after the publish and before the settlement: the events are published again. The
//! broker is away: they go back as they were, and the relay asks carefully, one event at a
//! time, until it is back. Only an event that the broker refuses by itself uses up attempts.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sqlx::{PgConnection, PgPool};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use tokio::time::Instant;
use uuid::Uuid;

use super::store::{EventRow, Place};
use super::{Outbox, Routes, Suspicion};
use crate::bus::{Message, Position, PublishError, Publisher};
use crate::lease::{
    Claim, Claimed, Fence, Leases, Line, Outcome, Owner, Route, Runner, Settings, Unit, Watermark,
    Work, give_back, told,
};
use crate::retry::{Next, Policy, Verdict};
use crate::testing::crash_point;

/// Time from the enqueueing of an event to its acknowledgement by the broker, by relay.
const PUBLISH_DELAY: &str = "tasuki_outbox_publish_delay_seconds";
/// Whether the broker is taken to be away (1), by relay.
const BROKER_AWAY: &str = "tasuki_outbox_broker_away";

/// The first pause after the broker could not be reached, and the longest: how much later than
/// the broker the relay is back at the latest.
const AWAY: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(3));
/// Claims in a row that may find nothing but keys that others hold, before the next poll.
const BLOCKED_CLAIMS: usize = 8;

/// How a relay works.
#[derive(Clone, Debug)]
#[must_use]
pub struct RelaySettings {
    /// `<service>.outbox`: names the worker.
    pub name: String,
    /// Where claims and settlements go.
    pub pool: PgPool,
    /// How that pool reaches PostgreSQL.
    pub route: Route,
    /// The name that claims carry.
    pub owner: Owner,
    /// Which event goes where.
    pub routes: Routes,
    /// Events per claim and publish. More cost fewer round trips, and more is repeated after
    /// a crash.
    pub batch: usize,
    /// Batches in flight at a time.
    pub in_flight: usize,
    /// How long a claim holds: longer than any publish takes.
    pub lease: Duration,
    /// How long an idle relay waits before it looks by itself.
    pub poll: Duration,
    /// How often, and how long apart, an event that the broker refuses is tried.
    pub policy: Policy,
}

impl RelaySettings {
    /// Settings that suit most: 500 events a batch, 4 batches in flight, a lease of 30 s, a poll
    /// of 500 ms, 10 attempts.
    pub fn new(name: &str, pool: PgPool, routes: Routes) -> Self {
        Self {
            name: name.to_owned(),
            pool,
            routes,
            route: Route::Direct,
            owner: Owner::here(),
            batch: 500,
            in_flight: 4,
            lease: Duration::from_secs(30),
            poll: Duration::from_millis(500),
            policy: Policy::leased(),
        }
    }
}

/// The relay of `outbox` to `bus`, as a worker: start it with its own
/// [`wake`](Runner::wake), which the outbox's bell rings from now on.
#[must_use]
pub fn relay<P: Publisher>(
    outbox: &Outbox,
    bus: Arc<P>,
    settings: RelaySettings,
) -> Runner<Relay<P>> {
    let lease = Settings {
        pool: settings.pool.clone(),
        route: settings.route,
        owner: settings.owner.clone(),
        unit: Unit::Batch,
        slots: settings.in_flight,
        batch: settings.batch,
        lease: settings.lease,
        poll: settings.poll,
    };
    let work = Relay {
        outbox: outbox.clone(),
        bus,
        settings,
        watermark: Watermark::new(1),
        state: Mutex::default(),
        suspicion: Suspicion::default(),
    };
    let runner = Runner::new(work, lease);
    outbox.bell().wakes(&runner.wake());
    runner
}

/// What a relay does with claimed events.
#[derive(Debug)]
pub struct Relay<P> {
    outbox: Outbox,
    bus: Arc<P>,
    settings: RelaySettings,
    watermark: Watermark,
    state: Mutex<State>,
    suspicion: Suspicion,
}

/// A sequence per stream, for each that the stream was created as.
type Highest = HashMap<(Arc<str>, OffsetDateTime), u64>;

/// The lowest sequence that each stream gave to something new.
fn lowest(published: &[Position]) -> Highest {
    let mut lowest = Highest::new();
    for at in published.iter().filter(|at| !at.duplicate) {
        let stream = (Arc::clone(&at.stream), at.stream_created_at);
        let least = lowest.entry(stream).or_insert(at.sequence);
        *least = at.sequence.min(*least);
    }
    lowest
}

#[derive(Debug, Default)]
struct State {
    /// Ordered events: the key after which the next claim goes on.
    after_key: String,
    /// There are more keys than one claim looks at.
    more_keys: bool,
    away: Away,
    /// The highest acknowledged sequences.
    highest: Highest,
}

/// What is known of a broker that does not answer.
#[derive(Debug, Default)]
struct Away {
    pause: Option<Duration>,
    until: Option<Instant>,
}

impl Away {
    /// How much to claim: nothing while it is away, one event to ask whether it is back.
    fn limit(&self, limit: usize) -> usize {
        match self.until {
            None => limit,
            Some(until) if Instant::now() < until => 0,
            Some(_) => 1,
        }
    }

    fn unreachable(&mut self) {
        // Relays that lost it together must not come back together.
        let jitter = 0.75 + fastrand::f64() / 2.0;
        let pause = self.pause.map_or(AWAY.0, |pause| (pause * 2).min(AWAY.1));
        self.pause = Some(pause);
        self.until = Some(Instant::now() + pause.mul_f64(jitter));
    }
}

/// How an event was published, for its settlement.
#[derive(Clone, Debug)]
pub struct Published {
    position: Position,
    ordered: bool,
}

impl<P> Relay<P> {
    /// Raised when an acknowledgement shows that the broker has lost messages: for a
    /// [`Reconciler`](super::Reconciler).
    #[must_use]
    pub fn suspicion(&self) -> Suspicion {
        self.suspicion.clone()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn message(&self, claimed: &mut Claimed<EventRow>) -> Message {
        let row = &mut claimed.row;
        let mut headers = Vec::with_capacity(5);
        let occurred_at = row.occurred_at.format(&Rfc3339).unwrap_or_default();
        headers.push(("occurred_at", occurred_at));
        headers.push(("aggregate_key", std::mem::take(&mut row.aggregate_key)));
        if let Some(traceparent) = row.traceparent.take() {
            if let Some(trace_id) = traceparent.split('-').nth(1) {
                headers.push(("trace_id", trace_id.to_owned()));
            }
            headers.push(("traceparent", traceparent));
        }
        let subject = self.settings.routes.subject(&row.event_type);
        headers.push(("event_type", std::mem::take(&mut row.event_type)));
        Message {
            id: claimed.fence.id,
            subject,
            ordering_key: row.ordering_key.as_deref().map(Arc::from),
            headers,
            payload: std::mem::take(&mut row.payload).into(),
        }
    }

    /// The outcome of one event. `partly`: others of the same batch were published.
    fn outcome(
        &self,
        claimed: &Claimed<EventRow>,
        result: Result<Position, PublishError>,
        partly: bool,
    ) -> Outcome<Published> {
        match result {
            Ok(position) => Outcome::Done(Published {
                position,
                ordered: claimed.row.ordering_key.is_some(),
            }),
            Err(PublishError::Held) => give_back(),
            Err(PublishError::Unreachable(error)) => Outcome::Back {
                // Only its own stream is away: it must not come back at once. Otherwise the
                // relay as a whole waits, and the event keeps its place.
                after: if partly { AWAY.1 } else { Duration::ZERO },
                error: Some(told(&*error)),
            },
            Err(error) => self.refused(claimed.failed_attempts, &told(&error)),
        }
    }

    fn refused(&self, failed_attempts: u32, error: &str) -> Outcome<Published> {
        let attempt = failed_attempts.saturating_add(1);
        let error = error.to_owned();
        match self.settings.policy.next(attempt, Verdict::Retry) {
            Next::Retry(after) => Outcome::Retry { after, error },
            Next::Snooze(after) => Outcome::Back {
                after,
                error: Some(error),
            },
            Next::Dead => Outcome::Dead { error },
        }
    }

    /// A sequence that is not above all that were acknowledged before this publish began
    /// is one that was used before: the broker has lost what had it.
    async fn note(&self, published: &[Position], mut before: Highest) {
        let lowest = lowest(published);
        for stream in lowest.keys() {
            if before.contains_key(stream) {
                continue;
            }
            // The first word of this stream since we began: others know how far it had come.
            if let Ok(Some(newest)) = self.newest(&stream.0, stream.1).await {
                before.insert(stream.clone(), newest);
            }
        }
        let reused = lowest
            .iter()
            .any(|(stream, sequence)| before.get(stream).is_some_and(|high| sequence <= high));
        let mut state = self.state();
        for at in published {
            let stream = (Arc::clone(&at.stream), at.stream_created_at);
            let highest = state.highest.entry(stream).or_default();
            *highest = at.sequence.max(*highest);
        }
        if reused {
            state.highest.clear();
            drop(state);
            tracing::error!(
                worker = self.settings.name,
                "the broker uses sequences again: it has lost acknowledged messages",
            );
            self.suspicion.raise();
        }
    }

    async fn newest(&self, stream: &str, created_at: OffsetDateTime) -> sqlx::Result<Option<u64>> {
        let mut line = Line::open(&self.settings.pool, self.settings.route).await?;
        let store = &self.outbox.store;
        let newest = store.newest(line.connection(), stream, created_at).await?;
        line.close().await?;
        Ok(newest.and_then(|row| u64::try_from(row.stream_seq).ok()))
    }

    /// The broker is away if nobody answered for any event, and here if anybody did.
    fn note_reachable(&self, reachable: bool) {
        let mut state = self.state();
        let gauge = metrics::gauge!(BROKER_AWAY, "worker" => self.settings.name.clone());
        if reachable {
            if state.away.until.is_some() {
                tracing::info!(worker = self.settings.name, "the broker is back");
            }
            state.away = Away::default();
            gauge.set(0);
        } else {
            if state.away.until.is_none() {
                tracing::warn!(worker = self.settings.name, "the broker can't be reached");
            }
            state.away.unreachable();
            gauge.set(1);
        }
    }
}

impl<P: Publisher> Work for Relay<P> {
    type Row = EventRow;
    type Done = Published;

    fn name(&self) -> &str {
        &self.settings.name
    }

    fn leases(&self) -> &Leases {
        self.outbox.store.leases()
    }

    async fn claim(
        &self,
        connection: &mut PgConnection,
        claim: &Claim<'_>,
    ) -> sqlx::Result<Vec<Claimed<EventRow>>> {
        for _ in 0..BLOCKED_CLAIMS {
            let (after_key, limit) = {
                let state = self.state();
                (state.after_key.clone(), state.away.limit(claim.limit))
            };
            if limit == 0 {
                break;
            }
            let start = self.watermark.start();
            let from = start.from.first().copied();
            let place = Place {
                after_key: &after_key,
                from: from.unwrap_or(OffsetDateTime::UNIX_EPOCH),
            };
            let claim = Claim {
                limit,
                ..claim.clone()
            };
            let (mut rows, next) = self.outbox.store.claim(connection, &claim, &place).await?;
            // In their order: the statement gives them in the order of the heap.
            rows.sort_unstable_by_key(|row| row.row.seq);
            let unordered = rows.iter().filter(|row| row.row.ordering_key.is_none());
            let due: Vec<_> = unordered.map(|row| (0, row.row.next_retry_at)).collect();
            self.watermark.reached(&start, due.len() >= limit, due);
            let mut state = self.state();
            // From the end back to the beginning, also when this was not the beginning.
            let wrapped = next.is_none() && !after_key.is_empty();
            state.more_keys = next.is_some() || wrapped;
            state.after_key = next.unwrap_or_default();
            if !rows.is_empty() || !state.more_keys {
                return Ok(rows);
            }
        }
        Ok(Vec::new())
    }

    fn expects_more(&self, rows: &[Claimed<EventRow>], limit: usize) -> bool {
        rows.len() >= limit || (!rows.is_empty() && self.state().more_keys)
    }

    fn frees_others(&self, done: &[(Fence, Published)]) -> bool {
        done.iter().any(|(_, published)| published.ordered)
    }

    async fn run(&self, mut unit: Vec<Claimed<EventRow>>) -> Vec<(Fence, Outcome<Published>)> {
        let began = Instant::now();
        let before = self.state().highest.clone();
        let messages = unit.iter_mut().map(|row| self.message(row)).collect();
        let results = self.bus.publish(messages).await;
        crash_point("outbox.published");
        let published: Vec<Position> = results.iter().flatten().cloned().collect();
        let unreachable =
            |result: &Result<_, _>| matches!(result, Err(PublishError::Unreachable(_)));
        self.note_reachable(!(published.is_empty() && results.iter().any(unreachable)));
        self.note(&published, before).await;
        let delay = metrics::histogram!(PUBLISH_DELAY, "worker" => self.settings.name.clone());
        let took = began.elapsed().as_secs_f64();
        let ended = unit.iter().zip(results).map(|(row, result)| {
            if result.is_ok() {
                delay.record(row.row.age + took);
            }
            (row.fence, self.outcome(row, result, !published.is_empty()))
        });
        ended.collect()
    }

    async fn settle(
        &self,
        connection: &mut PgConnection,
        done: &[(Fence, Published)],
    ) -> sqlx::Result<Vec<Uuid>> {
        let done: Vec<(Fence, Position)> = done
            .iter()
            .map(|(fence, published)| (*fence, published.position.clone()))
            .collect();
        self.outbox.store.settle(connection, &done).await
    }

    fn panicked(&self, failed_attempts: u32, message: &str) -> Outcome<Published> {
        self.refused(failed_attempts, &format!("publishing panicked: {message}"))
    }
}
