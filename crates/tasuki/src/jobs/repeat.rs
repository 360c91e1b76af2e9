//! What repeats: schedules that enqueue a job at each of their times.
//!
//! A schedule has a row that says when it is due next. The process that moves that time on
//! enqueues the job in the same transaction, so an occurrence is enqueued once, however many
//! processes look. Times are the database's; while nobody ran, the occurrences that were missed
//! are made up for by *one* job, not by one each.

use std::collections::HashSet;
use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use sqlx::{PgConnection, PgPool};
use time::OffsetDateTime;
use tokio::sync::OnceCell;

use super::cron::{Cron, InvalidCron};
use super::job::is_name;
use super::store::schedule::ScheduleStore;
use super::{Enqueued, Error, Job, Jobs};
use crate::testing::crash_point;
use crate::transaction;
use crate::worker::{self, Tick, Worker, panic_message};

/// How late an occurrence may be noticed.
const POLL: Duration = Duration::from_secs(1);
/// The shortest interval: what is due more often than it is looked at is no schedule.
const LEAST: Duration = Duration::from_secs(1);
/// When a calendar has no next time, which only its end can bring about.
const NEVER: OffsetDateTime = time::macros::datetime!(9999-12-31 00:00 UTC);

/// When something is due again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Repeat {
    rule: Rule,
    expression: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Rule {
    Every(Duration),
    Cron(Box<Cron>),
}

impl Repeat {
    /// Every `interval`, at least a second: the first time one interval after the schedule is first
    /// seen, and then on that grid, however late an occurrence is noticed.
    #[must_use]
    pub fn every(interval: Duration) -> Self {
        let interval = interval.max(LEAST);
        Self {
            rule: Rule::Every(interval),
            expression: format!("every {} s", interval.as_secs_f64()),
        }
    }

    /// At the times of a cron expression, in UTC: `minute hour day-of-month month day-of-week`, with
    /// `*`, lists, ranges, steps and names; or `@hourly`, `@daily`, `@weekly`, `@monthly`, `@yearly`.
    ///
    /// # Errors
    /// When the expression can't be read, or names no day that ever comes.
    pub fn cron(expression: &str) -> Result<Self, InvalidCron> {
        Ok(Self {
            rule: Rule::Cron(Box::new(expression.parse()?)),
            expression: expression.trim().to_owned(),
        })
    }

    /// The first time after `now`, for a schedule that was last due at `last`.
    fn next(&self, last: OffsetDateTime, now: OffsetDateTime) -> OffsetDateTime {
        let next = match &self.rule {
            Rule::Cron(cron) => cron.after(now),
            Rule::Every(interval) => {
                let since = Duration::try_from(now - last).unwrap_or_default();
                let missed = since.as_nanos() / interval.as_nanos().max(1);
                u32::try_from(missed + 1)
                    .ok()
                    .and_then(|steps| interval.checked_mul(steps))
                    .and_then(|ahead| time::Duration::try_from(ahead).ok())
                    .and_then(|ahead| last.checked_add(ahead))
            }
        };
        next.unwrap_or(NEVER)
    }
}

/// The worker that enqueues what repeats. Start it in as many processes as you like.
///
/// A schedule is known by its name. A release that changes its times makes them count from then
/// on; processes of the release before leave it alone as soon as one of the new has started.
pub struct Schedules {
    jobs: Jobs,
    pool: PgPool,
    entries: Vec<Entry>,
    registered: OnceCell<()>,
}

struct Entry {
    name: String,
    repeat: Repeat,
    enqueue: Arc<dyn Enqueue>,
}

/// Enqueues the job of one occurrence.
trait Enqueue: Send + Sync {
    fn enqueue<'a>(
        &'a self,
        jobs: &'a Jobs,
        connection: &'a mut PgConnection,
        due: OffsetDateTime,
    ) -> BoxFuture<'a, Result<Enqueued, Error>>;
}

impl<J: Job, F: Fn(OffsetDateTime) -> J + Send + Sync> Enqueue for F {
    fn enqueue<'a>(
        &'a self,
        jobs: &'a Jobs,
        connection: &'a mut PgConnection,
        due: OffsetDateTime,
    ) -> BoxFuture<'a, Result<Enqueued, Error>> {
        Box::pin(async move { jobs.enqueue(connection, &self(due)).await })
    }
}

impl fmt::Debug for Schedules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let entries = self.entries.iter().map(|e| (&e.name, &e.repeat.expression));
        f.debug_map().entries(entries).finish()
    }
}

impl Schedules {
    /// No schedules yet.
    #[must_use]
    pub fn new(jobs: &Jobs, pool: &PgPool) -> Self {
        Self {
            jobs: jobs.clone(),
            pool: pool.clone(),
            entries: Vec::new(),
            registered: OnceCell::new(),
        }
    }

