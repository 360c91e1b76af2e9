//! The worker around the lease engine: claims, runs, settles, renews, gives back.
//!
//! A tick claims and starts; the work itself runs on beside the ticks, so that a slow row
//! holds up no other, and what has ended is settled in groups (`settle`). A stop claims
//! nothing more, gives back at once what has not begun, lets the rest finish within the grace
//! time, and gives back what has not.

use std::collections::HashSet;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, PoisonError};
use std::time::Duration;

use futures_util::FutureExt;
use tokio::sync::{AcquireError, Mutex, OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};

use super::line::{HungUp, within};
use super::prefetch::Prefetch;
use super::settle::{Desk, Ended};
use super::{Claim, Claimed, Fence, Settings, Unit, Work, give_back};
use crate::testing::crash_point;
use crate::worker::{self, Tick, Wake, Worker, panic_message};

/// Rows that a runner of single rows holds at most, running and about to.
const HOLD_AT_MOST: usize = 2000;

/// How long the first claim waits for the first look.
const FIRST_LOOK: Duration = Duration::from_millis(50);
/// How long a look may take: it is better to begin another than to wait for a dead connection.
const LOOK_LIMIT: Duration = Duration::from_secs(30);
/// A batch that runs for longer holds up no other, however small that is.
const LONG_BATCH: Duration = Duration::from_secs(1);
/// How long a row waits for a slot before it is given back.
const SLOT_PATIENCE: Duration = Duration::from_secs(1);

/// A slot, if there is one in time; an error when there will be none any more.
type Turn = Result<Option<OwnedSemaphorePermit>, AcquireError>;

/// The answer to a claim.
type Asked<R> = sqlx::Result<Vec<Claimed<R>>>;

/// Runs [`Work`], as a worker of a [`Supervisor`](crate::worker::Supervisor).
pub struct Runner<W: Work> {
    shared: Arc<Shared<W>>,
    tasks: Mutex<JoinSet<()>>,
    /// The claim that is on its way.
    asking: Mutex<JoinSet<Asked<W::Row>>>,
    /// The look that is on its way.
    looking: Mutex<JoinSet<()>>,
    /// Renews the leases from the first claim on, whatever holds up the ticks.
    keeper: OnceLock<JoinSet<()>>,
}

struct Shared<W: Work> {
    desk: Desk<W>,
    slots: Arc<Semaphore>,
    prefetch: Prefetch,
    /// Units from their start to their settlement.
    units: AtomicUsize,
    /// The last claim left rows behind.
    backlog: AtomicBool,
    /// When the last batch began.
    began: std::sync::Mutex<Option<Instant>>,
}

impl<W: Work> std::fmt::Debug for Runner<W> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Runner")
            .field("worker", &self.shared.desk.work.name())
            .field("settings", &self.shared.desk.settings)
            .finish_non_exhaustive()
    }
}

impl<W: Work> Runner<W> {
    /// A runner of `work`.
    #[must_use]
    pub fn new(work: W, settings: Settings) -> Self {
        let slots = settings.slots.max(1);
        let most = match settings.unit {
            Unit::Row => HOLD_AT_MOST.max(slots),
            Unit::Batch => slots,
        };
        let shared = Shared {
            slots: Arc::new(Semaphore::new(slots.min(Semaphore::MAX_PERMITS))),
            prefetch: Prefetch::new(slots, most),
            units: AtomicUsize::new(0),
            backlog: AtomicBool::new(false),
            began: std::sync::Mutex::default(),
            desk: Desk::new(work, settings),
        };
        Self {
            shared: Arc::new(shared),
            tasks: Mutex::default(),
            asking: Mutex::default(),
            looking: Mutex::default(),
            keeper: OnceLock::new(),
        }
    }

    /// What wakes this worker, for a [`Listener`](crate::worker::Listener) to route to.
    #[must_use]
    pub fn wake(&self) -> Wake {
        self.shared.desk.wake.clone()
    }

    /// The work.
    #[must_use]
    pub fn work(&self) -> &W {
        &self.shared.desk.work
    }

