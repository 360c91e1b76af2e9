//! How a worker is: what the status page, the console and the metrics say of it.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use time::OffsetDateTime;
use tokio::time::Instant;

use super::{Error, Tick};
use crate::Clock;

/// Ticks by worker and outcome (`worked`, `idle`, `failed`, `panicked`).
const TICKS_TOTAL: &str = "tasuki_worker_ticks_total";
/// How long ticks took, by worker.
const TICK_SECONDS: &str = "tasuki_worker_tick_seconds";
/// When the last tick ended, as seconds since 1970, by worker.
const LAST_TICK_TIMESTAMP: &str = "tasuki_worker_last_tick_timestamp_seconds";

/// How a tick ended.
#[derive(Debug)]
#[non_exhaustive]
pub enum Outcome {
    /// It ran to its end.
    Ok(Tick),
    /// It returned an error.
    Failed(Error),
    /// It panicked with this message.
    Panicked(String),
}

impl Outcome {
    fn as_str(&self) -> &'static str {
        match self {
            Self::Ok(Tick::Worked) => "worked",
            Self::Ok(Tick::Idle) => "idle",
            Self::Failed(_) => "failed",
            Self::Panicked(_) => "panicked",
        }
    }
}

/// What a worker is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum State {
    /// Between ticks.
    Waiting,
    /// In a tick.
    Running,
    /// In a tick that takes longer than the worker said it would.
    Stalled,
    /// Waiting after a failure or a panic.
    BackingOff,
    /// It will not tick again.
    Stopped,
}

impl State {
    /// The state in lower case, as the status page shows it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Running => "running",
            Self::Stalled => "stalled",
            Self::BackingOff => "backing_off",
            Self::Stopped => "stopped",
        }
    }
}

/// A worker at one moment.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Health {
    /// Its name.
    pub name: String,
    /// What it is doing.
    pub state: State,
    /// Ticks that ended, however they did.
    pub ticks: u64,
    /// Ticks that returned an error.
    pub failures: u64,
    /// Ticks that panicked.
    pub panics: u64,
    /// When the last tick ended.
    pub last_tick_at: Option<OffsetDateTime>,
    /// How long it took.
    pub last_tick_took: Option<Duration>,
    /// The error of the last tick, if that failed.
    pub last_error: Option<String>,
}

/// The live record behind [`Health`], shared by the loop that writes and whoever asks.
#[derive(Clone, Debug)]
pub(super) struct Record {
    clock: Clock,
    stall_after: Duration,
    inner: Arc<Mutex<Inner>>,
}

#[derive(Debug)]
struct Inner {
    health: Health,
    tick_began: Option<Instant>,
}

impl Record {
    pub(super) fn new(clock: Clock, name: &str, stall_after: Duration) -> Self {
        let health = Health {
            name: name.to_owned(),
            state: State::Waiting,
            ticks: 0,
            failures: 0,
            panics: 0,
            last_tick_at: None,
            last_tick_took: None,
            last_error: None,
        };
        Self {
            clock,
            stall_after,
            inner: Arc::new(Mutex::new(Inner {
                health,
                tick_began: None,
            })),
        }
    }

    pub(super) fn read(&self) -> Health {
        let inner = self.lock();
        let mut health = inner.health.clone();
        if inner
            .tick_began
            .is_some_and(|began| began.elapsed() > self.stall_after)
        {
            health.state = State::Stalled;
        }
        health
    }

    pub(super) fn tick_begins(&self) {
        let mut inner = self.lock();
        inner.health.state = State::Running;
        inner.tick_began = Some(Instant::now());
    }

    pub(super) fn tick_ended(&self, outcome: &Outcome) {
        let mut inner = self.lock();
        let took = inner.tick_began.take().map(|began| began.elapsed());
        let now = self.clock.now();
        let health = &mut inner.health;
        health.ticks += 1;
        health.last_tick_at = Some(now);
        health.last_tick_took = took;
        health.last_error = None;
        health.state = State::Waiting;
        match outcome {
            Outcome::Ok(_) => {}
            Outcome::Failed(error) => {
                health.failures += 1;
                health.last_error = Some(error.to_string());
                health.state = State::BackingOff;
            }
            Outcome::Panicked(message) => {
                health.panics += 1;
                health.last_error = Some(format!("panicked: {message}"));
                health.state = State::BackingOff;
            }
        }
        let name = health.name.clone();
        drop(inner);
        self.report(name, outcome, took.unwrap_or_default());
    }

    pub(super) fn stopped(&self) {
        let mut inner = self.lock();
        inner.tick_began = None;
        inner.health.state = State::Stopped;
    }

    fn report(&self, name: String, outcome: &Outcome, took: Duration) {
        let seconds = self.clock.now().unix_timestamp_nanos() as f64 / 1e9;
        metrics::counter!(TICKS_TOTAL, "worker" => name.clone(), "outcome" => outcome.as_str())
            .increment(1);
        metrics::histogram!(TICK_SECONDS, "worker" => name.clone()).record(took.as_secs_f64());
        metrics::gauge!(LAST_TICK_TIMESTAMP, "worker" => name).set(seconds);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
