//! The relay: claims committed events, publishes them in batches, settles them in batches.
//!
//! When it dies after the publish and before the settlement, the events are published again. While
//! the broker is away, or one of its streams, its events go back for a few seconds without the cost
//! of an attempt, and the relay asks now and then whether it is back; other streams go on. Only an
//! event that the broker itself refuses uses up attempts.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sqlx::{PgConnection, PgPool};
use time::format_description::BorrowedFormatItem;
use time::macros::format_description;
use time::{OffsetDateTime, UtcOffset};
use tokio::time::Instant;
use tracing::Instrument;
use uuid::Uuid;

use super::away::Away;
use super::memory::{Highest, State};
use super::store::{EventRow, Place};
use super::{Outbox, Routes, Suspicion};
use crate::bus::{Message, Position, PublishError, Publisher};
use crate::lease::{
    Claim, Claimed, Fence, Leases, Look, Outcome, Owner, Route, Runner, Settings, Unit, Watermark,
    Work, give_back, told,
};
use crate::retry::{Next, Policy, Verdict};
use crate::testing::crash_point;

/// Time from the enqueueing of an event to its acknowledgement by the broker, by relay.
const PUBLISH_DELAY: &str = "tasuki_outbox_publish_delay_seconds";
/// Subjects whose stream does not answer, by relay.
const BROKER_AWAY: &str = "tasuki_outbox_broker_away";

/// Times in headers: RFC 3339, in UTC, of one length.
const WIRE_TIME: &[BorrowedFormatItem<'_>] =
    format_description!("[year]-[month]-[day]T[hour]:[minute]:[second].[subsecond digits:6]Z");
/// Claims in a row that may find nothing but keys that others hold, before the next poll.
const BLOCKED_CLAIMS: usize = 8;

/// How a relay works.
#[derive(Clone, Debug)]
#[must_use]
pub struct RelaySettings {
    /// `<service>.outbox`: names the worker.
    pub name: String,
    /// Where claims and settlements go: over connections of their own, with the options of this pool.
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
    /// Links the span of a publish to the `traceparent` of each of its events.
    pub link: fn(&tracing::Span, &str),
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
            link: |_, _| {},
        }
    }
}

/// The relay of `outbox` to `bus`, as a worker that the outbox's bell wakes from now on.
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

/// How claimed events ended.
type Ended = Vec<(Fence, Outcome<Published>)>;

