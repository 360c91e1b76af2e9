//! Settling in groups: what ended while the last settlement was on its way shares the next.
//!
//! Whoever has something to settle puts it on the pile and, if nobody is at it, settles the
//! whole pile: one statement for the successes, one for what is tried again, and for the dead a
//! few at a time, since their hooks run in the same transaction. An idle system settles at once, a
//! busy one in large groups, and no timer is involved.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sqlx::{Connection, PgConnection};
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep};
use uuid::Uuid;

use super::line::within;
use super::tally::Tally;
use super::{Fence, Line, Outcome, OwnPool, Settings, Work, give_back};
use crate::testing::crash_point;
use crate::transaction;
use crate::worker::Wake;

/// The first pause after a settlement that failed, and the longest.
const PAUSE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// The least time that an answer of the database is waited for; or a lease, if that is longer.
const PATIENCE: Duration = Duration::from_secs(60);
/// Claim, renew, settle, look: a connection each at the most.
const CONNECTIONS: u32 = 4;
/// Deaths in one transaction: what their hooks do may take seconds each, and whatever has ended
/// meanwhile waits.
const BURIED_AT_ONCE: usize = 5;

/// How claims ended that are not settled yet.
pub(super) type Ended<D> = Vec<(Fence, Outcome<D>)>;

/// Everything that this process holds, until it is settled.
pub(super) struct Desk<W: Work> {
    pub(super) work: W,
    pub(super) settings: Settings,
    pool: OwnPool,
    pub(super) tally: Tally,
    held: Mutex<HashMap<Fence, Held>>,
    pile: Mutex<Ended<W::Done>>,
    at_it: tokio::sync::Mutex<()>,
    /// The last claim was full: whoever makes room wakes the next one.
    pub(super) more: AtomicBool,
    pub(super) wake: Wake,
}

/// One claim in work.
struct Held {
    /// Claimed or renewed at this time.
    since: Instant,
    /// Ends the work on this row alone.
    abort: Option<AbortHandle>,
    /// The work has ended; only the settlement is missing.
    ended: bool,
}

impl<W: Work> Desk<W> {
    pub(super) fn new(work: W, settings: Settings) -> Self {
        Self {
            tally: Tally::new(work.name()),
            work,
            pool: OwnPool::beside(settings.pool.clone(), CONNECTIONS),
            settings,
            held: Mutex::default(),
            pile: Mutex::default(),
            at_it: tokio::sync::Mutex::default(),
            more: AtomicBool::new(false),
            wake: Wake::default(),
        }
    }

    /// How long an answer of the database is waited for.
    pub(super) fn patience(&self) -> Duration {
        PATIENCE.max(self.settings.lease)
    }

    /// Rows that are claimed and not settled yet.
    pub(super) fn rows(&self) -> usize {
        lock(&self.held).len()
    }

    pub(super) fn hold(&self, fences: impl Iterator<Item = Fence>, since: Instant) {
        let mut held = lock(&self.held);
        let fresh = || Held {
            since,
            abort: None,
            ended: false,
        };
        held.extend(fences.map(|fence| (fence, fresh())));
        self.tally.held(held.len());
    }

    /// Lets the loss of this claim end the work on it.
    pub(super) fn abort_with(&self, fence: Fence, abort: AbortHandle) {
        if let Some(held) = lock(&self.held).get_mut(&fence) {
            held.abort = Some(abort);
        }
    }

    /// The work on some rows has ended.
    pub(super) fn ended(&self, ended: Ended<W::Done>) {
        let mut held = lock(&self.held);
        for (fence, _) in &ended {
            if let Some(held) = held.get_mut(fence) {
                held.ended = true;
            }
        }
        drop(held);
        lock(&self.pile).extend(ended);
    }

    /// Settles the pile, unless somebody is at it already, who will then find it.
    pub(super) async fn settle(&self) {
        while let Ok(at_it) = self.at_it.try_lock() {
            // In a box of its own: every task that runs a row awaits this, and few of them come
            // so far as to need room for the statements.
            Box::pin(self.settle_pile()).await;
            drop(at_it);
            // Somebody may have put more on the pile while it was ours, and left it to us.
            if lock(&self.pile).is_empty() {
                return;
            }
        }
    }