    /// Claims and runs until nothing is due and everything is settled; says how many rows it
    /// claimed. For tests.
    ///
    /// # Errors
    /// When the database can't be asked.
    pub async fn drain(&self) -> Result<usize, worker::Error> {
        let mut rows = 0;
        loop {
            let claimed = self.claim().await?;
            rows += claimed;
            self.wait().await;
            // What a look finds may be due, too.
            let looked = claimed == 0 && self.looking.lock().await.join_next().await.is_some();
            if claimed == 0 && !looked {
                return Ok(rows);
            }
        }
    }

    /// Claims once, as much as there is room for, and starts it.
    async fn claim(&self) -> Result<usize, worker::Error> {
        let shared = &self.shared;
        let mut tasks = self.tasks.lock().await;
        while tasks.try_join_next().is_some() {}
        self.keeper
            .get_or_init(|| JoinSet::from_iter([Arc::clone(shared).keep()]));
        // A tick may be cut at any await, but a claim that was sent is made: it is waited for in a
        // task of its own, by the next tick or by the release, whichever comes.
        let mut asking = self.asking.lock().await;
        let mut claimed = 0;
        // The answer to a tick that was cut is no answer to what woke this one.
        while let Some(asked) = asking.join_next().await {
            claimed += shared.begin(&mut tasks, asked??);
        }
        self.look().await;
        let room = shared.room();
        if room == 0 {
            // Whatever woke us may wait for room: whoever makes it wakes us again.
            shared.desk.more.store(true, Ordering::Release);
            return Ok(claimed);
        }
        asking.spawn(Arc::clone(shared).ask(room));
        if let Some(asked) = asking.join_next().await {
            claimed += shared.begin(&mut tasks, asked??);
        }
        Ok(claimed)
    }

    /// Looks for what was left behind, if it is time for that. Nobody waits for it, but a worker
    /// that has just started, for a moment: what waits longest should go first.
    async fn look(&self) {
        let Some(watermark) = self.shared.desk.work.watermark() else {
            return;
        };
        let mut looking = self.looking.lock().await;
        while looking.try_join_next().is_some() {}
        if looking.is_empty() && watermark.wants_look() {
            looking.spawn(Arc::clone(&self.shared).look());
        }
        if watermark.is_blind() {
            timeout(FIRST_LOOK, looking.join_next()).await.ok();
        }
    }

    /// Waits for everything that runs.
    async fn wait(&self) {
        let mut tasks = self.tasks.lock().await;
        while tasks.join_next().await.is_some() {}
        self.shared.desk.settle().await;
    }
}

impl<W: Work> Shared<W> {
    /// Claims up to `room` rows. They are held from here on, whoever starts them or gives them
    /// back.
    async fn ask(self: Arc<Self>, room: usize) -> Asked<W::Row> {
        let settings = &self.desk.settings;
        let began = Instant::now();
        let claim = Claim {
            owner: &settings.owner,
            lease: settings.lease,
            limit: room,
        };
        let mut line = self.desk.line().await?;
        let rows = self.desk.work.claim(line.connection(), &claim);
        let rows = within(self.desk.patience(), rows).await;
        let rows = rows.inspect_err(|_| line.hang_up())?;
        line.close().await?;
        let more = self.desk.work.expects_more(&rows, room);
        self.desk.more.store(more, Ordering::Release);
        self.backlog.store(more, Ordering::Release);
        self.desk.tally.claimed(rows.len(), began.elapsed());
        // From before the claim: what we believe of a lease must not outlive what the
        // database does.
        self.desk.hold(rows.iter().map(|row| row.fence), began);
        Ok(rows)
    }

