//! A consumer: follows a log and hands its rows to a handler, in order, none missing.
//!
//! Of several instances of one consumer one is active, under a lease that it renews while it works;
//! another takes over seconds after it is gone. Whatever an instance changes shows its epoch and the
//! offset that it knows: one that was replaced, or whose consumer somebody has moved, changes nothing,
//! and what it did in the transaction of the offset is undone.
//!
//! The numbers of a log have no gaps, so a consumer knows when the next row is missing: retention has
//! removed it. Then it is too far behind, says so at every look, and waits for a person.

mod follow;
mod hold;
mod rebuild;
mod redrive;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use sqlx::PgPool;
use tokio::sync::Mutex;
use tokio::time::Instant;
use uuid::Uuid;

use super::handler::Tx;
use super::store::offsets::{Fence, Found, Instance};
use super::{Handler, Log, State};
use crate::lease::{HungUp, Line, OwnPool, Owner, Route, within};
use crate::retry::Backoff;
use crate::transaction::Limits;
use crate::worker::{Error, Tick, Wake, Worker};

/// How long an instance is believed to live without a word.
const LEASE: Duration = Duration::from_secs(3);
/// How often it looks by itself.
const POLL: Duration = Duration::from_millis(500);
/// How often one that is not active asks whether it should be.
const ASK: Duration = Duration::from_millis(500);
/// Rows that are handled together.
const BATCH: u32 = 500;
/// How often a row is tried.
const ATTEMPTS: u32 = 5;
/// How long a batch may take.
const HANDLE_LIMIT: Duration = Duration::from_secs(60);
/// How long the transaction of a batch may be silent.
const IDLE: Duration = Duration::from_secs(10);
/// How much longer the server bears with a statement than we do.
const ROOM: Duration = Duration::from_secs(5);
/// How long a rebuild may take.
const REBUILD_LIMIT: Duration = Duration::from_secs(24 * 60 * 60);
/// How long a statement may take.
const LIMIT: Duration = Duration::from_secs(30);
/// How long the server bears with what is done on a line of ours.
const LIMITS: Limits = Limits {
    idle: IDLE,
    statement: Duration::from_secs(LIMIT.as_secs() + ROOM.as_secs()),
    lock: None,
};

/// One instance of a consumer: a [`Worker`].
#[derive(Debug)]
pub struct Follower<H> {
    log: Log,
    name: String,
    consumer: String,
    handler: H,
    pool: PgPool,
    own: OwnPool,
    route: Route,
    owner: Owner,
    holder: Uuid,
    begin: Begin,
    batch: Arc<AtomicU32>,
    attempts: u32,
    backoff: Backoff,
    lease: Duration,
    poll: Duration,
    limit: Duration,
    idle: Duration,
    rebuild_limit: Duration,
    wake: Wake,
    place: Mutex<Place>,
}

/// Where a consumer begins that has never been.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Begin {
    /// With the first row of the log. If that is gone by now, it asks for a rebuild.
    #[default]
    First,
    /// With the rows that come from now on.
    Next,
}

/// What an instance knows of its own part.
#[derive(Debug, Default)]
struct Place {
    standing: Option<Standing>,
    /// Another one is active: not to be asked before.
    wait_until: Option<Instant>,
    /// There has been a consumer of this name since this instance first asked: if it is gone, somebody has
    /// taken it away.
    has_been: bool,
    /// As what it was last active.
    epoch: Option<i64>,
}

/// A consumer as its active instance knows it.
#[derive(Clone, Debug)]
struct Standing {
    epoch: i64,
    state: State,
    last_seq: i64,
    /// The highest number of the log when the lease was renewed.
    head: i64,
    careful_until: i64,
    retry_at: Instant,
    is_redriven: bool,
    /// What comes is handled next, before what was put back.
    is_turn_of_log: bool,
    renewed_at: Instant,
}

impl<H: Handler> Follower<H> {
    /// An instance of `consumer`, whose handler's transactions are of `pool`.
    #[must_use]
    pub fn new(log: &Log, consumer: &str, pool: &PgPool, handler: H) -> Self {
        let wake = Wake::default();
        log.numbered.wakes(&wake);
        Self {
            log: log.clone(),
            name: consumer.to_owned(),
            consumer: consumer.to_owned(),
            handler,
            pool: pool.clone(),
            own: OwnPool::beside(pool.clone(), 2).limited(Route::Direct, LIMITS.statement),
            route: Route::Direct,
            owner: Owner::here(),
            holder: Uuid::new_v4(),
            begin: Begin::First,
            batch: Arc::new(AtomicU32::new(BATCH)),
            attempts: ATTEMPTS,
            backoff: Backoff::exponential(Duration::from_millis(200), Duration::from_secs(10))
                .jitter(0.5, 1.0),
            lease: LEASE,
            poll: POLL,
            limit: HANDLE_LIMIT,
            idle: IDLE,
            rebuild_limit: REBUILD_LIMIT,
            wake,
            place: Mutex::default(),
        }
    }