    /// Enqueues what `job` makes, at each time of `repeat`; it is told the time that was due.
    ///
    /// # Errors
    /// When `name` is invalid, or there twice.
    pub fn repeat<J: Job>(
        mut self,
        name: &str,
        repeat: Repeat,
        job: impl Fn(OffsetDateTime) -> J + Send + Sync + 'static,
    ) -> Result<Self, Error> {
        let owned = || name.to_owned();
        if !is_name(name) {
            return Err(Error::Name { name: owned() });
        }
        if self.entries.iter().any(|entry| entry.name == name) {
            return Err(Error::Twice { name: owned() });
        }
        self.entries.push(Entry {
            name: owned(),
            repeat,
            enqueue: Arc::new(job),
        });
        Ok(self)
    }

    fn store(&self) -> &ScheduleStore {
        &self.jobs.store.schedules
    }

    /// Writes down schedules that are new or have changed. Those that have not keep their time.
    async fn register(&self) -> Result<(), Error> {
        for Entry { name, repeat, .. } in &self.entries {
            // One at a time: releases that differ in their order don't wait for each other.
            let mut tx = transaction::begin(&self.pool).await?;
            let now = self.store().now(&mut tx).await?;
            let next = repeat.next(now, now);
            self.store()
                .register(&mut tx, name, &repeat.expression, next)
                .await?;
            transaction::commit(tx).await?;
        }
        Ok(())
    }

    /// Enqueues the job of `entry` if it is still due, and moves it on. Says whether it did.
    async fn occur(&self, entry: &Entry) -> Result<bool, Error> {
        let expression = &entry.repeat.expression;
        let mut transaction = transaction::begin(&self.pool).await?;
        let due = self
            .store()
            .lock_due(&mut transaction, &entry.name, expression)
            .await?;
        let Some((due, now)) = due else {
            // Somebody was quicker; or it has other times, of a release that is gone again.
            let adopted = self
                .store()
                .adopt(&mut transaction, &entry.name, expression);
            let adopted = adopted.await?;
            transaction::commit(transaction).await?;
            if adopted {
                tracing::warn!(
                    schedule.name = entry.name,
                    "nobody keeps the times of this schedule, ours count again",
                );
            }
            return Ok(false);
        };
        let next = entry.repeat.next(due, now);
        self.store()
            .advance(&mut transaction, &entry.name, due, next)
            .await?;
        let told = entry
            .enqueue
            .enqueue(&self.jobs, &mut transaction, due)
            .await?;
        crash_point("jobs.repeated");
        transaction::commit(transaction).await?;
        tracing::debug!(schedule.name = entry.name, job.id = %told.id(), "schedule was due");
        Ok(true)
    }
}

impl Worker for Schedules {
    fn name(&self) -> &str {
        "jobs.schedules"
    }

    fn poll_interval(&self) -> Duration {
        POLL
    }

    async fn tick(&self) -> Result<Tick, worker::Error> {
        self.registered.get_or_try_init(|| self.register()).await?;
        let names: Vec<&str> = self.entries.iter().map(|e| e.name.as_str()).collect();
        let mut tx = transaction::begin(&self.pool).await?;
        let due: HashSet<String> = self.store().due(&mut tx, &names).await?;
        drop(tx);
        let mut failed: Option<worker::Error> = None;
        for entry in self.entries.iter().filter(|e| due.contains(&e.name)) {
            // One schedule that can't be enqueued does not hold up the others.
            match AssertUnwindSafe(self.occur(entry)).catch_unwind().await {
                Ok(Ok(true)) => self.jobs.ring(),
                Ok(Ok(false)) => {}
                Ok(Err(error)) => failed = Some(error.into()),
                Err(panic) => failed = Some(panic_message(&*panic).into()),
            }
        }
        match failed {
            None => Ok(Tick::Idle),
            Some(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use time::macros::datetime;

    use super::*;

    #[test]
    fn an_interval_stays_on_its_grid_however_late_it_is_noticed() {
        let hourly = Repeat::every(Duration::from_secs(3600));
        let last = datetime!(2026-11-15 10:00 UTC);
        for (now, next) in [
            (
                datetime!(2026-11-15 10:00 UTC),
                datetime!(2026-11-15 11:00 UTC),
            ),
            (
                datetime!(2026-11-15 10:59 UTC),
                datetime!(2026-11-15 11:00 UTC),
            ),
            (
                datetime!(2026-11-15 11:00 UTC),
                datetime!(2026-11-15 12:00 UTC),
            ),
            (
                datetime!(2026-11-18 03:30 UTC),
                datetime!(2026-11-18 04:00 UTC),
            ),
        ] {
            assert_eq!(hourly.next(last, now), next);
        }
    }

    #[test]
    fn no_interval_is_too_short_or_too_long() {
        let now = datetime!(2026-11-15 10:00 UTC);
        let next = Repeat::every(Duration::ZERO).next(now, now);
        assert_eq!(next, now + LEAST);
        assert_eq!(Repeat::every(Duration::MAX).next(now, now), NEVER);
    }
}
