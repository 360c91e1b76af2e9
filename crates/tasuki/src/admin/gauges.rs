//! The state of the database as metrics: depth, age, and whether anybody has looked.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use sqlx::PgPool;
use tokio::time::{Instant, timeout};

use super::{Admin, OutboxStats, QueueStats, SagaStats, TwopcStats};
use crate::dlq::{Letters, Open};
use crate::transaction;
use crate::worker::{Error, Tick, Worker};
use crate::{Clock, Schema};

/// Age of the oldest event that is neither published nor dead: the first number to look at.
/// Alert `outbox-lag`: above 60 s for a minute.
const OUTBOX_OLDEST_AGE: &str = "tasuki_outbox_oldest_age_seconds";
/// Events that wait. Alert `outbox-backlog`: grows for ten minutes.
const OUTBOX_PENDING: &str = "tasuki_outbox_pending_rows";
/// Events that are claimed and not settled. No alert; explains the two above.
const OUTBOX_IN_FLIGHT: &str = "tasuki_outbox_in_flight_rows";
/// Events that are dead. Alert `outbox-failed`: above 0.
const OUTBOX_FAILED: &str = "tasuki_outbox_failed_rows";
/// The sequence number of the newest event. Alert `outbox-blind`: it grows while nothing is
/// published (`tasuki_lease_ended_total{outcome="done"}` of the relay) and nothing is pending.
const OUTBOX_ENQUEUED: &str = "tasuki_outbox_enqueued_events";
/// How long the job that is due longest has been waiting, by queue. Alert `queue-lag`: above
/// 60 s for a minute.
const QUEUE_OLDEST_DUE_AGE: &str = "tasuki_queue_oldest_due_age_seconds";
/// Jobs that wait, by queue. Alert `queue-backlog`: grows for ten minutes.
const QUEUE_WAITING: &str = "tasuki_queue_waiting_rows";
/// Jobs that are dead, by queue. No alert: `dead-letters` covers it.
const QUEUE_DEAD: &str = "tasuki_queue_dead_rows";
/// Sagas by state: `started`, `compensating`, `needs_attention`. Alert `saga-attention`: the last above
/// 0.
const SAGAS: &str = "tasuki_sagas_rows";
/// How long the saga that is due longest has been waiting. Alert `saga-lag`: above 60 s for a minute.
const SAGAS_OLDEST_DUE_AGE: &str = "tasuki_sagas_oldest_due_age_seconds";
/// Letters about which nobody has done anything, by source. Alert `dead-letters`: above 0.
const LETTERS_OPEN: &str = "tasuki_dead_letters_open_rows";
/// Age of the oldest of them, by source. Alert `dead-letters-forgotten`: above a day.
const LETTERS_OLDEST_AGE: &str = "tasuki_dead_letters_oldest_age_seconds";
/// Two-phase commits that some participant has not confirmed. No alert; explains the next.
const TWOPC_OPEN: &str = "tasuki_twopc_open_rows";
/// Age of the oldest of them. Alert `twopc-in-doubt`: above 60 s. It holds locks in participants.
const TWOPC_OLDEST_AGE: &str = "tasuki_twopc_oldest_age_seconds";
/// When the others were last read, as seconds since 1970. Alert `gauges-stale`: `time()` minus
/// this is above 30 s. Without it none of the others means anything.
const READ_TIMESTAMP: &str = "tasuki_gauges_read_timestamp_seconds";

/// How often the database is asked, unless [`Gauges::every`] says otherwise.
const EVERY: Duration = Duration::from_secs(5);
/// A read that takes longer is no answer.
const LIMIT: Duration = Duration::from_secs(30);
/// A read that took a second is followed by twenty without one. While somebody holds an old
/// snapshot, the heads of the indexes are long, and looking must not make it worse.
const SHARE: u32 = 20;
/// Not longer, though: `gauges-stale` would call somebody.
const LONGEST_PAUSE: Duration = Duration::from_secs(20);