    /// What its worker is called (`<service>.<noun>`); the consumer's name otherwise.
    #[must_use]
    pub fn named(mut self, name: &str) -> Self {
        name.clone_into(&mut self.name);
        self
    }

    /// How the pool reaches PostgreSQL.
    #[must_use]
    pub fn through(mut self, route: Route) -> Self {
        self.route = route;
        self.own = self.own.limited(route, LIMITS.statement);
        self
    }

    /// The name that is shown.
    #[must_use]
    pub fn owner(mut self, owner: Owner) -> Self {
        self.owner = owner;
        self
    }

    /// Where the consumer begins if it has never been.
    #[must_use]
    pub const fn begin(mut self, begin: Begin) -> Self {
        self.begin = begin;
        self
    }

    /// Rows that are handled together at most (500).
    #[must_use]
    pub fn batch(self, rows: u32) -> Self {
        self.batch_of(&Arc::new(AtomicU32::new(rows)))
    }

    /// The same, as a number that may change while it runs: the next batch is of that many rows.
    #[must_use]
    pub fn batch_of(mut self, rows: &Arc<AtomicU32>) -> Self {
        self.batch = Arc::clone(rows);
        self
    }

    fn rows(&self) -> u32 {
        self.batch.load(Ordering::Relaxed).max(1)
    }

    /// How often a row is tried before it is set aside (5), and how long to wait in between (200 ms,
    /// doubled up to 10 s).
    #[must_use]
    pub fn attempts(mut self, attempts: u32, backoff: Backoff) -> Self {
        self.attempts = attempts.max(1);
        self.backoff = backoff;
        self
    }

