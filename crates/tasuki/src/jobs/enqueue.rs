//! The handle on a schema's jobs: enqueue, look at, cancel, ring.

use std::collections::HashMap;
use std::sync::Arc;

use sqlx::{PgConnection, PgPool};
use tracing::Span;
use uuid::Uuid;

use super::job::{Draft, seconds};
use super::store::{Due, Store};
use super::{Error, Job, JobId, Schedule, View, tally};
use crate::worker::{Bell, Listener, Ringer};
use crate::{Clock, Schema, uuid_v7};

/// How often a unique job is told of twins that are gone again when it looks. A second round is
/// rare, and a third needs a queue that empties itself while we look.
const ROUNDS: usize = 10;

/// The jobs of one schema. Clones are cheap and ring the same bell.
#[derive(Clone, Debug)]
pub struct Jobs {
    pub(super) store: Arc<Store>,
    bell: Bell,
    clock: Clock,
    trace: fn() -> Option<String>,
    pub(super) adopt: fn(&Span, &str),
}

/// What became of a job that was enqueued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Enqueued {
    /// It is there once the transaction commits.
    New(JobId),
    /// Its twin, this one, is waiting or running: nothing was written.
    Duplicate(JobId),
}

impl Enqueued {
    /// The job that will do it: this one, or its twin.
    #[must_use]
    pub const fn id(self) -> JobId {
        match self {
            Self::New(id) | Self::Duplicate(id) => id,
        }
    }
}

impl Jobs {
    /// The jobs in `schema`.
    #[must_use]
    pub fn new(schema: &Schema) -> Self {
        Self {
            store: Arc::new(Store::new(schema)),
            bell: Bell::new(),
            clock: Clock::system(),
            trace: || None,
            adopt: |_, _| {},
        }
    }

    /// Stores with each job the `traceparent` that this answers: the trace of whoever enqueues.
    #[must_use]
    pub fn with_trace(mut self, current: fn() -> Option<String>) -> Self {
        self.trace = current;
        self
    }

    /// Lets this make the span of a run a child of the `traceparent` that is stored with its job.
    #[must_use]
    pub fn continuing_trace(mut self, adopt: fn(&Span, &str)) -> Self {
        self.adopt = adopt;
        self
    }

    /// Takes the time part of ids from `clock`. Due times are the database's in any case.
    #[must_use]
    pub fn with_clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    /// Enqueues `job` in the caller's transaction: it runs if, and only if, that commits.
    ///
    /// A unique job whose twin was enqueued by a transaction that is still open waits for that
    /// transaction: only its end says which of them there is. One whose twin is committed waits
    /// for nothing and locks nothing.
    ///
    /// # Errors
    /// When the job can't be stored as it is, which leaves the transaction usable; or when the
    /// database can't do it, which does not.
    pub async fn enqueue<J: Job>(
        &self,
        connection: &mut PgConnection,
        job: &J,
    ) -> Result<Enqueued, Error> {
        self.enqueue_with(connection, job, Schedule::Now).await
    }

    /// As [`enqueue`](Self::enqueue), for later.
    ///
    /// # Errors
    /// As [`enqueue`](Self::enqueue).
    pub async fn enqueue_with<J: Job>(
        &self,
        connection: &mut PgConnection,
        job: &J,
        schedule: Schedule,
    ) -> Result<Enqueued, Error> {
        let draft = Draft::of(job)?;
        let due = due(schedule)?;
        if draft.unique.is_some() {
            let told = self
                .insert_set::<J>(connection, std::slice::from_ref(&draft), &due)
                .await?;
            let contended = Error::Contended { kind: J::KIND };
            return told.into_iter().next().ok_or(contended);
        }
        let id = uuid_v7(&self.clock);
        let trace = self.traceparent();
        self.store
            .insert::<J>(connection, id, &draft, trace.as_deref(), &due)
            .await?;
        tally::enqueued::<J>(1);
        Ok(Enqueued::New(id.into()))
    }

    /// Enqueues many in one statement; answers in their order.
    ///
    /// # Errors
    /// As [`enqueue`](Self::enqueue); roll back then, some may have been written.
    pub async fn enqueue_all<J: Job>(
        &self,
        connection: &mut PgConnection,
        jobs: &[J],
    ) -> Result<Vec<Enqueued>, Error> {
        self.enqueue_all_with(connection, jobs, Schedule::Now).await
    }

    /// As [`enqueue_all`](Self::enqueue_all), for later.
    ///
    /// # Errors
    /// As [`enqueue_all`](Self::enqueue_all).
    pub async fn enqueue_all_with<J: Job>(
        &self,
        connection: &mut PgConnection,
        jobs: &[J],
        schedule: Schedule,
    ) -> Result<Vec<Enqueued>, Error> {
        let due = due(schedule)?;
        let drafts = jobs.iter().map(Draft::of).collect::<Result<Vec<_>, _>>()?;
        self.insert_set::<J>(connection, &drafts, &due).await
    }