/// Sets the gauges of one schema every five seconds. Every series has the label `schema`.
///
/// | metric | labels | alert |
/// | --- | --- | --- |
/// | `tasuki_outbox_oldest_age_seconds` | | `outbox-lag`: above 60 |
/// | `tasuki_outbox_pending_rows` | | `outbox-backlog`: grows for ten minutes |
/// | `tasuki_outbox_in_flight_rows` | | |
/// | `tasuki_outbox_failed_rows` | | `outbox-failed`: above 0 |
/// | `tasuki_outbox_enqueued_events` | | `outbox-blind`: grows while nothing is pending and nothing published |
/// | `tasuki_queue_oldest_due_age_seconds` | `queue` | `queue-lag`: above 60 |
/// | `tasuki_queue_waiting_rows` | `queue` | `queue-backlog`: grows for ten minutes |
/// | `tasuki_queue_dead_rows` | `queue` | |
/// | `tasuki_sagas_rows` | `state` | `saga-attention`: above 0 for `needs_attention` |
/// | `tasuki_sagas_oldest_due_age_seconds` | | `saga-lag`: above 60 |
/// | `tasuki_dead_letters_open_rows` | `source` | `dead-letters`: above 0 |
/// | `tasuki_dead_letters_oldest_age_seconds` | `source` | `dead-letters-forgotten`: above a day |
/// | `tasuki_twopc_open_rows` | | |
/// | `tasuki_twopc_oldest_age_seconds` | | `twopc-in-doubt`: above 60 |
/// | `tasuki_gauges_read_timestamp_seconds` | | `gauges-stale`: more than 30 s ago |
///
/// A value that could not be read is no value: after a failed read every gauge is NaN, which
/// graphs show as a gap, until the next one succeeds. NaN is above no threshold, so it fires
/// nothing; that somebody must look is what `tasuki_gauges_read_timestamp_seconds` is for,
/// which stays where it was.
///
/// One process per schema is enough; several agree.
#[derive(Debug)]
pub struct Gauges {
    name: String,
    schema: String,
    pool: PgPool,
    clock: Clock,
    admin: Admin,
    letters: Letters,
    every: Duration,
    known: Mutex<Known>,
    next: Mutex<Instant>,
}

/// The labels that have been set: a queue that has gone must not keep its last value.
#[derive(Clone, Debug, Default)]
struct Known {
    queues: BTreeSet<String>,
    sources: BTreeSet<String>,
}

/// Everything that one read brings.
struct Reading {
    outbox: OutboxStats,
    queues: Vec<QueueStats>,
    sagas: SagaStats,
    open: Vec<Open>,
    twopc: TwopcStats,
}

impl Gauges {
    /// A worker called `name` (`<service>.gauges`) for `schema`, whose dead letters are
    /// `letters`. `clock` dates the reads.
    #[must_use]
    pub fn new(name: &str, pool: PgPool, schema: &Schema, letters: &Letters, clock: Clock) -> Self {
        let sources = letters.sources().map(str::to_owned).collect();
        Self {
            name: name.to_owned(),
            schema: schema.to_string(),
            pool,
            clock,
            admin: Admin::new(schema),
            letters: letters.clone(),
            every: EVERY,
            known: Mutex::new(Known {
                queues: BTreeSet::new(),
                sources,
            }),
            next: Mutex::new(Instant::now()),
        }
    }

    /// Reads this often.
    #[must_use]
    pub fn every(mut self, every: Duration) -> Self {
        self.every = every;
        self
    }

    async fn read(&self) -> Result<Reading, Error> {
        // Nothing is written: the end of it may be a roll back on the way to the pool.
        let mut tx = transaction::begin(&self.pool).await?;
        Ok(Reading {
            outbox: self.admin.outbox(&mut tx).await?,
            queues: self.admin.queues(&mut tx).await?,
            sagas: self.admin.sagas(&mut tx).await?,
            open: self.letters.open(&mut tx).await?,
            twopc: self.admin.twopc(&mut tx).await?,
        })
    }

    fn show(&self, reading: &Reading) {
        let outbox = &reading.outbox;
        self.set(OUTBOX_OLDEST_AGE, seconds(outbox.oldest_undelivered));
        self.set(OUTBOX_PENDING, rows(outbox.pending.rows));
        self.set(OUTBOX_IN_FLIGHT, rows(outbox.in_flight));
        self.set(OUTBOX_FAILED, rows(outbox.failed));
        self.set(OUTBOX_ENQUEUED, rows(outbox.enqueued));
        self.set(TWOPC_OPEN, rows(reading.twopc.open));
        self.set(TWOPC_OLDEST_AGE, seconds(reading.twopc.oldest));
        let known = self.known_with(reading);
        for name in &known.queues {
            let queue = reading.queues.iter().find(|queue| queue.queue == *name);
            let age = queue.and_then(|queue| queue.oldest_due);
            self.set_queue(
                name,
                seconds(age),
                rows(queue.map_or(0, |queue| queue.waiting.rows)),
                rows(queue.map_or(0, |queue| queue.dead)),
            );
        }
        for source in &known.sources {
            let open = reading.open.iter().find(|open| open.source == *source);
            let age = open.map(|open| open.oldest);
            self.set_source(
                source,
                rows(open.map_or(0, |open| open.letters)),
                seconds(age),
            );
        }
        let sagas = &reading.sagas;
        self.set_sagas(
            rows(sagas.started),
            rows(sagas.compensating),
            rows(sagas.needs_attention),
        );
        self.set(SAGAS_OLDEST_DUE_AGE, seconds(sagas.oldest_due));
        let now = self.clock.now().unix_timestamp_nanos() as f64 / 1e9;
        self.set(READ_TIMESTAMP, now);
    }

