//! A circuit per endpoint: one that is down costs us a request now and then, not a queue of
//! workers that wait for its timeout.
//!
//! An endpoint has a few places for deliveries that run at the same time. After some failures in
//! a row its circuit opens: nothing is sent during a pause that doubles each time. Then it is
//! half-open: one delivery at a time may try, and its success closes the circuit.
//!
//! Invariant: a place is taken exactly as long as its [`Pass`] lives, whatever ends it.
//!
//! This holds for one process and is lost with it: two processes try a broken endpoint twice as
//! often, and a new one begins with closed circuits. When a delivery is due is not decided here.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;
use uuid::Uuid;

/// How long to wait for a place: nobody knows when one becomes free.
const A_MOMENT: Duration = Duration::from_secs(1);

/// The longest pause, whatever the limits say.
const A_DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// How long failures are remembered of an endpoint that nothing is sent to, such as one that is
/// gone.
const MEMORY: Duration = Duration::from_secs(60 * 60);

/// When an endpoint is left alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    /// Deliveries to one endpoint at the same time; 0 counts as 1.
    pub(crate) concurrent: usize,
    /// Failures in a row that open the circuit; 0 counts as 1.
    pub(crate) failures: u32,
    /// How long it stays open the first time.
    pub(crate) first_pause: Duration,
    /// What the pause doubles up to, and at most a day.
    pub(crate) longest_pause: Duration,
}

impl Default for Limits {
    /// 4 at a time; 5 failures open for 10 s, doubled up to 5 min.
    fn default() -> Self {
        Self {
            concurrent: 4,
            failures: 5,
            first_pause: Duration::from_secs(10),
            longest_pause: Duration::from_secs(5 * 60),
        }
    }
}

/// Why nothing is sent to an endpoint now. It is no failure of the delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Busy {
    /// It has failed too often.
    #[error("the endpoint has failed too often in a row and is left alone for a while")]
    Open { until: Instant },
    /// All its places are taken; while half-open it has just one.
    #[error("the endpoint has as many deliveries running as it may")]
    Full,
}

impl Busy {
    /// How long to wait before asking again.
    pub(crate) fn wait(self) -> Duration {
        match self {
            Self::Open { until } => until.saturating_duration_since(Instant::now()),
            Self::Full => A_MOMENT,
        }
    }
}

/// The circuits of all endpoints. A clone is the same circuits.
#[derive(Clone, Debug)]
pub(crate) struct Circuits {
    limits: Limits,
    state: Arc<Mutex<State>>,
}

#[derive(Debug)]
struct State {
    /// Those with something to remember: whoever is closed, idle and without failures is not
    /// here.
    endpoints: HashMap<Uuid, Endpoint>,
    swept: Instant,
}

#[derive(Debug)]
struct Endpoint {
    running: usize,
    /// In a row.
    failures: u32,
    open: Option<Open>,
    touched: Instant,
}

/// Open until then, and half-open afterwards.
#[derive(Debug)]
struct Open {
    until: Instant,
    pause: Duration,
    is_tried: bool,
}

#[derive(Clone, Copy, Debug)]
enum Outcome {
    Succeeded,
    Failed,
    /// The pass was dropped before the attempt had ended.
    Unknown,
}

impl Circuits {
    pub(crate) fn new(limits: Limits) -> Self {
        let state = State {
            endpoints: HashMap::new(),
            swept: Instant::now(),
        };
        Self {
            limits,
            state: Arc::new(Mutex::new(state)),
        }
    }

    /// A place for one attempt at the endpoint, or why there is none.
    pub(crate) fn enter(&self, endpoint: Uuid) -> Result<Pass, Busy> {
        let now = Instant::now();
        let mut state = self.lock();
        state.sweep(now);
        let known = state.endpoints.entry(endpoint);
        let is_trial = known
            .or_insert_with(|| Endpoint::new(now))
            .admit(&self.limits, now)?;
        Ok(Pass {
            circuits: self.clone(),
            endpoint,
            is_trial,
            outcome: Outcome::Unknown,
        })
    }

