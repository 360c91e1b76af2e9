//! The job queue against a real database.

mod enqueue;
mod lease;
mod queue;
mod repeat;
mod run;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use sqlx::{AssertSqlSafe, PgPool};
use tasuki::jobs::{
    BoxError, Context, Failure, Handler, Job, Jobs, Priority, Queue, Registry, Work,
};
use tasuki::lease::Runner;
use tasuki::migrate::library;
use tasuki::retry::Backoff;
use tasuki::{Clock, Schema, worker::Supervisor};
use tasuki_testkit::TestDb;

use crate::heard::Heard;

const GRACE: Duration = Duration::from_secs(10);
const HOUR: Duration = Duration::from_secs(3600);

/// A job whose options are its data.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Task {
    name: String,
    tries: Option<u32>,
    timeout_ms: Option<u64>,
    backoff_ms: Option<u64>,
    unique: Option<String>,
    unique_ms: Option<u64>,
    priority: u8,
}

fn task(name: &str) -> Task {
    Task {
        name: name.to_owned(),
        ..Task::default()
    }
}

fn unique(name: &str) -> Task {
    Task {
        unique: Some(name.to_owned()),
        ..task(name)
    }
}

impl Job for Task {
    const KIND: &'static str = "task";

    fn tries(&self) -> u32 {
        self.tries.unwrap_or(3)
    }

    fn timeout(&self) -> Duration {
        self.timeout_ms.map_or(GRACE, Duration::from_millis)
    }

    fn backoff(&self) -> Backoff {
        let wait = self.backoff_ms.map_or(HOUR, Duration::from_millis);
        Backoff::list([wait])
    }

    fn unique_id(&self) -> Option<String> {
        self.unique.clone()
    }

    fn unique_for(&self) -> Duration {
        self.unique_ms.map_or(HOUR, Duration::from_millis)
    }

    fn priority(&self) -> Priority {
        match self.priority {
            0 => Priority::Normal,
            1 => Priority::Urgent,
            2 => Priority::High,
            _ => Priority::Low,
        }
    }
}

/// A migrated database and its jobs.
struct Bench {
    db: TestDb,
    jobs: Jobs,
}

impl Bench {
    async fn new() -> Self {
        let schema = Schema::new("app").unwrap();
        Self {
            db: TestDb::new(&[library(&schema)]).await,
            jobs: Jobs::new(&schema),
        }
    }

    fn pool(&self) -> &PgPool {
        &self.db.pool
    }

    async fn push(&self, job: &Task) -> tasuki::jobs::JobId {
        self.jobs.push(self.pool(), job).await.unwrap().id()
    }

    fn worker<R>(&self, run: impl Fn(Task, Context) -> R + Send + Sync + 'static) -> Runner<Work>
    where
        R: Future<Output = Result<(), Failure>> + Send + 'static,
    {
        self.worker_of(&default_queue(), &Registry::new().on::<Task, _>(run))
    }

    fn worker_of(&self, queue: &Queue, registry: &Registry) -> Runner<Work> {
        queue.worker(&self.jobs, self.pool(), registry).unwrap()
    }

    async fn execute(&self, sql: &str) -> u64 {
        let done = sqlx::query(AssertSqlSafe(sql)).execute(self.pool()).await;
        done.unwrap().rows_affected()
    }

    async fn number(&self, sql: &str) -> i64 {
        let sql = AssertSqlSafe(format!("SELECT ({sql})::bigint"));
        sqlx::query_scalar(sql)
            .fetch_one(self.pool())
            .await
            .unwrap()
    }

    async fn text(&self, sql: &str) -> Option<String> {
        let sql = AssertSqlSafe(format!("SELECT ({sql})::text"));
        sqlx::query_scalar(sql)
            .fetch_one(self.pool())
            .await
            .unwrap()
    }

    /// Status and attempts of the only job.
    async fn only(&self) -> (String, i32) {
        sqlx::query_as("SELECT status, attempt_count FROM app.jobs")
            .fetch_one(self.pool())
            .await
            .unwrap()
    }

    async fn left(&self) -> i64 {
        self.number("SELECT count(*) FROM app.jobs").await
    }

    /// Makes everything due that waits for another attempt.
    async fn make_due(&self) {
        self.execute("UPDATE app.jobs SET next_retry_at = now() WHERE status = 'PENDING'")
            .await;
    }

    /// Lets every claim be over, as if its worker had been away for longer than its lease.
    async fn expire(&self) {
        let rows = self
            .execute("UPDATE app.jobs SET lease_until = now() - interval '1 s'")
            .await;
        assert!(rows > 0);
    }
}

/// The default queue, looked at often.
fn default_queue() -> Queue {
    Queue::new("default").poll(Duration::from_millis(20))
}

fn start(worker: Runner<Work>) -> Supervisor {
    let supervisor = Supervisor::new(Clock::system());
    supervisor.start(worker);
    supervisor
}

/// The names of jobs that ran, in order.
#[derive(Clone, Debug, Default)]
struct Ran(Arc<Mutex<Vec<String>>>);

impl Ran {
    fn add(&self, name: &str) {
        self.0.lock().unwrap().push(name.to_owned());
    }

    fn names(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }

    /// A handler that succeeds and says so here.
    fn handler(&self) -> impl Fn(Task, Context) -> std::future::Ready<Result<(), Failure>> + use<> {
        let ran = self.clone();
        move |job: Task, _| {
            ran.add(&job.name);
            std::future::ready(Ok(()))
        }
    }
}
