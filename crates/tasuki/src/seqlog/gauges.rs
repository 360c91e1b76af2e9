//! How far a log and its consumers are, as metrics.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use sqlx::PgPool;
use tokio::time::{Instant, timeout};

use super::store::Behind;
use super::{Head, Log};
use crate::transaction::{self, Limits};
use crate::worker::{Error, Tick, Worker};

/// Rows that a consumer has before it. Alert `seqlog-backlog`: grows for ten minutes.
const BACKLOG: &str = "tasuki_seqlog_backlog_rows";
/// Age of the first of them; where it is gone, since when the consumer stands before it. Alert `seqlog-lag`: above 60 s for a minute.
const OLDEST_UNREAD_AGE: &str = "tasuki_seqlog_oldest_unread_age_seconds";
/// 1 for a consumer whose next row is gone: it stands still until it is rebuilt. Alert `seqlog-too-far-behind`: above 0.
const TOO_FAR_BEHIND: &str = "tasuki_seqlog_too_far_behind";
/// Rows that are committed and have no number yet, counted up to ten thousand. No alert; explains the
/// next.
const UNNUMBERED: &str = "tasuki_seqlog_unnumbered_rows";
/// How long ago the transaction of the first of them began. Alert `seqlog-unnumbered`: above 30 s for a
/// minute: is there a sequencer?
const OLDEST_UNNUMBERED_AGE: &str = "tasuki_seqlog_oldest_unnumbered_age_seconds";
/// The highest number given. No alert; its rate is what comes in.
const HEAD: &str = "tasuki_seqlog_head_seq";

/// How often the database is asked, unless [`Gauges::every`] says otherwise.
const EVERY: Duration = Duration::from_secs(5);
/// A read that takes longer is no answer.
const LIMIT: Duration = Duration::from_secs(30);
/// A read that took a second is followed by twenty without one.
const SHARE: u32 = 20;

/// Sets the gauges of one log every five seconds, by `schema` and `log`. One process is enough; several
/// agree.
///
/// | metric | labels | alert |
/// | --- | --- | --- |
/// | `tasuki_seqlog_backlog_rows` | `consumer` | `seqlog-backlog`: grows for ten minutes |
/// | `tasuki_seqlog_oldest_unread_age_seconds` | `consumer` | `seqlog-lag`: above 60 |
/// | `tasuki_seqlog_too_far_behind` | `consumer` | `seqlog-too-far-behind`: above 0 |
/// | `tasuki_seqlog_unnumbered_rows` | | |
/// | `tasuki_seqlog_oldest_unnumbered_age_seconds` | | `seqlog-unnumbered`: above 30 |
/// | `tasuki_seqlog_head_seq` | | |
///
/// After a failed read each of them is NaN until the next one succeeds.
#[derive(Debug)]
pub struct Gauges {
    name: String,
    log: Log,
    pool: PgPool,
    every: Duration,
    known: Mutex<BTreeSet<String>>,
    next: Mutex<Instant>,
}

/// Everything that one read brings.
struct Reading {
    head: Head,
    waiting: (i64, f64),
    behind: Vec<Behind>,
}

impl Gauges {
    pub(super) fn new(log: Log, name: &str, pool: PgPool) -> Self {
        Self {
            name: name.to_owned(),
            log,
            pool,
            every: EVERY,
            known: Mutex::default(),
            next: Mutex::new(Instant::now()),
        }
    }

    /// Reads this often.
    #[must_use]
    pub const fn every(mut self, every: Duration) -> Self {
        self.every = every;
        self
    }

    async fn read(&self) -> Result<Reading, Error> {
        // Nothing is written: the end of it may be a roll back on the way to the pool.
        let limits = Limits {
            idle: LIMIT,
            statement: LIMIT,
            lock: None,
        };
        let mut tx = transaction::begin_within(&self.pool, &limits).await?;
        let store = &self.log.store;
        Ok(Reading {
            head: self.log.head(&mut tx).await?,
            waiting: store.waiting(&mut tx).await?,
            behind: store.behind(&mut tx).await?,
        })
    }

    #[expect(
        clippy::cast_precision_loss,
        reason = "a gauge is a float; counts below 2^53 are exact"
    )]
    fn show(&self, reading: &Reading) {
        let (waiting, oldest) = reading.waiting;
        self.set(UNNUMBERED, waiting as f64);
        self.set(OLDEST_UNNUMBERED_AGE, oldest);
        self.set(HEAD, reading.head.last_seq as f64);
        let names = reading.behind.iter().map(|behind| behind.consumer.clone());
        let mut known = self.known();
        known.extend(names);
        for name in &*known {
            let behind = reading.behind.iter().find(|it| it.consumer == *name);
            let values = behind.map_or([0.0; 3], |behind| {
                let backlog = behind.backlog.max(0) as f64;
                [
                    backlog,
                    behind.oldest_seconds,
                    f64::from(u8::from(behind.is_too_far)),
                ]
            });
            self.set_consumer(name, values);
        }
    }

    /// Takes back what was said: nobody knows any more.
    fn withdraw(&self) {
        for metric in [UNNUMBERED, OLDEST_UNNUMBERED_AGE, HEAD] {
            self.set(metric, f64::NAN);
        }
        for name in &*self.known() {
            self.set_consumer(name, [f64::NAN; 3]);
        }
    }

    fn set(&self, metric: &'static str, value: f64) {
        let (schema, log) = (self.log.schema.to_string(), self.log.name());
        metrics::gauge!(metric, "schema" => schema, "log" => log).set(value);
    }

    fn set_consumer(&self, consumer: &str, values: [f64; 3]) {
        let metrics = [BACKLOG, OLDEST_UNREAD_AGE, TOO_FAR_BEHIND];
        for (metric, value) in metrics.into_iter().zip(values) {
            let (schema, log) = (self.log.schema.to_string(), self.log.name());
            let consumer = consumer.to_owned();
            metrics::gauge!(metric, "schema" => schema, "log" => log, "consumer" => consumer)
                .set(value);
        }
    }

    fn known(&self) -> std::sync::MutexGuard<'_, BTreeSet<String>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn next(&self) -> std::sync::MutexGuard<'_, Instant> {
        self.next.lock().unwrap_or_else(PoisonError::into_inner)
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
        let read = timeout(LIMIT, self.read()).await;
        *self.next() = Instant::now() + (began.elapsed() * SHARE).min(4 * EVERY);
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