    /// Finds what was left behind, and lets claims begin there again.
    async fn look(self: Arc<Self>) {
        match self.left_behind().await {
            Ok(true) => self.desk.wake.wake(),
            Ok(false) => {}
            Err(error) => tracing::warn!(
                worker = self.desk.work.name(),
                error = &error as &(dyn std::error::Error + 'static),
                "could not look for what was left behind, will retry",
            ),
        }
    }

    /// Whether claims begin earlier now.
    async fn left_behind(&self) -> sqlx::Result<bool> {
        let work = &self.desk.work;
        let Some(watermark) = work.watermark() else {
            return Ok(false);
        };
        let line = self.desk.line().await?;
        // A stop cuts a look wherever it is.
        let mut line = HungUp::unless_closed(line);
        let look = watermark.look();
        let first = within(LOOK_LIMIT, work.look(line.connection(), &look)).await;
        let first = first.inspect_err(|_| watermark.failed(&look))?;
        line.close().await?;
        Ok(watermark.looked(&look, first))
    }

    /// Keeps the leases of what is held, for as long as the runner lives.
    async fn keep(self: Arc<Self>) {
        let mut renewals = interval(self.desk.settings.lease / 6);
        renewals.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            renewals.tick().await;
            if let Err(error) = self.desk.renew().await {
                tracing::warn!(
                    worker = self.desk.work.name(),
                    error = &error as &(dyn std::error::Error + 'static),
                    "renewal failed, will retry",
                );
            }
        }
    }

    /// How many rows to claim now; 0: none, somebody will wake us when there is room.
    fn room(&self) -> usize {
        let settings = &self.desk.settings;
        match settings.unit {
            Unit::Batch => {
                let (slots, batch) = (settings.slots.max(1), settings.batch.max(1));
                let free = self.units.load(Ordering::Acquire) < slots;
                // What has ended and can't be settled is still held: it must not pile up.
                let settled = self.desk.rows() < slots * batch * 2;
                if free && settled && self.is_worth_it() {
                    batch
                } else {
                    0
                }
            }
            Unit::Row => {
                let (held, target) = (self.desk.rows(), self.prefetch.rows());
                let room = target.saturating_sub(held);
                // Small claims are for free slots only; otherwise they wait to become large.
                if room * 2 >= target || self.slots.available_permits() > 0 {
                    room.min(settings.batch.max(1))
                } else {
                    0
                }
            }
        }
    }

    /// Whether to claim a batch beside those that run. Without a backlog it would be a small one:
    /// what comes meanwhile shares the next.
    fn is_worth_it(&self) -> bool {
        let slots = self.desk.settings.slots.max(1);
        let idle = self.slots.available_permits() >= slots.min(Semaphore::MAX_PERMITS);
        let began = *self.began.lock().unwrap_or_else(PoisonError::into_inner);
        idle || self.backlog.load(Ordering::Acquire)
            || began.is_none_or(|began| began.elapsed() >= LONG_BATCH)
    }

    /// Starts what was claimed; says how much that is.
    fn begin(self: &Arc<Self>, tasks: &mut JoinSet<()>, rows: Vec<Claimed<W::Row>>) -> usize {
        crash_point("lease.claimed");
        let claimed = rows.len();
        if claimed > 0 {
            self.start(tasks, rows);
        }
        claimed
    }

    fn start(self: &Arc<Self>, tasks: &mut JoinSet<()>, rows: Vec<Claimed<W::Row>>) {
        match self.desk.settings.unit {
            Unit::Batch => {
                self.units.fetch_add(1, Ordering::AcqRel);
                let mut began = self.began.lock().unwrap_or_else(PoisonError::into_inner);
                *began = Some(Instant::now());
                drop(began);
                tasks.spawn(Arc::clone(self).run(rows, self.turn(), None));
            }
            Unit::Row => {
                self.units.fetch_add(rows.len(), Ordering::AcqRel);
                let started = Arc::new(Started::of(rows.len()));
                for row in rows {
                    let fence = row.fence;
                    let started = Some(Arc::clone(&started));
                    let unit = Arc::clone(self).run(vec![row], self.turn(), started);
                    self.desk.abort_with(fence, tasks.spawn(unit));
                }
            }
        }
    }

    /// A place in the line for a slot, taken now: the runtime polls tasks in whatever order it
    /// likes, but slots go to rows in the order of the claim.
    fn turn(&self) -> impl Future<Output = Turn> + use<W> {
        let mut turn = Box::pin(Arc::clone(&self.slots).acquire_owned());
        let at_once = turn.as_mut().now_or_never();
        async move {
            match at_once {
                Some(slot) => slot.map(Some),
                None => turn.await.map(Some),
            }
        }
    }

    /// One unit, from its slot to its settlement.
    async fn run(
        self: Arc<Self>,
        unit: Vec<Claimed<W::Row>>,
        turn: impl Future<Output = Turn> + Send,
        started: Option<Arc<Started>>,
    ) {
        let _counted = Counted(&self);
        let rows: Vec<(Fence, u32)> = unit.iter().map(|c| (c.fence, c.failed_attempts)).collect();
        let slot = timeout(SLOT_PATIENCE, turn).await.unwrap_or_else(|_| {
            // Work has become slow since this was claimed: others may have a slot for it.
            self.prefetch.shrink();
            Ok(None)
        });
        let ended = if let Ok(Some(slot)) = slot {
            if let Some(started) = started {
                started.one(&self.prefetch);
            }
            let ended = self.contained(unit, &rows).await;
            drop(slot);
            self.desk.room_made();
            ended
        } else {
            rows.iter()
                .map(|(fence, _)| (*fence, give_back()))
                .collect()
        };
        self.desk.ended(ended);
        // Others that have ended by now share the settlement.
        tokio::task::yield_now().await;
        self.desk.settle().await;
    }

    /// Runs the work; a panic is an outcome, and a row that is not mentioned goes back.
    async fn contained(&self, unit: Vec<Claimed<W::Row>>, rows: &[(Fence, u32)]) -> Ended<W::Done> {
        let work = &self.desk.work;
        let run = AssertUnwindSafe(work.run(unit)).catch_unwind();
        match run.await {
            Ok(mut ended) => {
                if ended.len() < rows.len() {
                    let told: HashSet<Fence> = ended.iter().map(|(fence, _)| *fence).collect();
                    let untold = rows.iter().filter(|(fence, _)| !told.contains(fence));
                    ended.extend(untold.map(|(fence, _)| (*fence, give_back())));
                }
                ended
            }
            Err(panic) => {
                let message = panic_message(&*panic);
                tracing::error!(worker = work.name(), panic = %message, "work panicked");
                rows.iter()
                    .map(|(fence, failed)| (*fence, work.panicked(*failed, &message)))
                    .collect()
            }
        }
    }
}

impl<W: Work> Worker for Runner<W> {
    fn name(&self) -> &str {
        self.shared.desk.work.name()
    }

