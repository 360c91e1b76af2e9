//! A queue and its worker: a configuration of the lease engine.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use sqlx::{PgConnection, PgPool};
use time::OffsetDateTime;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::Instrument;
use uuid::Uuid;

use super::burial;
use super::job::is_name;
use super::registry::{AnyHandler, Attempt};
use super::store::{JobRow, Store};
use super::tally::{self, Tally};
use super::{Error, JobId, Jobs, Priority, Registry};
use crate::lease::{
    self, Claim, Claimed, Fence, Leases, Look, Outcome, Owner, Route, Runner, Settings, Unit,
    Watermark,
};

/// Shorter settings would only make a busy loop of renewals and polls.
const LEAST_LEASE: Duration = Duration::from_millis(100);
const LEAST_POLL: Duration = Duration::from_millis(1);
/// How long a job of an unknown kind is left alone, so that a process of another release may
/// find it before we do again.
const UNKNOWN_PAUSE: Duration = Duration::from_secs(5);
/// The least time between two warnings about unknown kinds.
const WARN_EVERY: Duration = Duration::from_secs(10);
/// From this many lost workers on, a job is tried without others like it.
const LOST_ALONE: i32 = 2;
/// A job whose worker was lost this often in a row is taken to be the reason.
const LOST_LIMIT: i32 = 10;
/// How long such jobs wait for each other.
const SUSPECT_PAUSE: Duration = Duration::from_secs(1);

/// How one queue is worked on by one process. Every process that should help has its own worker.
#[derive(Clone, Debug)]
pub struct Queue {
    name: String,
    concurrency: usize,
    poll: Duration,
    lease: Duration,
    batch: usize,
    keep_finished: bool,
    owner: Option<Owner>,
    route: Route,
}

impl Queue {
    /// The queue `name`: 10 jobs side by side, a poll every 500 ms, a lease of 60 s that is renewed
    /// while a job runs, finished jobs deleted.
    #[must_use]
    pub fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            concurrency: 10,
            poll: Duration::from_millis(500),
            lease: Duration::from_secs(60),
            batch: 500,
            keep_finished: false,
            owner: None,
            route: Route::Direct,
        }
    }

    /// Runs at most this many jobs side by side in this process. 0 means 1.
    #[must_use]
    pub const fn concurrency(mut self, jobs: usize) -> Self {
        self.concurrency = jobs;
        self
    }

    /// Looks for due jobs this often when nobody rings.
    #[must_use]
    pub const fn poll(mut self, poll: Duration) -> Self {
        self.poll = poll;
        self
    }

    /// Gives the jobs of a process that has died to others after this long. It is renewed while
    /// a job runs, so it need not be as long as a timeout.
    #[must_use]
    pub const fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }

    /// Claims at most this many jobs at a time. More cost fewer round trips while jobs are short.
    #[must_use]
    pub const fn batch(mut self, jobs: usize) -> Self {
        self.batch = jobs;
        self
    }

    /// Keeps finished jobs in `jobs_done` instead of deleting them. How long they stay is for
    /// [`Upkeep`](crate::upkeep::Upkeep) to say: seven days, unless told otherwise.
    #[must_use]
    pub const fn keep_finished(mut self) -> Self {
        self.keep_finished = true;
        self
    }

    /// How the pool reaches PostgreSQL, if not directly.
    #[must_use]
    pub const fn through(mut self, route: Route) -> Self {
        self.route = route;
        self
    }

    /// The name that claims carry, for people: by default this host and process.
    #[must_use]
    pub fn owner(mut self, owner: Owner) -> Self {
        self.owner = Some(owner);
        self
    }

    /// A worker of this queue, which [`Jobs::ring`] wakes.
    ///
    /// It opens up to four connections of its own, with the options of `pool`: to claim, to renew, to
    /// settle, and now and then to look for what was left behind. Those of `pool` itself are for the
    /// handlers.
    ///
    /// # Errors
    /// When the queue's name is invalid, or a kind has two handlers.
    pub fn worker(
        &self,
        jobs: &Jobs,
        pool: &PgPool,
        registry: &Registry,
    ) -> Result<Runner<Work>, Error> {
        if !is_name(&self.name) {
            let name = self.name.clone();
            return Err(Error::Name { name });
        }
        let mut kinds = HashMap::new();
        for handler in &registry.handlers {
            let kind = Kind {
                handler: Arc::clone(handler),
                tally: Tally::new(&self.name, handler.kind()),
            };
            if kinds.insert(handler.kind(), kind).is_some() {
                let name = handler.kind().to_owned();
                return Err(Error::Twice { name });
            }
        }
        let work = Work {
            name: format!("jobs.{}", self.name),
            queue: self.name.clone(),
            store: Arc::clone(&jobs.store),
            adopt: jobs.adopt,
            kinds,
            watermark: Watermark::new(Priority::COUNT),
            keep: self.keep_finished,
            stopping: CancellationToken::new(),
            warned: Mutex::new(None),
            alone: Arc::default(),
        };
        let settings = Settings {
            pool: pool.clone(),
            route: self.route,
            owner: self.owner.clone().unwrap_or_else(Owner::here),
            unit: Unit::Row,
            slots: self.concurrency.max(1),
            batch: self.batch.max(1),
            lease: self.lease.max(LEAST_LEASE),
            poll: self.poll.max(LEAST_POLL),
        };
        let runner = Runner::new(work, settings);
        jobs.bell().wakes(&runner.wake());
        Ok(runner)
    }
}