    fn leave(&self, pass: &Pass) {
        let now = Instant::now();
        let mut state = self.lock();
        let Some(endpoint) = state.endpoints.get_mut(&pass.endpoint) else {
            return;
        };
        endpoint.settle(&self.limits, pass, now);
        if endpoint.is_forgettable() {
            state.endpoints.remove(&pass.endpoint);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Forgets endpoints that failed and were never tried again: without this, those that are
    /// deleted in trouble would stay for ever.
    fn sweep(&mut self, now: Instant) {
        if now.saturating_duration_since(self.swept) < MEMORY {
            return;
        }
        self.swept = now;
        self.endpoints.retain(|_, endpoint| !endpoint.is_stale(now));
    }
}

impl Endpoint {
    fn new(now: Instant) -> Self {
        Self {
            running: 0,
            failures: 0,
            open: None,
            touched: now,
        }
    }

    /// Takes a place, and says whether it is the one of a half-open circuit.
    fn admit(&mut self, limits: &Limits, now: Instant) -> Result<bool, Busy> {
        let is_trial = match &mut self.open {
            Some(open) if now < open.until => return Err(Busy::Open { until: open.until }),
            Some(open) if open.is_tried => return Err(Busy::Full),
            Some(open) => {
                open.is_tried = true;
                true
            }
            None if self.running >= limits.concurrent.max(1) => return Err(Busy::Full),
            None => false,
        };
        self.running = self.running.saturating_add(1);
        self.touched = now;
        Ok(is_trial)
    }

    fn settle(&mut self, limits: &Limits, pass: &Pass, now: Instant) {
        self.running = self.running.saturating_sub(1);
        self.touched = now;
        // What began before the circuit opened says nothing about how the endpoint is now: only
        // a trial closes the circuit, or makes its pause longer.
        if self.open.is_some() && !pass.is_trial {
            return;
        }
        match pass.outcome {
            Outcome::Succeeded => {
                self.failures = 0;
                self.open = None;
            }
            Outcome::Failed => self.fail(limits, now),
            Outcome::Unknown => {
                if let Some(open) = &mut self.open {
                    open.is_tried = false;
                }
            }
        }
    }

    fn fail(&mut self, limits: &Limits, now: Instant) {
        self.failures = self.failures.saturating_add(1);
        let pause = match &self.open {
            Some(open) => open.pause.saturating_mul(2),
            None if self.failures >= limits.failures.max(1) => limits.first_pause,
            None => return,
        };
        let pause = pause.min(limits.longest_pause).min(A_DAY);
        self.open = Some(Open {
            until: now + pause,
            pause,
            is_tried: false,
        });
    }

    /// Whether a new entry would say the same.
    fn is_forgettable(&self) -> bool {
        self.running == 0 && self.failures == 0 && self.open.is_none()
    }

    fn is_stale(&self, now: Instant) -> bool {
        let is_open = self.open.as_ref().is_some_and(|open| now < open.until);
        self.running == 0 && !is_open && now.saturating_duration_since(self.touched) >= MEMORY
    }
}

/// A place at an endpoint, free again when this is dropped. Whoever holds it says how the
/// attempt ended; an attempt that is cut short has said nothing, and counts as nothing.
#[derive(Debug)]
#[must_use = "the place is free again when the pass is dropped"]
pub(crate) struct Pass {
    circuits: Circuits,
    endpoint: Uuid,
    is_trial: bool,
    outcome: Outcome,
}

impl Pass {
    /// The endpoint works.
    pub(crate) fn succeeded(mut self) {
        self.outcome = Outcome::Succeeded;
    }

    /// The endpoint is in trouble.
    pub(crate) fn failed(mut self) {
        self.outcome = Outcome::Failed;
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        self.circuits.leave(self);
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    const A: Uuid = Uuid::from_u128(1);
    const B: Uuid = Uuid::from_u128(2);

    fn circuits() -> Circuits {
        Circuits::new(Limits::default())
    }

    const fn secs(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn fail(circuits: &Circuits, times: u32) {
        for _ in 0..times {
            circuits.enter(A).unwrap().failed();
        }
    }

    fn known(circuits: &Circuits) -> usize {
        circuits.lock().endpoints.len()
    }

    #[tokio::test(start_paused = true)]
    async fn a_place_is_free_again_when_its_pass_is_gone() {
        let circuits = circuits();
        let mut passes: Vec<Pass> = (0..4).map(|_| circuits.enter(A).unwrap()).collect();
        let full = circuits.enter(A).unwrap_err();
        assert_eq!((full, full.wait()), (Busy::Full, A_MOMENT));
        let other = circuits.enter(B).unwrap();
        drop(passes.pop());
        assert!(circuits.enter(A).is_ok());
        drop((passes, other));
        assert_eq!(known(&circuits), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn failures_in_a_row_open_the_circuit_and_only_in_a_row() {
        let circuits = circuits();
        fail(&circuits, 4);
        circuits.enter(A).unwrap().succeeded();
        assert_eq!(known(&circuits), 0);
        fail(&circuits, 5);
        let until = Instant::now() + secs(10);
        let busy = circuits.enter(A).unwrap_err();
        assert_eq!((busy, busy.wait()), (Busy::Open { until }, secs(10)));
        assert!(circuits.enter(B).is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn each_failed_trial_doubles_the_pause_up_to_the_longest() {
        let circuits = circuits();
        fail(&circuits, 5);
        for pause in [10, 20, 40, 80, 160, 300, 300] {
            assert_eq!(circuits.enter(A).unwrap_err().wait(), secs(pause));
            advance(secs(pause)).await;
            fail(&circuits, 1);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn half_open_lets_one_try_at_a_time_and_success_closes() {
        let circuits = circuits();
        fail(&circuits, 5);
        advance(secs(10)).await;
        let trial = circuits.enter(A).unwrap();
        assert_eq!(circuits.enter(A).unwrap_err(), Busy::Full);
        trial.succeeded();
        assert_eq!(known(&circuits), 0);
        fail(&circuits, 5);
        let busy = circuits.enter(A).unwrap_err();
        assert_eq!(busy.wait(), secs(10), "the pause begins anew");
    }

    #[tokio::test(start_paused = true)]
    async fn a_trial_that_is_cut_short_leaves_the_next_one_its_turn() {
        let circuits = circuits();
        fail(&circuits, 5);
        advance(secs(10)).await;
        drop(circuits.enter(A).unwrap());
        let trial = circuits.enter(A).unwrap();
        assert_eq!(circuits.enter(A).unwrap_err(), Busy::Full);
        drop(trial);
    }

    #[tokio::test(start_paused = true)]
    async fn what_began_before_the_circuit_opened_neither_closes_it_nor_prolongs_it() {
        let circuits = circuits();
        let (early, late) = (circuits.enter(A).unwrap(), circuits.enter(A).unwrap());
        fail(&circuits, 5);
        early.succeeded();
        assert_eq!(circuits.enter(A).unwrap_err().wait(), secs(10));
        advance(secs(10)).await;
        let trial = circuits.enter(A).unwrap();
        late.failed();
        assert_eq!(circuits.enter(A).unwrap_err(), Busy::Full);
        trial.succeeded();
        assert_eq!(known(&circuits), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn an_endpoint_that_is_never_tried_again_is_forgotten() {
        let circuits = circuits();
        fail(&circuits, 5);
        assert_eq!(known(&circuits), 1);
        advance(MEMORY).await;
        let other = circuits.enter(B).unwrap();
        assert_eq!(known(&circuits), 1);
        other.succeeded();
        assert_eq!(known(&circuits), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn odd_limits_neither_block_for_ever_nor_overflow() {
        let circuits = Circuits::new(Limits {
            concurrent: 0,
            failures: 0,
            first_pause: Duration::MAX,
            longest_pause: Duration::MAX,
        });
        circuits.enter(A).unwrap().failed();
        assert_eq!(circuits.enter(A).unwrap_err().wait(), A_DAY);
        advance(A_DAY).await;
        circuits.enter(A).unwrap().failed();
        assert_eq!(circuits.enter(A).unwrap_err().wait(), A_DAY);
    }
}
