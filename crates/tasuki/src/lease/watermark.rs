//! Where to begin looking: past what is already gone.
//!
//! A finished row leaves an entry in the index until vacuum comes by, and while somebody holds
//! an old snapshot vacuum can't: a claim that begins at the head of the index then walks over
//! every row of the last hours. So a worker remembers how far it has come and begins there.
//!
//! That place is a hint. A transaction that commits late has rows before it, and so has a
//! claim that expired; a *sweep* from the head finds them. Sweeps come every second, and less
//! often where they are dear: every ten seconds at least.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use time::OffsetDateTime;
use tokio::time::Instant;

/// How far behind the last claimed row a claim begins: rows of transactions that ran side by
/// side become visible in another order than they are due.
const MARGIN: Duration = Duration::from_millis(100);
/// How far behind the time of a claim that left nothing the next one begins: a transaction that
/// takes no longer than this from its enqueueing to its commit need not wait for a sweep.
const IDLE_MARGIN: Duration = Duration::from_secs(10);
/// The least time between two sweeps.
const SWEEP_EVERY: Duration = Duration::from_secs(1);
/// The longest time between two sweeps, however dear they are: nobody else may be there to find
/// what only they find.
const SWEEP_AT_LEAST_EVERY: Duration = Duration::from_secs(10);
/// A sweep that took a tenth of a second is followed by two seconds without one.
const SWEEP_SHARE: u32 = 20;

/// How far one worker has come, in each of its lanes (priorities, say).
#[derive(Debug)]
pub struct Watermark(Mutex<Place>);

#[derive(Debug)]
struct Place {
    lanes: Vec<OffsetDateTime>,
    sweep_at: Instant,
}

/// Where one claim begins.
#[derive(Debug)]
pub struct Start {
    /// The earliest due time to look at, per lane.
    pub from: Vec<OffsetDateTime>,
    sweep: bool,
    began: Instant,
}

impl Watermark {
    /// A worker that has seen nothing yet: its first claim is a sweep.
    #[must_use]
    pub fn new(lanes: usize) -> Self {
        Self(Mutex::new(Place {
            lanes: vec![OffsetDateTime::UNIX_EPOCH; lanes],
            sweep_at: Instant::now(),
        }))
    }

    /// Where the next claim begins.
    #[must_use]
    pub fn start(&self) -> Start {
        let place = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let began = Instant::now();
        let sweep = began >= place.sweep_at;
        let from = place.lanes.iter().map(|furthest| {
            if sweep {
                OffsetDateTime::UNIX_EPOCH
            } else {
                (*furthest - MARGIN).max(OffsetDateTime::UNIX_EPOCH)
            }
        });
        Start {
            from: from.collect(),
            sweep,
            began,
        }
    }

    /// The claim that began at `start` got rows that were due at these times, by lane; `full`
    /// when there may be more of them.
    pub fn reached(
        &self,
        start: &Start,
        full: bool,
        rows: impl IntoIterator<Item = (usize, OffsetDateTime)>,
    ) {
        let mut place = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if start.sweep {
            if full {
                // More are waiting behind these, before the place that we had come to.
                place.lanes.fill(OffsetDateTime::UNIX_EPOCH);
            }
            let share = start.began.elapsed() * SWEEP_SHARE;
            place.sweep_at = Instant::now() + share.clamp(SWEEP_EVERY, SWEEP_AT_LEAST_EVERY);
        }
        for (lane, due) in rows {
            if let Some(furthest) = place.lanes.get_mut(lane) {
                *furthest = due.max(*furthest);
            }
        }
    }

    /// A claim left nothing that was due at `now`, by the database's clock: what has been there
    /// before, and is gone, need not be walked over again, also if nothing was claimed at all.
    pub fn all_before(&self, now: OffsetDateTime) {
        let mut place = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for furthest in &mut place.lanes {
            *furthest = (*furthest).max(now - IDLE_MARGIN);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> OffsetDateTime {
        OffsetDateTime::UNIX_EPOCH + Duration::from_secs(second.unsigned_abs())
    }

    #[tokio::test(start_paused = true)]
    async fn a_claim_begins_a_little_behind_the_last_row() {
        let mark = Watermark::new(2);
        let sweep = mark.start();
        assert_eq!(sweep.from, [at(0), at(0)]);
        mark.reached(&sweep, false, [(1, at(70)), (1, at(50))]);
        assert_eq!(mark.start().from, [at(0), at(70) - MARGIN]);
    }

    #[tokio::test(start_paused = true)]
    async fn every_second_the_head_is_looked_at_again() {
        let mark = Watermark::new(1);
        mark.reached(&mark.start(), false, [(0, at(70))]);
        tokio::time::advance(SWEEP_EVERY).await;
        assert_eq!(mark.start().from, [at(0)]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_dear_sweep_is_a_rare_one() {
        let mark = Watermark::new(1);
        let sweep = mark.start();
        tokio::time::advance(Duration::from_millis(200)).await;
        mark.reached(&sweep, false, [(0, at(70))]);
        tokio::time::advance(Duration::from_secs(3)).await;
        assert_eq!(mark.start().from, [at(70) - MARGIN]);
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(mark.start().from, [at(0)]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_claim_that_left_nothing_need_not_look_there_again() {
        let mark = Watermark::new(2);
        let sweep = mark.start();
        mark.reached(&sweep, false, [(1, at(95))]);
        mark.all_before(at(100));
        assert_eq!(mark.start().from, [at(90) - MARGIN, at(95) - MARGIN]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_full_sweep_goes_on_from_where_it_came_to() {
        let mark = Watermark::new(1);
        mark.reached(&mark.start(), false, [(0, at(70))]);
        tokio::time::advance(SWEEP_EVERY).await;
        mark.reached(&mark.start(), true, [(0, at(20))]);
        assert_eq!(mark.start().from, [at(20) - MARGIN]);
    }
}
