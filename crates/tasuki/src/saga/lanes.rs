//! Where a move is made: with all others, or in a transaction of its own.
//!
//! Few have one of their own at a time, in two lanes. Those that take long must not wait behind those
//! that a hot row holds up; and who is held up, and waits for its turn, tries it with the others again
//! now and then: what holds up those in front may be none of its business.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::timeout;

use super::drive::Live;
use super::engine::Inner;
use super::failure::Hindrance;
use super::journal::{LocalStep, Made, Move, Moved, Then};
use super::trouble::Trouble;

/// Moves that have a transaction of their own at the same time, in each lane.
pub(super) const WIDTH: usize = 4;
/// How long one that is held up waits for its turn before it tries with the others again; doubled
/// each time.
const TURN: Duration = Duration::from_millis(250);
/// And at most.
const LONGEST_TURN: Duration = Duration::from_secs(10);

/// The transactions of those that want one of their own.
pub(super) struct Lanes {
    slow: Semaphore,
    held_up: Semaphore,
}

impl Lanes {
    pub(super) const fn new() -> Self {
        Self {
            slow: Semaphore::const_new(WIDTH),
            held_up: Semaphore::const_new(WIDTH),
        }
    }

    /// A turn. `None`: not within `patience`, but it may go with the others again.
    async fn turn(
        &self,
        why: Hindrance,
        patience: Duration,
    ) -> Result<Option<SemaphorePermit<'_>>, Trouble> {
        let turn = match why {
            Hindrance::Slow => Ok(self.slow.acquire().await),
            Hindrance::HeldUp => timeout(patience, self.held_up.acquire()).await,
        };
        match turn {
            Ok(Ok(turn)) => Ok(Some(turn)),
            Ok(Err(_closed)) => Err(Trouble::Stopped),
            Err(_elapsed) => Ok(None),
        }
    }
}

impl Inner {
    /// Has a move made, with others or alone.
    pub(super) async fn try_to(
        &self,
        live: &Live,
        step: Option<&LocalStep>,
        then: Then,
    ) -> Result<Box<Moved>, Trouble> {
        let one = || Move {
            place: live.place,
            declared: Arc::clone(&live.declared),
            birth: live.birth.clone(),
            unheard: AtomicBool::new(false),
            story: live.story.clone(),
            step: step.map(LocalStep::again),
            heard: live.has_heard(),
            then,
        };
        let mut patience = TURN;
        loop {
            let why = match self.batcher.submit(one()).await? {
                Made::Moved(moved) => return Ok(moved),
                // Its batch had no time for it, and has moved others.
                Made::Later => continue,
                Made::Alone(why) => why,
            };
            let Some(_turn) = self.lanes.turn(why, patience).await? else {
                patience = (patience * 2).min(LONGEST_TURN);
                continue;
            };
            match self.journal.alone(&one()).await {
                Ok(Made::Moved(moved)) => return Ok(moved),
                Ok(Made::Alone(_) | Made::Later) => return Err(Trouble::Stale),
                // Whoever has locked it will let it go, and nobody else can have it until then.
                Err(error) if error.is_held_up() => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}