/// The jobs of one queue, as the lease engine runs them.
pub struct Work {
    name: String,
    queue: String,
    store: Arc<Store>,
    adopt: fn(&tracing::Span, &str),
    kinds: HashMap<&'static str, Kind>,
    watermark: Watermark,
    keep: bool,
    stopping: CancellationToken,
    /// When we last told of a kind that we don't know.
    warned: Mutex<Option<Instant>>,
    /// A suspect is here: see [`Alone`].
    alone: Arc<AtomicBool>,
}

/// What this release knows of a kind.
struct Kind {
    handler: Arc<dyn AnyHandler>,
    tally: Tally,
}

/// What settling a finished job needs to know.
#[derive(Clone, Copy, Debug)]
pub struct Finished {
    is_unique: bool,
}

/// A claimed job, and when it was claimed.
#[derive(Debug)]
pub struct Held {
    job: JobRow,
    since: Instant,
    standing: Standing,
}

/// How a job stands whose workers were lost.
#[derive(Debug)]
enum Standing {
    /// Not so often that it means anything.
    Innocent,
    /// Again and again, and it is the only one of this process that runs now.
    Suspect(#[expect(dead_code, reason = "held until the job ends")] Alone),
    /// Again and again, and another one of those is here.
    NotNow,
    /// Too often.
    Guilty,
}

/// Held by the one suspect that runs: if it is the job that kills its process, it takes no other
/// suspect along, which may be innocent.
#[derive(Debug)]
struct Alone(Arc<AtomicBool>);

impl Drop for Alone {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

impl std::fmt::Debug for Work {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Work")
            .field("queue", &self.queue)
            .field("kinds", &self.kinds.keys())
            .finish_non_exhaustive()
    }
}

impl lease::Work for Work {
    type Row = Held;
    type Done = Finished;

    fn name(&self) -> &str {
        &self.name
    }

    fn leases(&self) -> &Leases {
        &self.store.leases
    }

    async fn claim(
        &self,
        connection: &mut PgConnection,
        claim: &Claim<'_>,
    ) -> sqlx::Result<Vec<Claimed<Held>>> {
        let start = self.watermark.start();
        let claimed = self.store.claim(connection, claim, &self.queue, &start);
        let (mut rows, now) = claimed.await?;
        // The statement answers in the order of the heap.
        rows.sort_by_key(|claimed| (claimed.row.priority, claimed.row.due_at));
        let due = rows.iter().map(|claimed| {
            let lane = usize::try_from(claimed.row.priority).unwrap_or(usize::MAX);
            (lane, claimed.row.due_at)
        });
        let full = rows.len() >= claim.limit;
        self.watermark.reached(&start, full, due);
        if let (false, Some(now)) = (full, now) {
            self.watermark.all_before(&start, now);
        }
        let since = Instant::now();
        let held = rows.into_iter().map(|claimed| Claimed {
            fence: claimed.fence,
            failed_attempts: claimed.failed_attempts,
            row: Held {
                standing: self.standing(&claimed.row),
                job: claimed.row,
                since,
            },
        });
        Ok(held.collect())
    }

    fn expects_more(&self, rows: &[Claimed<Held>], limit: usize) -> bool {
        rows.len() >= limit || self.watermark.owes_a_claim()
    }

    fn watermark(&self) -> Option<&Watermark> {
        Some(&self.watermark)
    }

    async fn look(
        &self,
        connection: &mut PgConnection,
        look: &Look,
    ) -> sqlx::Result<Vec<(usize, OffsetDateTime)>> {
        self.store.look(connection, &self.queue, look).await
    }

    async fn run(&self, unit: Vec<Claimed<Held>>) -> Vec<(Fence, Outcome<Finished>)> {
        let mut ended = Vec::with_capacity(unit.len());
        for claimed in unit {
            ended.push((claimed.fence, self.attempt(claimed).await));
        }
        ended
    }