    async fn settle_pile(&self) {
        let mut taken = Taken::from(&self.pile);
        let mut pause = PAUSE.0;
        while let Err(error) = self.settle_group(&mut taken).await {
            tracing::warn!(
                worker = self.work.name(),
                rows = taken.rows(),
                error = &error as &(dyn std::error::Error + 'static),
                "settlement failed, will retry",
            );
            // The leases run on meanwhile: what is lost by then is told as lost.
            sleep(pause).await;
            pause = (pause * 2).min(PAUSE.1);
        }
    }

    /// One group. What has been settled is taken out, also when the rest fails.
    async fn settle_group(&self, taken: &mut Taken<'_, W::Done>) -> sqlx::Result<()> {
        if taken.is_empty() {
            return Ok(());
        }
        crash_point("lease.worked");
        if !taken.done.is_empty() {
            let mut line = self.line().await?;
            let settled = self.work.settle(line.connection(), &taken.done);
            let settled = within(self.patience(), settled).await;
            let settled = settled.inspect_err(|_| line.hang_up())?;
            line.close().await?;
            self.tally.done(settled.len());
            if self.work.frees_others(&taken.done) {
                self.wake.wake();
            }
            self.let_go(taken.done.drain(..).map(|(fence, _)| fence), &settled);
        }
        crash_point("lease.settled");
        if !taken.rest.is_empty() {
            let settled = self.put_back(&taken.rest).await?;
            self.make_way();
            self.let_go(taken.rest.drain(..).map(|(fence, _)| fence), &settled);
        }
        let few = taken.dead.len().min(BURIED_AT_ONCE);
        if few > 0 {
            let dead = taken.dead.get(..few).unwrap_or_default();
            let settled = within(self.patience(), self.kill(dead)).await?;
            self.make_way();
            self.let_go(taken.dead.drain(..few).map(|(fence, _)| fence), &settled);
        }
        Ok(())
    }

    /// Rows were put back that are not due now: if every end makes others claimable, also of a row
    /// that is not done, the next claim comes at once.
    fn make_way(&self) {
        if self.work.frees_others(&[]) {
            self.wake.wake();
        }
    }

    pub(super) async fn line(&self) -> sqlx::Result<Line> {
        Line::open(self.pool.get(), self.settings.route).await
    }

    /// Puts rows back that will be tried again.
    async fn put_back(&self, rest: &Ended<W::Done>) -> sqlx::Result<Vec<Uuid>> {
        let mut line = self.line().await?;
        let settled = self.work.leases().put_back(line.connection(), rest);
        let settled = within(self.patience(), settled).await;
        let settled = settled.inspect_err(|_| line.hang_up())?;
        line.close().await?;
        self.tell_all(rest, &settled);
        Ok(settled)
    }

    /// Puts rows back as dead, with what belongs to that.
    async fn kill(&self, dead: &[(Fence, Outcome<W::Done>)]) -> sqlx::Result<Vec<Uuid>> {
        let mut dying = transaction::begin(self.pool.get()).await?;
        let settled = self.work.leases().put_back(&mut dying, dead).await?;
        self.bury(&mut dying, dead, &settled).await?;
        crash_point("lease.buried");
        transaction::commit(dying).await?;
        self.tell_all(dead, &settled);
        Ok(settled)
    }

    /// Lets the work do what belongs to a death, in the same transaction but without a vote.
    async fn bury(
        &self,
        transaction: &mut PgConnection,
        dead: &[(Fence, Outcome<W::Done>)],
        settled: &[Uuid],
    ) -> sqlx::Result<()> {
        let dead: Vec<(Uuid, String)> = dead
            .iter()
            .filter(|(fence, _)| settled.contains(&fence.id))
            .filter_map(|(fence, outcome)| match outcome {
                Outcome::Dead { error } => Some((fence.id, error.clone())),
                _ => None,
            })
            .collect();
        if dead.is_empty() {
            return Ok(());
        }
        let mut savepoint = transaction.begin().await?;
        match self.work.bury(&mut savepoint, &dead).await {
            Ok(()) => savepoint.commit().await,
            Err(error) => {
                tracing::error!(
                    worker = self.work.name(),
                    error = &error as &(dyn std::error::Error + 'static),
                    "the hook for dead rows failed, they are dead all the same",
                );
                savepoint.rollback().await
            }
        }
    }

    fn tell_all(&self, outcomes: &[(Fence, Outcome<W::Done>)], settled: &[Uuid]) {
        let settled: HashSet<Uuid> = settled.iter().copied().collect();
        for (fence, outcome) in outcomes {
            if settled.contains(&fence.id) {
                self.tell(fence, outcome);
            }
        }
    }

    fn tell(&self, fence: &Fence, outcome: &Outcome<W::Done>) {
        let worker = self.work.name();
        match outcome {
            Outcome::Done(_) => {}
            Outcome::Retry { after, error } => {
                self.tally.retry();
                let retry_in_ms = u64::try_from(after.as_millis()).unwrap_or(u64::MAX);
                tracing::warn!(worker, row.id = %fence.id, retry_in_ms, error, "row failed, will retry");
            }
            Outcome::Back { after, error } => {
                self.tally.back();
                let retry_in_ms = u64::try_from(after.as_millis()).unwrap_or(u64::MAX);
                tracing::debug!(worker, row.id = %fence.id, retry_in_ms, error, "row given back");
            }
            Outcome::Snooze { after, error } => {
                self.tally.back();
                let retry_in_ms = u64::try_from(after.as_millis()).unwrap_or(u64::MAX);
                tracing::debug!(worker, row.id = %fence.id, retry_in_ms, error, "row snoozed");
            }
            Outcome::Dead { error } => {
                self.tally.dead();
                tracing::error!(worker, row.id = %fence.id, error, "row is dead");
            }
        }
    }

    /// These claims are over: `settled` by us, the others by somebody who took them.
    fn let_go(&self, fences: impl Iterator<Item = Fence>, settled: &[Uuid]) {
        let settled: HashSet<Uuid> = settled.iter().copied().collect();
        let mut lost = Vec::new();
        let mut held = lock(&self.held);
        for fence in fences {
            // What a renewal has found lost is counted already.
            let was_held = held.remove(&fence).is_some();
            if was_held && !settled.contains(&fence.id) {
                lost.push(fence);
            }
        }
        self.tally.held(held.len());
        drop(held);
        self.lost(&lost);
        self.room_made();
    }

    /// There is room for more rows: if there are any, the next tick should come now.
    pub(super) fn room_made(&self) {
        if self.more.load(Ordering::Acquire) {
            self.wake.wake();
        }
    }

    fn lost(&self, lost: &[Fence]) {
        self.tally.lost(lost.len());
        for fence in lost {
            tracing::warn!(worker = self.work.name(), row.id = %fence.id, "lock lost");
        }
    }

    /// Renews every claim that is older than a third of the lease, and ends the work on those
    /// that were lost.
    pub(super) async fn renew(&self) -> sqlx::Result<()> {
        let old: Vec<Fence> = lock(&self.held)
            .iter()
            .filter(|(_, held)| held.since.elapsed() >= self.settings.lease / 3)
            .map(|(fence, _)| *fence)
            .collect();
        if old.is_empty() {
            return Ok(());
        }
        // In one order, as settlements do: two statements of ours must not wait for each other.
        let mut old = old;
        old.sort_unstable_by_key(|fence| fence.id);
        let now = Instant::now();
        let mut line = self.line().await?;
        let leases = self.work.leases();
        let kept = leases.renew(line.connection(), &old, self.settings.lease);
        // Early enough for another try, on another connection, before the lease is over.
        let limit = (self.settings.lease / 3).max(Duration::from_secs(1));
        let kept = within(limit, kept).await;
        let kept = kept.inspect_err(|_| line.hang_up())?;
        line.close().await?;
        let kept: HashSet<Uuid> = kept.into_iter().collect();
        let mut lost = Vec::new();
        let mut held = lock(&self.held);
        for fence in old {
            let Some(mine) = held.get_mut(&fence) else {
                continue; // Settled while we asked.
            };
            if kept.contains(&fence.id) {
                mine.since = now;
            } else if !mine.ended {
                lost.push(fence);
                if let Some(abort) = held.remove(&fence).and_then(|gone| gone.abort) {
                    abort.abort();
                }
            }
        }
        drop(held);
        self.lost(&lost);
        Ok(())
    }

    /// Puts everything that is still held on the pile, to be given back.
    pub(super) fn abandon(&self) {
        let mut pile = lock(&self.pile);
        let ended: HashSet<Fence> = pile.iter().map(|(fence, _)| *fence).collect();
        let held = lock(&self.held);
        let open = held.keys().filter(|fence| !ended.contains(fence));
        pile.extend(open.map(|fence| (*fence, give_back())));
    }
}

/// A pile that was taken to be settled. What is not settled, because the settler was cut,
/// goes back on the pile.
struct Taken<'a, D> {
    pile: &'a Mutex<Ended<D>>,
    done: Vec<(Fence, D)>,
    rest: Ended<D>,
    dead: Ended<D>,
}

impl<'a, D> Taken<'a, D> {
    fn from(pile: &'a Mutex<Ended<D>>) -> Self {
        let ended = std::mem::take(&mut *lock(pile));
        let mut done = Vec::with_capacity(ended.len());
        let (mut rest, mut dead) = (Vec::new(), Vec::new());
        for (fence, outcome) in ended {
            match outcome {
                Outcome::Done(told) => done.push((fence, told)),
                Outcome::Dead { .. } => dead.push((fence, outcome)),
                outcome => rest.push((fence, outcome)),
            }
        }
        // In one order: see `renew`.
        done.sort_unstable_by_key(|(fence, _)| fence.id);
        rest.sort_unstable_by_key(|(fence, _)| fence.id);
        dead.sort_unstable_by_key(|(fence, _)| fence.id);
        Self {
            pile,
            done,
            rest,
            dead,
        }
    }

    fn rows(&self) -> usize {
        self.done.len() + self.rest.len() + self.dead.len()
    }

    fn is_empty(&self) -> bool {
        self.rows() == 0
    }
}

impl<D> Drop for Taken<'_, D> {
    fn drop(&mut self) {
        if !self.is_empty() {
            let done = self.done.drain(..);
            let mut pile = lock(self.pile);
            pile.extend(done.map(|(fence, told)| (fence, Outcome::Done(told))));
            pile.append(&mut self.rest);
            pile.append(&mut self.dead);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