    /// Takes back what was said: nobody knows any more.
    fn withdraw(&self) {
        for metric in [
            OUTBOX_OLDEST_AGE,
            OUTBOX_PENDING,
            OUTBOX_IN_FLIGHT,
            OUTBOX_FAILED,
            OUTBOX_ENQUEUED,
            TWOPC_OPEN,
            TWOPC_OLDEST_AGE,
            SAGAS_OLDEST_DUE_AGE,
        ] {
            self.set(metric, f64::NAN);
        }
        self.set_sagas(f64::NAN, f64::NAN, f64::NAN);
        let known = self.known().clone();
        for queue in &known.queues {
            self.set_queue(queue, f64::NAN, f64::NAN, f64::NAN);
        }
        for source in &known.sources {
            self.set_source(source, f64::NAN, f64::NAN);
        }
    }

    fn known_with(&self, reading: &Reading) -> Known {
        let mut known = self.known();
        let queues = reading.queues.iter().map(|queue| queue.queue.clone());
        known.queues.extend(queues);
        let sources = reading.open.iter().map(|open| open.source.clone());
        known.sources.extend(sources);
        known.clone()
    }

    fn set(&self, metric: &'static str, value: f64) {
        metrics::gauge!(metric, "schema" => self.schema.clone()).set(value);
    }

    fn set_queue(&self, queue: &str, oldest: f64, waiting: f64, dead: f64) {
        let values = [
            (QUEUE_OLDEST_DUE_AGE, oldest),
            (QUEUE_WAITING, waiting),
            (QUEUE_DEAD, dead),
        ];
        for (metric, value) in values {
            let (schema, queue) = (self.schema.clone(), queue.to_owned());
            metrics::gauge!(metric, "schema" => schema, "queue" => queue).set(value);
        }
    }

    fn set_sagas(&self, started: f64, compensating: f64, needs_attention: f64) {
        let values = [
            ("started", started),
            ("compensating", compensating),
            ("needs_attention", needs_attention),
        ];
        for (state, value) in values {
            let schema = self.schema.clone();
            metrics::gauge!(SAGAS, "schema" => schema, "state" => state).set(value);
        }
    }

    fn set_source(&self, source: &str, letters: f64, oldest: f64) {
        for (metric, value) in [(LETTERS_OPEN, letters), (LETTERS_OLDEST_AGE, oldest)] {
            let (schema, source) = (self.schema.clone(), source.to_owned());
            metrics::gauge!(metric, "schema" => schema, "source" => source).set(value);
        }
    }

    fn next(&self) -> std::sync::MutexGuard<'_, Instant> {
        self.next.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn known(&self) -> std::sync::MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Worker for Gauges {
    fn name(&self) -> &str {
        &self.name
    }

    fn poll_interval(&self) -> Duration {
        self.every
    }

    async fn tick(&self) -> Result<Tick, Error> {
        let began = Instant::now();
        if began < *self.next() {
            return Ok(Tick::Idle);
        }
        // Its own limit, within the tick's: whoever is cut there can't take anything back.
        let read = timeout(LIMIT, self.read()).await;
        *self.next() = Instant::now() + (began.elapsed() * SHARE).min(LONGEST_PAUSE);
        match read.unwrap_or_else(|late| Err(late.into())) {
            Ok(reading) => {
                self.show(&reading);
                Ok(Tick::Idle)
            }
            Err(error) => {
                self.withdraw();
                Err(error)
            }
        }
    }
}

/// Nothing waits: its age is zero.
fn seconds(age: Option<Duration>) -> f64 {
    age.unwrap_or_default().as_secs_f64()
}

#[expect(
    clippy::cast_precision_loss,
    reason = "a gauge is a float; counts below 2^53 are exact"
)]
fn rows(rows: u64) -> f64 {
    rows as f64
}
