//! Gives committed rows their numbers.
//!
//! Rows wait in a small table until they are visible, which is when their transaction has committed;
//! then one statement moves them into the log, numbers them, and counts the log up. So a number is given
//! once, in the transaction that makes it visible, and the next one only after that has committed: no
//! gap, no double, and nobody who has read up to *n* finds a row below it later. What is open delays its
//! own rows and nobody else's; what was rolled back never had a number.
//!
//! Of several sequencers one works, under a lease. The lease only keeps them out of each other's way:
//! every batch locks the row of the log and shows its epoch, so one that was thought dead and comes back
//! moves nothing.

mod look;

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use sqlx::PgPool;
use tokio::sync::Mutex;
use tokio::time::Instant;
use uuid::Uuid;

use look::Sweeping;

use super::store::{Look, Moved, Picked, Seen};
use super::{Log, tally};
use crate::lease::{HungUp, Line, OwnPool, Owner, Route, within};
use crate::testing::crash_point;
use crate::transaction::Limits;
use crate::worker::{self, Error, Tick, Wake, Worker};

/// How long a sequencer is believed to live without a word.
const LEASE: Duration = Duration::from_secs(3);
/// How often it looks by itself.
const POLL: Duration = Duration::from_millis(100);
/// How often one that is not at work asks whether it should be.
const ASK: Duration = Duration::from_millis(500);
/// Rows that one look finds at most.
const LOOK: usize = 50_000;
/// Rows that are numbered at once.
const BATCH: usize = 5_000;
/// How long a statement may take.
const LIMIT: Duration = Duration::from_secs(30);
/// How much longer the server bears with it: what it ends then nobody waits for any more.
const ROOM: Duration = Duration::from_secs(5);
/// How long the server bears with what is done on a line.
const LIMITS: Limits = Limits {
    idle: Duration::from_secs(10),
    statement: Duration::from_secs(LIMIT.as_secs() + ROOM.as_secs()),
    lock: None,
};
/// The same for what may take long.
const PATIENT: Limits = Limits {
    idle: LIMITS.idle,
    statement: Duration::from_secs(PATIENCE.as_secs() + ROOM.as_secs()),
    lock: None,
};
/// How long a look or a sweep may take that may have much before it.
const PATIENCE: Duration = Duration::from_secs(120);

/// Numbers what is appended to one log: a [`Worker`].
#[derive(Debug)]
pub struct Sequencer {
    log: Log,
    name: String,
    pool: OwnPool,
    /// For what may take long.
    patient: OwnPool,
    route: Route,
    owner: Owner,
    holder: Uuid,
    lease: Duration,
    poll: Duration,
    batch: usize,
    gathering: Duration,
    wake: Wake,
    place: Mutex<Place>,
    /// The epoch of its last tenure, 0 if it had none: what a tick that was cut leaves behind.
    epoch: AtomicI64,
}

/// What a sequencer knows of its own part.
#[derive(Debug, Default)]
enum Place {
    /// Nothing: it has to ask.
    #[default]
    Unknown,
    /// It is at work.
    Leading(Tenure),
    /// Another one is; it asks again later.
    Waiting(Instant),
}

#[derive(Debug)]
struct Tenure {
    epoch: i64,
    renewed_at: Instant,
    /// Up to where everything is numbered.
    seen: Option<Seen>,
    /// The last look found everything: the next one has little before it.
    is_near: bool,
    /// Nobody shares it: what is under way is not `Sync` by itself.
    sweeping: std::sync::Mutex<Sweeping>,
}

impl Sequencer {
    pub(super) fn new(log: Log, name: &str, pool: PgPool) -> Self {
        let wake = Wake::default();
        log.appended.wakes(&wake);
        Self {
            log,
            name: name.to_owned(),
            pool: OwnPool::beside(pool.clone(), 2),
            patient: OwnPool::beside(pool, 2),
            route: Route::Direct,
            owner: Owner::here(),
            holder: Uuid::new_v4(),
            lease: LEASE,
            poll: POLL,
            batch: BATCH,
            gathering: Duration::ZERO,
            wake,
            place: Mutex::default(),
            epoch: AtomicI64::new(0),
        }
        .through(Route::Direct)
    }

