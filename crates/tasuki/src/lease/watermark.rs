//! Where to begin looking: past what is already gone.
//!
//! A finished row leaves an entry in the index until vacuum comes by, and while somebody holds
//! an old snapshot vacuum can't: a claim that begins at the head of the index then walks over
//! every row of the last hours. So a worker remembers how far it has come and begins there.
//!
//! That place is a hint. A transaction that commits late has rows before it, and so has a claim
//! that expired. While that is cheap, one claim a second begins at the head and finds them: a
//! *sweep*. Where it is dear, claims don't wait for it: a *look*, on a connection of its own, finds
//! the first row that was left behind, and only then claims begin there again.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use time::OffsetDateTime;
use tokio::time::Instant;

/// How far behind the last claimed row a claim begins: rows of transactions that ran side by
/// side become visible in another order than they are due.
const MARGIN: Duration = Duration::from_millis(100);
/// How far behind the time of a claim that left nothing the next one begins: a transaction that
/// takes no longer than this from its enqueueing to its commit need not wait for a sweep.
const IDLE_MARGIN: Duration = Duration::from_secs(10);
/// The least time between two sweeps, or looks.
const EVERY: Duration = Duration::from_secs(1);
/// The longest time between two, however dear they are: nobody else may be there to find what
/// only they find.
const AT_LEAST_EVERY: Duration = Duration::from_secs(10);
/// One that took a tenth of a second is followed by two seconds without one.
const SHARE: u32 = 20;
/// A sweep that takes longer is none that claims should wait for.
const DEAR: Duration = Duration::from_millis(25);
/// A full claim of fewer rows is no backlog that is worth the risk of missing a late one.
const BACKLOG: usize = 100;

/// How far one worker has come, in each of its lanes (priorities, say).
#[derive(Debug)]
pub struct Watermark(Mutex<Place>);

#[derive(Debug)]
struct Place {
    /// The furthest row of each that was claimed, or would have been; `None`: nobody knows.
    lanes: Vec<Option<OffsetDateTime>>,
    /// The last claim was cut in this lane, in the middle of a backlog: the next one goes on right
    /// behind it.
    cut: Option<usize>,
    /// The last claim began without a margin and came to the end: one with a margin has to follow.
    owes: bool,
    /// Lanes that a look has set back.
    set_back: Vec<bool>,
    /// When it is time to find out what was left behind.
    due: Instant,
    dear: bool,
    /// Nothing was claimed yet, and nothing looked for.
    blind: bool,
    /// How often looks have set the place back.
    setbacks: u64,
}

/// Where one claim begins.
#[derive(Debug)]
pub struct Start {
    /// The earliest due time to look at, per lane; `None`: a minute ago.
    pub from: Vec<Option<OffsetDateTime>>,
    sweep: bool,
    exact: bool,
    began: Instant,
    setbacks: u64,
}

/// A look at what was left behind.
#[derive(Debug)]
pub struct Look {
    /// Where claims begin, per lane: nothing from there on is looked at. `None`: everything is.
    pub until: Vec<Option<OffsetDateTime>>,
    began: Instant,
}

impl Watermark {
    /// A worker that has seen nothing yet. It begins with a look: nobody knows how dear a sweep
    /// would be.
    #[must_use]
    pub fn new(lanes: usize) -> Self {
        Self(Mutex::new(Place {
            lanes: vec![None; lanes],
            cut: None,
            owes: false,
            set_back: vec![false; lanes],
            due: Instant::now(),
            dear: true,
            blind: true,
            setbacks: 0,
        }))
    }

