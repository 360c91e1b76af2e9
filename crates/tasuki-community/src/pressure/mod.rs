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
use std::sync::{Arc, PoisonError, RwLock};

use time::OffsetDateTime;

use crate::config;
pub(crate) use look::Look;
pub(crate) use step::Step;

/// The step that is taken: 0 to 4. Alert `community-pressure`: 2 or more for ten minutes.
const STEP: &str = "tasuki_community_pressure_step";

/// Rows that a consumer handles together while nobody is behind.
const BATCH: u32 = 500;

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
    batch: Arc<AtomicU32>,
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
            batch: Arc::new(AtomicU32::new(BATCH)),
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

    /// How many rows consumers handle together, as it changes.
    pub(crate) fn batch(&self) -> Arc<AtomicU32> {
        Arc::clone(&self.batch)
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
        let rows = match step {
            Step::None => BATCH,
            _ => self.settings.batch,
        };
        self.batch.store(rows, Ordering::Relaxed);
        metrics::gauge!(STEP).set(f64::from(step.number()));
        let state = State { step, since, seen };
        *self.state.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(state);
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
        let batch = pressure.batch();
        for (backlog, rows, step) in [(9, 500, 0), (10, 2_000, 1), (5, 2_000, 1), (4, 500, 0)] {
            let seen = Seen {
                backlog,
                ..Seen::default()
            };
            pressure.learn(seen, later);
            assert_eq!(batch.load(Ordering::Relaxed), rows, "{backlog}");
            assert_eq!(pressure.step().number(), step, "{backlog}");
        }
        assert_eq!(pressure.state().since, later);
    }
}