    /// How long an instance is believed to live without a word (3 s); after that another takes over.
    #[must_use]
    pub const fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }

    /// How often it looks by itself (500 ms).
    #[must_use]
    pub const fn poll(mut self, poll: Duration) -> Self {
        self.poll = poll;
        self
    }

    /// How long a batch may take (60 s); then it is cut, and has failed.
    #[must_use]
    pub const fn limit(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// How long the transaction of a batch may be silent before the server ends it (10 s): that is how
    /// long the locks of a process that has stopped may stand in the way of the one that takes over.
    #[must_use]
    pub const fn idle(mut self, idle: Duration) -> Self {
        self.idle = idle;
        self
    }

    /// How long a rebuild may take (a day).
    #[must_use]
    pub const fn rebuild_limit(mut self, limit: Duration) -> Self {
        self.rebuild_limit = limit;
        self
    }

    /// The transaction of a batch, not begun yet.
    fn tx(&self) -> Tx {
        Tx::new(self.pool.clone(), self.limits())
    }

    /// How long the server bears with a transaction of the handler's.
    fn limits(&self) -> Limits {
        Limits {
            idle: self.idle,
            // What is cut at our own limit has failed; what the server ends was only held up.
            statement: self.limit + ROOM,
            lock: None,
        }
    }

    async fn line(&self) -> sqlx::Result<HungUp> {
        let opening = Box::pin(Line::limited(self.own.get(), self.route, &LIMITS));
        let line = within(LIMIT, opening).await?;
        Ok(HungUp::unless_closed(line))
    }

    /// What a word about the consumer must show.
    fn fence(&self, standing: &Standing) -> Fence<'_> {
        Fence {
            consumer: &self.consumer,
            epoch: standing.epoch,
            last_seq: standing.last_seq,
        }
    }

    /// The consumer, if this instance is the active one: as it was told less than a third of the lease
    /// ago, or as it is.
    async fn stand(&self, place: &mut Place) -> Result<Option<Standing>, Error> {
        let now = Instant::now();
        let known = place.standing.take();
        let fresh = known.filter(|known| now.duration_since(known.renewed_at) < self.lease / 3);
        if fresh.is_some() || place.wait_until.is_some_and(|until| now < until) {
            return Ok(fresh);
        }
        let instance = Instance {
            consumer: &self.consumer,
            owner: self.owner.as_str(),
            holder: self.holder,
            lease: self.lease,
            at_the_end: self.begin == Begin::Next,
            batch: self.rows(),
            may_make: !place.has_been,
        };
        let mut line = self.line().await?;
        let standing = self.log.store.offsets.stand(line.connection(), &instance);
        let found = within(LIMIT, standing).await?;
        let other = match &found {
            Some(_) => None,
            None => self.another(&mut line).await?,
        };
        line.close().await?;
        place.wait_until = None;
        if let Some(log) = other {
            let consumer = &self.consumer;
            return Err(format!("there is a consumer `{consumer}` of another log, {log}").into());
        }
        place.has_been = true;
        let Some(found) = found else {
            place.wait_until = Some(now + ASK);
            return Ok(None);
        };
        self.check(&found)?;
        if place.epoch != Some(found.epoch) {
            tracing::info!(
                consumer = self.consumer,
                epoch = found.epoch,
                seq = found.last_seq,
                "consumer is active",
            );
        }
        place.epoch = Some(found.epoch);
        let pause = Duration::try_from_secs_f64(found.retry_seconds).unwrap_or_default();
        Ok(Some(Standing {
            epoch: found.epoch,
            state: State::read(&found.state)?,
            last_seq: found.last_seq,
            head: found.head,
            careful_until: found.careful_until,
            retry_at: now + pause,
            is_redriven: found.is_redriven,
            is_turn_of_log: true,
            renewed_at: now,
        }))
    }

    /// The other log whose consumer has our name, if there is one.
    async fn another(&self, line: &mut HungUp) -> sqlx::Result<Option<String>> {
        let offsets = &self.log.store.offsets;
        let asking = offsets.of_another(line.connection(), &self.consumer);
        within(LIMIT, asking).await
    }

    /// A log that ends before its consumer has lost rows, or is another one: they come again under the
    /// numbers that the consumer has passed.
    fn check(&self, found: &Found) -> Result<(), Error> {
        if found.last_seq <= found.head || State::read(&found.state)? != State::Following {
            return Ok(());
        }
        let (consumer, at, head) = (&self.consumer, found.last_seq, found.head);
        let error = format!(
            "consumer `{consumer}` is at row {at}, and its log ends at {head}: if the log was restored \
             from an older copy, rebuild the consumer, or move it to a row that is there"
        );
        Err(error.into())
    }

    /// What is to be done now. Whatever it did not write into `place` has to be asked for again.
    async fn step(&self, place: &mut Place) -> Result<Tick, Error> {
        let Some(mut standing) = self.stand(place).await? else {
            return Ok(Tick::Idle);
        };
        let tick = match standing.state {
            State::TooFarBehind => {
                return Err(self.is_too_far_behind(&standing));
            }
            State::Rebuilding => self.rebuild(&standing).await?,
            State::Following => self.advance(&mut standing).await?,
        };
        // `None`: the consumer is not where we thought, or not ours any more.
        if tick.is_some() && standing.state == State::Following {
            place.standing = Some(standing);
        }
        Ok(tick.unwrap_or(Tick::Worked))
    }

    /// Handles what comes and what was put back in turn, so that neither waits for all of the other.
    async fn advance(&self, standing: &mut Standing) -> Result<Option<Tick>, Error> {
        if standing.is_redriven && standing.is_turn_of_log {
            standing.is_turn_of_log = false;
            let tick = self.follow(standing).await?;
            if tick != Some(Tick::Idle) {
                return Ok(tick);
            }
        }
        if standing.is_redriven {
            standing.is_turn_of_log = true;
            if let Some(tick) = self.redrive(standing).await? {
                return Ok(Some(tick));
            }
        }
        self.follow(standing).await
    }
}

impl<H: Handler> Worker for Follower<H> {
    fn name(&self) -> &str {
        &self.name
    }

    fn poll_interval(&self) -> Duration {
        self.poll
    }

    fn wake(&self) -> Wake {
        self.wake.clone()
    }

    fn tick_limit(&self) -> Duration {
        // Every wait has a limit of its own; a rebuild has the longest.
        self.rebuild_limit.max(self.limit) + 4 * LIMIT
    }

    async fn tick(&self) -> Result<Tick, Error> {
        let mut place = self.place.lock().await;
        Box::pin(self.step(&mut place)).await
    }

    /// The next instance need not wait for our lease.
    async fn release(&self) {
        let Some(epoch) = self.place.lock().await.epoch else {
            return;
        };
        let left = async {
            let mut line = self.line().await?;
            let offsets = &self.log.store.offsets;
            offsets
                .leave(line.connection(), &self.consumer, epoch)
                .await?;
            line.close().await
        };
        if let Err(error) = within(LIMIT, left).await {
            tracing::debug!(
                consumer = self.consumer,
                error = &error as &(dyn std::error::Error + 'static),
                "lease not given back, it will expire",
            );
        }
    }
}