    fn poll_interval(&self) -> Duration {
        self.shared.desk.settings.poll
    }

    fn wake(&self) -> Wake {
        self.wake()
    }

    async fn tick(&self) -> Result<Tick, worker::Error> {
        self.claim().await?;
        let again = self.shared.desk.more.load(Ordering::Acquire) && self.shared.room() > 0;
        Ok(if again { Tick::Worked } else { Tick::Idle })
    }

    async fn finish(&self) {
        self.shared.desk.work.stopping();
        // Who has no slot yet is told that there is none, and gives its row back.
        self.shared.slots.close();
        self.wait().await;
    }

    async fn release(&self) {
        self.looking.lock().await.shutdown().await;
        self.tasks.lock().await.shutdown().await;
        self.shared.desk.abandon();
        self.shared.desk.settle().await;
        // A claim that was cut off from its tick may have taken, or take, what nobody will start.
        let mut asking = self.asking.lock().await;
        while asking.join_next().await.is_some() {}
        self.shared.desk.abandon();
        self.shared.desk.settle().await;
    }
}

/// Counts a unit until it ends, in whatever way.
struct Counted<'a, W: Work>(&'a Shared<W>);

impl<W: Work> Drop for Counted<'_, W> {
    fn drop(&mut self) {
        self.0.units.fetch_sub(1, Ordering::AcqRel);
        self.0.desk.room_made();
    }
}

/// How long it takes until the last row of a claim has begun.
struct Started {
    claimed: Instant,
    rows: usize,
    left: AtomicUsize,
}

impl Started {
    fn of(rows: usize) -> Self {
        Self {
            claimed: Instant::now(),
            rows,
            left: AtomicUsize::new(rows),
        }
    }

    fn one(&self, prefetch: &Prefetch) {
        if self.left.fetch_sub(1, Ordering::Relaxed) == 1 {
            prefetch.learn(self.rows, self.claimed.elapsed());
        }
    }
}