    async fn settle(
        &self,
        connection: &mut PgConnection,
        done: &[(Fence, Finished)],
    ) -> sqlx::Result<Vec<Uuid>> {
        let fences: Vec<Fence> = done.iter().map(|(fence, _)| *fence).collect();
        if self.keep || done.iter().any(|(_, finished)| finished.is_unique) {
            self.store.finish(connection, &fences, self.keep).await
        } else {
            self.leases().delete(connection, &fences).await
        }
    }

    async fn bury(
        &self,
        connection: &mut PgConnection,
        dead: &[(Uuid, String)],
    ) -> sqlx::Result<()> {
        let ids: Vec<Uuid> = dead.iter().map(|(id, _)| *id).collect();
        let errors: HashMap<Uuid, &str> = dead.iter().map(|(id, e)| (*id, e.as_str())).collect();
        for job in self.store.buried(connection, &ids).await? {
            let Some(kind) = self.kinds.get(job.kind.as_str()) else {
                continue; // Only those that we know die here.
            };
            kind.tally.dead();
            let error = errors.get(&job.id).copied().unwrap_or_default();
            burial::bury(&*kind.handler, self.adopt, connection, &job, error).await?;
        }
        Ok(())
    }

    fn stopping(&self) {
        self.stopping.cancel();
    }

    fn panicked(&self, _failed_attempts: u32, message: &str) -> Outcome<Finished> {
        // A handler's panic is contained where its policy is known; this one was ours.
        Outcome::Back {
            after: UNKNOWN_PAUSE,
            error: Some(format!("the worker panicked: {message}")),
        }
    }
}

impl Work {
    /// How a job stands that was just claimed.
    fn standing(&self, job: &JobRow) -> Standing {
        if job.lost >= LOST_LIMIT {
            Standing::Guilty
        } else if job.lost < LOST_ALONE {
            Standing::Innocent
        } else if self.alone.swap(true, Ordering::AcqRel) {
            Standing::NotNow
        } else {
            Standing::Suspect(Alone(Arc::clone(&self.alone)))
        }
    }

    async fn attempt(&self, claimed: Claimed<Held>) -> Outcome<Finished> {
        let Claimed {
            fence,
            failed_attempts,
            row:
                Held {
                    job,
                    since,
                    standing,
                },
        } = claimed;
        let Some(kind) = self.kinds.get(job.kind.as_str()) else {
            return self.unknown(&job.kind);
        };
        match standing {
            Standing::Innocent | Standing::Suspect(_) => {}
            Standing::NotNow => {
                return Outcome::Back {
                    after: SUSPECT_PAUSE,
                    error: Some("its worker was lost, it will be tried alone".to_owned()),
                };
            }
            Standing::Guilty => {
                let error = format!("its worker was lost {} times in a row", job.lost);
                return Outcome::Dead { error };
            }
        }
        let id = JobId::from(fence.id);
        let span = tracing::info_span!(
            "job",
            job.id = %id,
            job.kind = job.kind,
            job.queue = self.queue,
            attempt = failed_attempts.saturating_add(1),
        );
        if let Some(traceparent) = &job.traceparent {
            (self.adopt)(&span, traceparent);
        }
        let attempt = Attempt {
            id,
            failed_attempts,
            waited: job.waited + since.elapsed(),
            payload: job.payload,
            traceparent: job.traceparent,
            stopping: self.stopping.clone(),
        };
        let is_unique = job.is_unique;
        match kind
            .handler
            .attempt(attempt, &kind.tally)
            .instrument(span)
            .await
        {
            Outcome::Done(()) => Outcome::Done(Finished { is_unique }),
            Outcome::Retry { after, error } => Outcome::Retry { after, error },
            Outcome::Snooze { after, error } => Outcome::Snooze { after, error },
            Outcome::Back { after, error } => Outcome::Back { after, error },
            Outcome::Dead { error } => Outcome::Dead { error },
        }
    }

    /// During a rolling deploy the other release knows this kind: not ours to judge.
    fn unknown(&self, kind: &str) -> Outcome<Finished> {
        tally::unknown_kind(&self.queue);
        let mut warned = self.warned.lock().unwrap_or_else(PoisonError::into_inner);
        if warned.is_none_or(|at| at.elapsed() >= WARN_EVERY) {
            *warned = Some(Instant::now());
            tracing::warn!(
                job.kind = kind,
                job.queue = self.queue,
                "no handler for this kind of job, given back",
            );
        }
        Outcome::Back {
            after: UNKNOWN_PAUSE,
            error: Some(format!("no handler for kind {kind}")),
        }
    }
}