    /// Enqueues `job` in a transaction of its own, and rings. The pool must reach PostgreSQL
    /// directly; through a pooler in transaction mode, begin one and use
    /// [`enqueue`](Self::enqueue).
    ///
    /// # Errors
    /// As [`enqueue`](Self::enqueue), or when the pool has no connection.
    pub async fn push<J: Job>(&self, pool: &PgPool, job: &J) -> Result<Enqueued, Error> {
        let mut connection = pool.acquire().await?;
        // One statement is a transaction; only a unique job that met too many twins takes more,
        // and then the earlier ones have written nothing.
        let told = self.enqueue(&mut connection, job).await?;
        self.ring();
        Ok(told)
    }

    /// Wakes the workers, here and, where a [`ringer`](Self::ringer) runs, elsewhere. Call it after
    /// the commit; forgetting it costs at most one poll.
    pub fn ring(&self) {
        self.bell.ring();
    }

    /// What [`ring`](Self::ring) rings.
    #[must_use]
    pub const fn bell(&self) -> &Bell {
        &self.bell
    }

    /// A worker that passes rings on to other processes, where a [`listener`](Self::listener) runs.
    #[must_use]
    pub fn ringer(&self, pool: &PgPool) -> Ringer {
        let name = format!("{}-ringer", self.channel());
        Ringer::new(&name, pool.clone(), self.channel(), &self.bell)
    }

    /// A worker that wakes the queues of this process when a [`ringer`](Self::ringer) of another
    /// rings. It keeps one connection of `pool`, which must reach PostgreSQL directly.
    #[must_use]
    pub fn listener(&self, pool: &PgPool) -> Listener {
        let name = format!("{}-listener", self.channel());
        Listener::new(&name, pool.clone()).rings(self.channel(), &self.bell)
    }

    /// The channel between the two, for a [`Listener`] that hears several.
    #[must_use]
    pub fn channel(&self) -> &str {
        &self.store.channel
    }

    /// Takes back a job that is waiting. False when there is none: it has begun, or is dead, or
    /// finished, or never was.
    ///
    /// # Errors
    /// When the database can't do it.
    pub async fn cancel(&self, connection: &mut PgConnection, id: JobId) -> Result<bool, Error> {
        Ok(self.store.cancel(connection, id).await?)
    }

    /// One job: waiting, running, dead, or finished where its queue keeps those.
    ///
    /// # Errors
    /// When the database can't be asked.
    pub async fn get(
        &self,
        connection: &mut PgConnection,
        id: JobId,
    ) -> Result<Option<View>, Error> {
        Ok(self.store.get(connection, id).await?)
    }

    /// Every statement, for a test that prepares them all.
    #[doc(hidden)]
    pub fn statements(&self) -> impl Iterator<Item = &str> {
        self.store.statements()
    }

    /// Inserts drafts, and tells new ones from those that have a twin.
    async fn insert_set<J: Job>(
        &self,
        connection: &mut PgConnection,
        drafts: &[Draft],
        due: &Due,
    ) -> Result<Vec<Enqueued>, Error> {
        let trace = self.traceparent();
        let ids: Vec<Uuid> = drafts.iter().map(|_| uuid_v7(&self.clock)).collect();
        let mut open: Vec<(Uuid, &Draft)> = ids.iter().copied().zip(drafts).collect();
        // Everybody takes unique ids in the same order, so that sets don't deadlock.
        open.sort_by(|(_, a), (_, b)| unique_id(a).cmp(&unique_id(b)));
        let mut told = HashMap::with_capacity(open.len());
        for _ in 0..ROUNDS {
            if open.is_empty() {
                break;
            }
            let holders = self
                .store
                .insert_set::<J>(connection, &open, trace.as_deref(), due)
                .await?;
            told.extend(holders);
            // A twin that committed while we looked can be seen by the next statement only.
            open.retain(|(id, _)| !told.contains_key(id));
        }
        let answers = ids.iter().map(|id| match told.get(id) {
            Some(holder) if holder == id => Ok(Enqueued::New((*id).into())),
            Some(holder) => Ok(Enqueued::Duplicate((*holder).into())),
            None => Err(Error::Contended { kind: J::KIND }),
        });
        let answers = answers.collect::<Result<Vec<_>, _>>()?;
        let new = answers
            .iter()
            .filter(|told| matches!(told, Enqueued::New(_)));
        tally::enqueued::<J>(new.count());
        Ok(answers)
    }

    fn traceparent(&self) -> Option<String> {
        (self.trace)().filter(|text| !text.contains('\0'))
    }
}

fn unique_id(draft: &Draft) -> Option<&str> {
    draft.unique.as_ref().map(|unique| unique.id.as_str())
}

fn due(schedule: Schedule) -> Result<Due, Error> {
    Ok(match schedule {
        Schedule::Now => Due::default(),
        Schedule::In(wait) => Due {
            wait: seconds(wait)?,
            ..Due::default()
        },
        Schedule::At(at) => Due {
            not_before: Some(at),
            ..Due::default()
        },
    })
}