    /// How the pool reaches PostgreSQL.
    #[must_use]
    pub fn through(mut self, route: Route) -> Self {
        self.route = route;
        self.pool = self.pool.limited(route, LIMITS.statement);
        self.patient = self.patient.limited(route, PATIENT.statement);
        self
    }

    /// The name that is shown.
    #[must_use]
    pub fn owner(mut self, owner: Owner) -> Self {
        self.owner = owner;
        self
    }

    /// How long it is believed to live without a word (3 s); after that another takes over.
    #[must_use]
    pub const fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }

    /// How often it looks by itself (100 ms).
    #[must_use]
    pub const fn poll(mut self, poll: Duration) -> Self {
        self.poll = poll;
        self
    }

    /// Rows that are numbered, and told of, at once (5,000 at most).
    #[must_use]
    pub fn batch(mut self, rows: usize) -> Self {
        self.batch = rows.clamp(1, LOOK);
        self
    }

    /// How long it gathers rows before it looks (not at all), as long as little is waiting: what comes
    /// meanwhile shares a commit, and whoever has appended has the machine for what he does next.
    #[must_use]
    pub const fn gathering(mut self, time: Duration) -> Self {
        self.gathering = time;
        self
    }

    async fn line(&self) -> sqlx::Result<HungUp> {
        line(self.pool.get(), self.route, &LIMITS).await
    }

    /// Our part, after asking for it where that is due.
    async fn stand(&self, place: Place) -> sqlx::Result<Place> {
        let known = match place {
            Place::Leading(tenure) if tenure.renewed_at.elapsed() < self.lease / 3 => {
                return Ok(Place::Leading(tenure));
            }
            Place::Waiting(until) if Instant::now() < until => return Ok(Place::Waiting(until)),
            Place::Leading(tenure) => Some(tenure),
            Place::Unknown | Place::Waiting(_) => None,
        };
        let asked_at = Instant::now();
        let seen = known.as_ref().and_then(|tenure| tenure.seen.as_ref());
        let Some((epoch, seen)) = self.take(seen).await? else {
            return Ok(Place::Waiting(asked_at + ASK));
        };
        self.epoch.store(epoch, Ordering::Relaxed);
        if let Some(tenure) = known.filter(|tenure| tenure.epoch == epoch) {
            return Ok(Place::Leading(Tenure {
                renewed_at: asked_at,
                ..tenure
            }));
        }
        tracing::info!(
            worker = self.name,
            log = self.log.name(),
            epoch,
            "sequencer is active"
        );
        Ok(Place::Leading(Tenure {
            epoch,
            renewed_at: asked_at,
            seen,
            is_near: false,
            sweeping: std::sync::Mutex::new(Sweeping::Later(asked_at)),
        }))
    }

    /// Takes the lease, or renews it, and writes down what was seen.
    async fn take(&self, seen: Option<&Seen>) -> sqlx::Result<Option<(i64, Option<Seen>)>> {
        let mut line = self.line().await?;
        let who = (self.owner.as_str(), self.holder);
        let taking = self
            .log
            .store
            .take(line.connection(), who, self.lease, seen);
        let taken = within(LIMIT, taking).await?;
        line.close().await?;
        Ok(taken)
    }

    async fn number(&self, tenure: &Tenure, picked: Picked<'_>) -> sqlx::Result<Option<Moved>> {
        let mut line = self.line().await?;
        let known = (self.lease, tenure.seen.as_ref());
        let store = &self.log.store;
        let numbering = store.number(line.connection(), tenure.epoch, picked, known);
        let moved = within(LIMIT, numbering).await?;
        crash_point("seqlog.numbering");
        line.close().await?;
        Ok(moved)
    }

    /// Numbers what was found. Says whether that is everything; `None` when we are not the one who does
    /// any more.
    async fn number_all(&self, tenure: &mut Tenure, look: &Look) -> Result<Option<bool>, Error> {
        let mut is_whole = look.rows() < LOOK;
        for picked in look.batches(self.batch) {
            crash_point("seqlog.looked");
            let began = Instant::now();
            let Some(moved) = self.number(tenure, picked).await? else {
                self.lost(tenure);
                return Ok(None);
            };
            crash_point("seqlog.numbered");
            tenure.renewed_at = began;
            is_whole &= moved.rows == picked.rows();
            tally::numbered(self.log.name(), moved.rows);
            self.tell(moved.last_seq).await;
            crash_point("seqlog.told");
        }
        Ok(Some(is_whole))
    }

    fn lost(&self, tenure: &Tenure) {
        tracing::warn!(
            worker = self.name,
            log = self.log.name(),
            epoch = tenure.epoch,
            "another sequencer has taken over",
        );
    }

    /// One look, and what it comes to. `None` when we are not the one who numbers any more.
    async fn step(&self, tenure: &mut Tenure) -> Result<Option<Tick>, Error> {
        let swept = self.sweep(tenure).await;
        let swept = swept.filter(|swept| swept.rows() > 0);
        if let Some(swept) = &swept {
            tracing::warn!(
                worker = self.name,
                log = self.log.name(),
                rows = swept.rows(),
                "rows that no look told of are numbered now",
            );
            if self.number_all(tenure, swept).await?.is_none() {
                return Ok(None);
            }
        }
        if tenure.is_near && !self.gathering.is_zero() {
            tokio::time::sleep(self.gathering).await;
        }
        let Some(look) = self.look(tenure).await? else {
            self.lost(tenure);
            return Ok(None);
        };
        let Some(is_whole) = self.number_all(tenure, &look).await? else {
            return Ok(None);
        };
        // Only now: what is not numbered must be found again.
        if is_whole {
            tenure.seen = Some(look.seen.clone());
        }
        tenure.is_near = is_whole;
        let has_worked = swept.is_some() || look.rows() > 0;
        Ok(Some(if has_worked { Tick::Worked } else { Tick::Idle }))
    }

    /// Wakes who follows: here, and wherever somebody listens. Not in the transaction that numbers:
    /// one that notifies holds up all others that do until it is on disk. Readers poll, too.
    async fn tell(&self, last_seq: i64) {
        self.log.numbered.ring();
        let (pool, channel) = (self.pool.get(), &self.log.store.channel);
        let word = last_seq.to_string();
        let telling = worker::notify(pool, channel, &word);
        if let Err(error) = within(LIMIT, telling).await {
            tracing::warn!(
                worker = self.name,
                error = &error as &(dyn std::error::Error + 'static),
                "consumers could not be told, they will poll",
            );
        }
    }
}