/// How an event was published, for its settlement.
#[derive(Clone, Debug)]
pub struct Published {
    position: Position,
    /// For an ordered event, the number of its claim.
    claim: Option<i64>,
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
        let mut headers = Vec::with_capacity(7);
        let occurred_at = row.occurred_at.to_offset(UtcOffset::UTC);
        let occurred_at = occurred_at.format(WIRE_TIME).unwrap_or_default();
        headers.push(("occurred_at", occurred_at));
        headers.push(("aggregate_key", std::mem::take(&mut row.aggregate_key)));
        if let Some(traceparent) = row.traceparent.take() {
            if let Some(trace_id) = traceparent.split('-').nth(1) {
                headers.push(("trace_id", trace_id.to_owned()));
            }
            headers.push(("traceparent", traceparent));
        }
        if let Some(correlation_id) = row.correlation_id.take() {
            headers.push(("correlation_id", correlation_id));
        }
        if let Some(causation_id) = row.causation_id {
            headers.push(("causation_id", causation_id.to_string()));
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

    /// The span of a publish, which belongs to the traces of all its events.
    fn span(&self, messages: &[Message]) -> tracing::Span {
        let span = tracing::info_span!(
            "publish",
            worker = self.settings.name,
            batch.messages = messages.len(),
        );
        let headers = messages.iter().flat_map(|message| &message.headers);
        let traces = headers.filter(|(name, _)| *name == "traceparent");
        let traces: HashSet<&str> = traces.map(|(_, value)| value.as_str()).collect();
        for traceparent in traces {
            (self.settings.link)(&span, traceparent);
        }
        span
    }

    fn outcome(
        &self,
        claimed: &Claimed<EventRow>,
        subject: &str,
        result: Result<Position, PublishError>,
    ) -> Outcome<Published> {
        match result {
            Ok(position) => Outcome::Done(Published {
                position,
                claim: claimed
                    .row
                    .ordering_key
                    .is_some()
                    .then_some(claimed.row.claim),
            }),
            Err(PublishError::Held) => give_back(),
            // Not before its stream may be back: others may go to one that is there.
            Err(PublishError::Unreachable(error)) => Outcome::Back {
                after: self.state().pause(subject).unwrap_or(Away::FIRST),
                error: Some(told(&*error)),
            },
            Err(error @ PublishError::Invalid(_)) => Outcome::Dead {
                error: told(&error),
            },
            Err(error) => self.refused(claimed.failed_attempts, &told(&error)),
        }
    }

    fn refused(&self, failed_attempts: u32, error: &str) -> Outcome<Published> {
        let attempt = failed_attempts.saturating_add(1);
        let error = error.to_owned();
        match self.settings.policy.next(attempt, Verdict::Retry) {
            Next::Retry(after) => Outcome::Retry { after, error },
            Next::Snooze(after) => Outcome::Snooze { after, error },
            Next::Dead => Outcome::Dead { error },
        }
    }

    /// A sequence that is not above all that were acknowledged before this publish began
    /// is one that was used before: the broker has lost what had it.
    fn note(&self, published: &[Position], before: &Highest) {
        let is_reused = |at: &Position| {
            let stream = (Arc::clone(&at.stream), at.stream_created_at);
            !at.duplicate && before.get(&stream).is_some_and(|high| at.sequence <= *high)
        };
        let reused = published.iter().any(is_reused);
        let mut state = self.state();
        if reused {
            state.highest.clear();
        }
        for at in published {
            let stream = (Arc::clone(&at.stream), at.stream_created_at);
            let highest = state.highest.entry(stream).or_default();
            *highest = at.sequence.max(*highest);
        }
        drop(state);
        if reused {
            tracing::error!(
                worker = self.settings.name,
                "the broker uses sequences again: it has lost acknowledged messages",
            );
            self.suspicion.raise();
        }
    }

    /// A stream is away if nobody answered for any of its events, and here if anybody did.
    fn note_reachable(&self, subjects: &[Arc<str>], results: &[Result<Position, PublishError>]) {
        let mut unanswered: HashMap<&Arc<str>, bool> = HashMap::new();
        for (subject, result) in subjects.iter().zip(results) {
            match result {
                Err(PublishError::Held) => {}
                Err(PublishError::Unreachable(_)) => {
                    unanswered.entry(subject).or_insert(true);
                }
                _ => {
                    unanswered.insert(subject, false);
                }
            }
        }
        let mut state = self.state();
        for (subject, is_away) in unanswered {
            let name = || subject.to_string();
            if is_away {
                let before = state.away.remove(subject);
                if before.is_none() {
                    tracing::warn!(
                        worker = self.settings.name,
                        subject = name(),
                        "the broker can't be reached"
                    );
                }
                state.here.remove(subject);
                state
                    .away
                    .insert(Arc::clone(subject), Away::again(before.as_ref()));
            } else {
                if state.away.remove(subject).is_some() {
                    tracing::info!(
                        worker = self.settings.name,
                        subject = name(),
                        "the broker is back"
                    );
                }
                state.here.insert(Arc::clone(subject));
            }
        }
        let away = u32::try_from(state.away.len()).unwrap_or(u32::MAX);
        metrics::gauge!(BROKER_AWAY, "worker" => self.settings.name.clone()).set(away);
    }

    /// Takes out all ordered events if somebody else has kept some from the middle: whoever has
    /// those publishes them later than what is behind them here. The next claim sees the gap.
    fn without_the_torn(unit: Vec<Claimed<EventRow>>) -> (Vec<Claimed<EventRow>>, Ended) {
        let is_ordered = |claimed: &Claimed<EventRow>| claimed.row.ordering_key.is_some();
        let picked = unit.first().map(|claimed| claimed.row.picked);
        let got = unit.iter().filter(|claimed| is_ordered(claimed)).count();
        if picked.is_none_or(|picked| usize::try_from(picked) == Ok(got)) {
            return (unit, Vec::new());
        }
        let (torn, rest): (Vec<_>, Vec<_>) = unit.into_iter().partition(is_ordered);
        let torn = torn.into_iter().map(|it| (it.fence, give_back()));
        (rest, torn.collect())
    }

    /// Takes out the events whose stream is away. They come back when it may be there again, and
    /// not before: others would have to wait behind them.
    fn without_the_hopeless(
        &self,
        unit: Vec<Claimed<EventRow>>,
    ) -> (Vec<Claimed<EventRow>>, Ended) {
        let state = self.state();
        if state.away.is_empty() {
            return (unit, Vec::new());
        }
        let mut hopeless = Vec::new();
        let mut rest = Vec::with_capacity(unit.len());
        let mut held = HashSet::new();
        for claimed in unit {
            let subject = self.settings.routes.subject(&claimed.row.event_type);
            let key = claimed.row.ordering_key.as_ref();
            if key.is_some_and(|key| held.contains(key)) {
                hopeless.push((claimed.fence, give_back()));
            } else if let Some(pause) = state.pause(&subject) {
                held.extend(key.cloned());
                let outcome = Outcome::Back {
                    after: pause.max(Away::FIRST),
                    error: Some("its stream is away".to_owned()),
                };
                hopeless.push((claimed.fence, outcome));
            } else {
                rest.push(claimed);
            }
        }
        (rest, hopeless)
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
            let (after_key, limit) = (self.state().after_key.clone(), claim.limit);
            let start = self.watermark.start();
            let place = Place {
                after_key: &after_key,
                from: start.from.first().copied().flatten(),
            };
            let (mut rows, next) = self.outbox.store.claim(connection, claim, &place).await?;
            // In their order: the statement gives them in the order of the heap.
            rows.sort_unstable_by_key(|row| row.row.seq);
            let number = self.state().count_claim();
            rows.iter_mut().for_each(|row| row.row.claim = number);
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

    fn watermark(&self) -> Option<&Watermark> {
        Some(&self.watermark)
    }

    async fn look(
        &self,
        connection: &mut PgConnection,
        look: &Look,
    ) -> sqlx::Result<Vec<(usize, OffsetDateTime)>> {
        let until = look.until.first().copied().flatten();
        let first = self.outbox.store.look(connection, until).await?;
        Ok(first.map(|due| (0, due)).into_iter().collect())
    }

    fn expects_more(&self, rows: &[Claimed<EventRow>], limit: usize) -> bool {
        let state = self.state();
        // While nobody answers, one claim per poll is enough to find out.
        let more = rows.len() >= limit || (!rows.is_empty() && state.more_keys);
        !state.is_deserted() && (more || self.watermark.owes_a_claim())
    }

    /// A later claim may have passed over events of the same key while these were on their way. What
    /// came since then has rung.
    fn frees_others(&self, done: &[(Fence, Published)]) -> bool {
        let last = self.state().claims;
        let mut claims = done.iter().filter_map(|(_, published)| published.claim);
        claims.any(|claim| claim < last)
    }

    async fn run(&self, unit: Vec<Claimed<EventRow>>) -> Vec<(Fence, Outcome<Published>)> {
        let began = Instant::now();
        let before = self.state().highest.clone();
        let (unit, torn) = Self::without_the_torn(unit);
        let (mut unit, mut ended) = self.without_the_hopeless(unit);
        ended.extend(torn);
        let messages: Vec<Message> = unit.iter_mut().map(|row| self.message(row)).collect();
        let subjects: Vec<Arc<str>> = messages.iter().map(|m| Arc::clone(&m.subject)).collect();
        let span = self.span(&messages);
        let results = self.bus.publish(messages).instrument(span).await;
        crash_point("outbox.published");
        self.note_reachable(&subjects, &results);
        let published: Vec<Position> = results.iter().flatten().cloned().collect();
        self.note(&published, &before);
        let delay = metrics::histogram!(PUBLISH_DELAY, "worker" => self.settings.name.clone());
        let took = began.elapsed().as_secs_f64();
        let told = unit.iter().zip(&subjects).zip(results);
        ended.extend(told.map(|((row, subject), result)| {
            if result.is_ok() {
                delay.record(row.row.age + took);
            }
            (row.fence, self.outcome(row, subject, result))
        }));
        ended
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
