//! What is held back while consumers are behind: more with every step, and less again by itself.
//!
//! Every process looks once a second at how many rows the slowest consumer has before it, and goes up or
//! down by one step. A step is left well below the number at which it was taken, so nobody flickers
//! between two. A consumer that stands still until it is rebuilt does not count: holding others back would
//! not help it.

mod look;
mod step;

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use time::OffsetDateTime;

use crate::config;
pub(crate) use look::Look;
pub(crate) use step::Step;

/// The step that is taken: 0 to 4. Alert `community-pressure`: 2 or more for ten minutes.
const STEP: &str = "tasuki_community_pressure_step";

/// How many rows a consumer handles together while nobody is behind, and at most, whatever is configured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rows {
    pub(crate) usual: u32,
    pub(crate) most: u32,
}

/// For whoever has no reason for another number.
pub(crate) const BATCH: Rows = Rows {
    usual: 500,
    most: u32::MAX,
};

/// Of each consumer, as it is now.
type Batches = Vec<(Rows, Arc<AtomicU32>)>;

/// What was seen.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen {
    /// Rows before each consumer, those without a number among them.
    pub(crate) consumers: Vec<(String, u64)>,
    /// Rows before the slowest of them.
    pub(crate) backlog: u64,
    /// Of those, how many each topic has that has a capacity.
    pub(crate) waiting: HashMap<String, i64>,
}

/// What is known, and what is done about it.
#[derive(Clone, Debug)]
pub(crate) struct State {
    pub(crate) step: Step,
    pub(crate) since: OffsetDateTime,
    pub(crate) seen: Seen,
}

/// How far this process is. Clones are the same.
#[derive(Clone, Debug)]
pub(crate) struct Pressure {
    state: Arc<RwLock<Arc<State>>>,
    batches: Arc<Mutex<Batches>>,
    settings: config::Pressure,
}

impl Pressure {
    pub(crate) fn new(settings: config::Pressure, now: OffsetDateTime) -> Self {
        let state = State {
            step: Step::None,
            since: now,
            seen: Seen::default(),
        };
        Self {
            state: Arc::new(RwLock::new(Arc::new(state))),
            batches: Arc::default(),
            settings,
        }
    }

    pub(crate) fn state(&self) -> Arc<State> {
        Arc::clone(&self.state.read().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn step(&self) -> Step {
        self.state().step
    }

    pub(crate) const fn settings(&self) -> &config::Pressure {
        &self.settings
    }

    /// How many rows a consumer handles together, as it changes.
    pub(crate) fn batch(&self, rows: Rows) -> Arc<AtomicU32> {
        let mut batches = self.batches.lock().unwrap_or_else(PoisonError::into_inner);
        let batch = Arc::new(AtomicU32::new(self.rows(rows)));
        batches.push((rows, Arc::clone(&batch)));
        batch
    }

    fn rows(&self, rows: Rows) -> u32 {
        match self.step() {
            Step::None => rows.usual,
            _ => self.settings.batch.min(rows.most),
        }
    }

    /// Goes where `seen` leads.
    fn learn(&self, seen: Seen, now: OffsetDateTime) {
        let before = self.state();
        let step = before.step.next(seen.backlog, &self.settings);
        if step != before.step {
            tracing::warn!(
                step = step.number(),
                before = before.step.number(),
                backlog = seen.backlog,
                held_back = step.as_str(),
                "what is held back has changed",
            );
        }
        let since = if step == before.step {
            before.since
        } else {
            now
        };
        metrics::gauge!(STEP).set(f64::from(step.number()));
        let state = State { step, since, seen };
        *self.state.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(state);
        let batches = self.batches.lock().unwrap_or_else(PoisonError::into_inner);
        for (rows, batch) in batches.iter() {
            batch.store(self.rows(*rows), Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn consumers_handle_more_together_while_they_are_behind() {
        let settings = config::Pressure {
            batches_at: 10,
            backfill_at: 20,
            low_at: 30,
            slow_at: 40,
            release: 50,
            batch: 2_000,
            backfill_age: Duration::from_secs(60),
            events_per_minute: 60,
        };
        let (begin, later) = (
            OffsetDateTime::UNIX_EPOCH,
            OffsetDateTime::UNIX_EPOCH + Duration::from_secs(9),
        );
        let pressure = Pressure::new(settings, begin);
        let few = Rows {
            usual: 100,
            most: 400,
        };
        let batches = [pressure.batch(BATCH), pressure.batch(few)];
        for (backlog, rows, step) in [
            (9, [500, 100], 0),
            (10, [2_000, 400], 1),
            (5, [2_000, 400], 1),
            (4, [500, 100], 0),
        ] {
            let seen = Seen {
                backlog,
                ..Seen::default()
            };
            pressure.learn(seen, later);
            let now = batches.each_ref().map(|it| it.load(Ordering::Relaxed));
            assert_eq!(now, rows, "{backlog}");
            assert_eq!(pressure.step().number(), step, "{backlog}");
        }
        assert_eq!(pressure.state().since, later);
    }
}