    fn place(&self) -> MutexGuard<'_, Place> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where the next claim begins.
    #[must_use]
    pub fn start(&self) -> Start {
        let place = self.place();
        let began = Instant::now();
        let sweep = !place.dear && began >= place.due;
        let from = place.lanes.iter().enumerate().map(|(lane, furthest)| {
            if sweep {
                return Some(OffsetDateTime::UNIX_EPOCH);
            }
            let is_cut = place.cut == Some(lane);
            let margin = if is_cut { Duration::ZERO } else { MARGIN };
            furthest.map(|furthest| (furthest - margin).max(OffsetDateTime::UNIX_EPOCH))
        });
        Start {
            from: from.collect(),
            sweep,
            exact: !sweep && place.cut.is_some(),
            began,
            setbacks: place.setbacks,
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
        let mut place = self.place();
        place.blind = false;
        if start.setbacks != place.setbacks {
            // It began beyond rows that a look has found since.
            return;
        }
        let rows: Vec<_> = rows.into_iter().collect();
        let last = rows.iter().map(|(lane, _)| *lane).max();
        place.cut = last.filter(|_| full && rows.len() >= BACKLOG);
        place.owes = start.exact && !full;
        if start.sweep {
            place.took(start.began.elapsed());
        }
        if let (true, true, Some(cut)) = (start.sweep, full, last) {
            // More are waiting behind these, before the place that we had come to, and behind the
            // cut nobody has looked. The lanes before it were walked to their ends.
            for (lane, furthest) in place.lanes.iter_mut().enumerate().skip(cut) {
                *furthest = (lane > cut).then_some(OffsetDateTime::UNIX_EPOCH);
            }
        }
        if !full {
            place.forgive_setbacks(&rows);
        }
        for (lane, due) in rows {
            if let Some(furthest) = place.lanes.get_mut(lane) {
                *furthest = (*furthest).max(Some(due));
            }
        }
    }

    /// Whether another claim should follow at once, though this one was not full.
    #[must_use]
    pub fn owes_a_claim(&self) -> bool {
        self.place().owes
    }

    /// The claim that began at `start` left nothing that was due at `now`, by the database's
    /// clock: what has been there before, and is gone, need not be walked over again, also if
    /// nothing was claimed at all.
    pub fn all_before(&self, start: &Start, now: OffsetDateTime) {
        let mut place = self.place();
        if start.setbacks != place.setbacks {
            return;
        }
        for furthest in &mut place.lanes {
            *furthest = (*furthest).max(Some(now - IDLE_MARGIN));
        }
    }

    /// Whether it is time for a look beside the claims.
    #[must_use]
    pub fn wants_look(&self) -> bool {
        let place = self.place();
        place.dear && Instant::now() >= place.due
    }

    /// Whether claims would not know where to begin: then the first look is worth a short wait.
    #[must_use]
    pub fn is_blind(&self) -> bool {
        self.place().blind
    }

    /// Begins a look. One that is never [told](Self::looked) of is repeated after a while.
    #[must_use]
    pub fn look(&self) -> Look {
        let mut place = self.place();
        let began = Instant::now();
        place.due = began + AT_LEAST_EVERY;
        Look {
            until: place.lanes.clone(),
            began,
        }
    }

    /// `look` found these rows to be the first that may be claimed, by lane. Says whether claims
    /// begin earlier now.
    pub fn looked(
        &self,
        look: &Look,
        first: impl IntoIterator<Item = (usize, OffsetDateTime)>,
    ) -> bool {
        let mut place = self.place();
        place.blind = false;
        place.took(look.began.elapsed());
        let before = place.setbacks;
        for (lane, due) in first {
            if let Some(furthest) = place.lanes.get_mut(lane) {
                *furthest = Some(furthest.map_or(due, |furthest| furthest.min(due)));
                place.setbacks += 1;
            }
            if let Some(set_back) = place.set_back.get_mut(lane) {
                *set_back = true;
            }
        }
        place.setbacks > before
    }

    /// `look` could not be ended. The next one waits for as long as this one took, at least.
    pub fn failed(&self, look: &Look) {
        let pause = look.began.elapsed().max(AT_LEAST_EVERY);
        self.place().due = Instant::now() + pause;
    }
}

impl Place {
    /// A claim has walked every lane to its end. What a look had found in those without `rows`,
    /// others have taken: nothing is left there that would have to be walked over again.
    fn forgive_setbacks(&mut self, rows: &[(usize, OffsetDateTime)]) {
        let lanes = self.lanes.iter_mut().zip(&mut self.set_back).enumerate();
        for (lane, (furthest, set_back)) in lanes {
            if std::mem::take(set_back) && rows.iter().all(|(row, _)| *row != lane) {
                *furthest = None;
            }
        }
    }

    /// A sweep, or a look, has taken so long: when the next one is due, and which it is to be.
    fn took(&mut self, elapsed: Duration) {
        self.due = Instant::now() + (elapsed * SHARE).clamp(EVERY, AT_LEAST_EVERY);
        self.dear = elapsed > DEAR;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: u64) -> OffsetDateTime {
        OffsetDateTime::UNIX_EPOCH + Duration::from_secs(second)
    }

    /// The place behind a row that was due at this second.
    fn behind(second: u64) -> Option<OffsetDateTime> {
        Some(at(second) - MARGIN)
    }

    /// One that has looked, found nothing, and knows that this is cheap.
    fn cheap(lanes: usize) -> Watermark {
        let mark = Watermark::new(lanes);
        assert!(mark.is_blind() && mark.wants_look());
        assert!(!mark.looked(&mark.look(), []));
        assert!(!mark.is_blind() && !mark.wants_look());
        mark
    }

    #[tokio::test(start_paused = true)]
    async fn a_claim_begins_a_little_behind_the_last_row() {
        let mark = cheap(2);
        let start = mark.start();
        assert_eq!(start.from, [None, None]);
        mark.reached(&start, false, [(1, at(70)), (1, at(50))]);
        assert_eq!(mark.start().from, [None, behind(70)]);
    }

