//! The commands that wait, in the order in which they came.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, TryAcquireError, oneshot};
use tokio::time::{Instant, timeout};
use tracing::Span;

use super::{Error, Group, Outcome};

pub(super) struct Queue<G: Group> {
    places: Arc<Semaphore>,
    state: Mutex<State<G>>,
}

struct State<G: Group> {
    waiting: VecDeque<(Waiting<G>, Place)>,
    closed: bool,
    runners: usize,
}

/// A command and whoever waits for it.
pub(super) struct Waiting<G: Group> {
    pub(super) command: G::Command,
    pub(super) caller: Caller<G>,
}

/// Whoever waits for a command.
pub(super) struct Caller<G: Group> {
    pub(super) reply: oneshot::Sender<Outcome<G>>,
    pub(super) since: Instant,
    pub(super) span: Span,
}

/// A place in the queue. Free again when the command is taken.
pub(super) struct Place(#[expect(dead_code, reason = "held, not read")] OwnedSemaphorePermit);

/// Why a command did not get in.
#[derive(Clone, Copy, Debug)]
pub(super) enum Turned {
    Overloaded,
    Stopped,
}

impl<G: Group> Queue<G> {
    pub(super) fn new(places: usize) -> Self {
        Self {
            places: Arc::new(Semaphore::new(places)),
            state: Mutex::new(State {
                waiting: VecDeque::new(),
                closed: false,
                runners: 0,
            }),
        }
    }

    /// Waits for a place, first come, first served.
    pub(super) async fn admit(&self, wait: Duration) -> Result<Place, Turned> {
        let places = Arc::clone(&self.places);
        if wait.is_zero() {
            // A timer would round up, and wait for it.
            return match places.try_acquire_owned() {
                Ok(permit) => Ok(Place(permit)),
                Err(TryAcquireError::NoPermits) => Err(Turned::Overloaded),
                Err(TryAcquireError::Closed) => Err(Turned::Stopped),
            };
        }
        match timeout(wait, places.acquire_owned()).await {
            Ok(Ok(permit)) => Ok(Place(permit)),
            Ok(Err(_closed)) => Err(Turned::Stopped),
            Err(_elapsed) => Err(Turned::Overloaded),
        }
    }

    pub(super) fn push(
        &self,
        place: Place,
        command: G::Command,
    ) -> Result<oneshot::Receiver<Outcome<G>>, Turned> {
        let (reply, answer) = oneshot::channel();
        let caller = Caller {
            reply,
            since: Instant::now(),
            span: Span::current(),
        };
        let mut state = self.lock();
        if state.closed {
            return Err(Turned::Stopped);
        }
        state
            .waiting
            .push_back((Waiting { command, caller }, place));
        Ok(answer)
    }

    /// Up to `max` commands that somebody still waits for.
    pub(super) fn take(&self, max: usize) -> Vec<Waiting<G>> {
        let mut state = self.lock();
        let mut taken = Vec::with_capacity(max.min(state.waiting.len()));
        while taken.len() < max {
            let Some((waiting, _place)) = state.waiting.pop_front() else {
                break;
            };
            if !waiting.caller.reply.is_closed() {
                taken.push(waiting);
            }
        }
        taken
    }

    pub(super) fn len(&self) -> usize {
        self.lock().waiting.len()
    }

    /// Lets nobody in any more.
    pub(super) fn close(&self) {
        self.lock().closed = true;
        self.places.close();
    }

    pub(super) fn runner_began(&self) {
        self.lock().runners += 1;
    }

    /// Without its last runner nobody would ever answer: whoever still waits is told.
    pub(super) fn runner_ended(&self) {
        let mut state = self.lock();
        state.runners = state.runners.saturating_sub(1);
        if state.runners > 0 {
            return;
        }
        state.closed = true;
        let left = std::mem::take(&mut state.waiting);
        drop(state);
        self.places.close();
        for (waiting, _place) in left {
            // Whoever has gone does not need to know.
            waiting
                .caller
                .reply
                .send(Err(Error::Stopped))
                .unwrap_or_default();
        }
    }

    fn lock(&self) -> MutexGuard<'_, State<G>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<E: std::error::Error + 'static> From<Turned> for Error<E> {
    fn from(turned: Turned) -> Self {
        match turned {
            Turned::Overloaded => Self::Overloaded,
            Turned::Stopped => Self::Stopped,
        }
    }
}