impl Worker for Sequencer {
    fn name(&self) -> &str {
        &self.name
    }

    fn poll_interval(&self) -> Duration {
        self.poll
    }

    fn wake(&self) -> Wake {
        self.wake.clone()
    }

    async fn tick(&self) -> Result<Tick, Error> {
        let mut place = self.place.lock().await;
        // Taken out: after whatever goes wrong below, the next tick asks, and knows what is written down.
        let mut tenure = match self.stand(std::mem::take(&mut *place)).await? {
            Place::Leading(tenure) => tenure,
            waiting => {
                *place = waiting;
                return Ok(Tick::Idle);
            }
        };
        let tick = Box::pin(self.step(&mut tenure)).await?;
        if tick.is_some() {
            *place = Place::Leading(tenure);
        }
        Ok(tick.unwrap_or(Tick::Idle))
    }

    /// The next one need not wait for our lease.
    async fn release(&self) {
        let epoch = self.epoch.load(Ordering::Relaxed);
        if epoch == 0 {
            return;
        }
        let left = async {
            let mut line = self.line().await?;
            self.log.store.leave(line.connection(), epoch).await?;
            line.close().await
        };
        if let Err(error) = within(LIMIT, left).await {
            tracing::debug!(
                worker = self.name,
                error = &error as &(dyn std::error::Error + 'static),
                "lease not given back, it will expire",
            );
        }
    }
}

async fn line(pool: &PgPool, route: Route, limits: &Limits) -> sqlx::Result<HungUp> {
    let opening = Box::pin(Line::limited(pool, route, limits));
    let line = within(LIMIT, opening).await?;
    Ok(HungUp::unless_closed(line))
}