    #[tokio::test(start_paused = true)]
    async fn in_a_backlog_a_claim_goes_on_right_behind_the_last_and_one_with_a_margin_ends_it() {
        let mark = cheap(2);
        mark.reached(&mark.start(), false, [(0, at(90))]);
        mark.reached(&mark.start(), true, [(1, at(70)); BACKLOG]);
        assert_eq!(mark.start().from, [behind(90), Some(at(70))]);
        assert!(!mark.owes_a_claim());
        mark.reached(&mark.start(), false, [(1, at(71))]);
        assert!(mark.owes_a_claim());
        assert_eq!(mark.start().from, [behind(90), behind(71)]);
        mark.reached(&mark.start(), false, []);
        assert!(!mark.owes_a_claim());
    }

    #[tokio::test(start_paused = true)]
    async fn a_small_claim_is_no_backlog_however_full_it_is() {
        let mark = cheap(1);
        mark.reached(&mark.start(), true, [(0, at(70))]);
        assert_eq!(mark.start().from, [behind(70)]);
    }

    #[tokio::test(start_paused = true)]
    async fn every_second_the_head_is_looked_at_again() {
        let mark = cheap(1);
        mark.reached(&mark.start(), false, [(0, at(70))]);
        tokio::time::advance(EVERY).await;
        assert_eq!(mark.start().from, [Some(at(0))]);
        assert!(!mark.wants_look());
    }

    #[tokio::test(start_paused = true)]
    async fn a_dear_sweep_becomes_a_look_that_is_rare_and_a_cheap_look_a_sweep() {
        let mark = cheap(1);
        tokio::time::advance(EVERY).await;
        let sweep = mark.start();
        tokio::time::advance(Duration::from_millis(200)).await;
        mark.reached(&sweep, false, [(0, at(70))]);
        tokio::time::advance(Duration::from_secs(3)).await;
        assert!(!mark.wants_look());
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(mark.wants_look());
        assert_eq!(mark.start().from, [behind(70)], "no claim waits for it");

        let look = mark.look();
        assert!(!mark.wants_look(), "one at a time");
        assert!(!mark.looked(&look, []));
        tokio::time::advance(EVERY).await;
        assert!(!mark.wants_look());
        assert_eq!(mark.start().from, [Some(at(0))]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_look_that_failed_is_repeated() {
        let mark = Watermark::new(1);
        drop(mark.look());
        assert!(!mark.wants_look());
        tokio::time::advance(AT_LEAST_EVERY).await;
        assert!(mark.wants_look());

        let slow = mark.look();
        tokio::time::advance(AT_LEAST_EVERY * 3).await;
        mark.failed(&slow);
        tokio::time::advance(AT_LEAST_EVERY * 2).await;
        assert!(!mark.wants_look(), "it must not look all the time");
        tokio::time::advance(AT_LEAST_EVERY).await;
        assert!(mark.wants_look());
    }

    #[tokio::test(start_paused = true)]
    async fn what_others_took_meanwhile_sets_nobody_back_for_long() {
        let mark = cheap(1);
        mark.reached(&mark.start(), false, [(0, at(70))]);
        assert!(mark.looked(&mark.look(), [(0, at(20))]));
        mark.reached(&mark.start(), false, []);
        assert_eq!(mark.start().from, [None]);
    }

    #[tokio::test(start_paused = true)]
    async fn claims_begin_again_at_what_a_look_has_found() {
        let mark = cheap(2);
        mark.reached(&mark.start(), false, [(0, at(70)), (1, at(90))]);
        let (look, beside) = (mark.look(), mark.start());
        assert_eq!(look.until, [Some(at(70)), Some(at(90))]);
        assert!(mark.looked(&look, [(1, at(20))]));
        // This one began beyond it, and must not lead past it.
        mark.reached(&beside, false, [(1, at(100))]);
        mark.all_before(&beside, at(1000));
        assert_eq!(mark.start().from, [behind(70), behind(20)]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_claim_that_left_nothing_need_not_look_there_again() {
        let mark = cheap(2);
        let start = mark.start();
        mark.reached(&start, false, [(1, at(95))]);
        mark.all_before(&start, at(100));
        assert_eq!(mark.start().from, [behind(90), behind(95)]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_full_sweep_goes_on_from_where_it_was_cut() {
        let mark = cheap(3);
        let rows = [(0, at(70)), (1, at(70)), (2, at(70))];
        mark.reached(&mark.start(), false, rows);
        tokio::time::advance(EVERY).await;
        mark.reached(&mark.start(), true, [(0, at(60)), (1, at(20))]);
        assert_eq!(mark.start().from, [behind(70), behind(20), Some(at(0))]);
    }
}
