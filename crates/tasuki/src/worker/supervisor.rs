//! Starts workers, watches them, stops them in order.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::health::{Health, Record};
use super::run::run;
use super::{Wake, Worker};
use crate::Clock;

/// How long a worker may take to give back what it holds, after its last tick.
const RELEASE_LIMIT: Duration = Duration::from_secs(5);

/// Runs workers until it is told to stop. Clones share the same workers.
#[derive(Clone, Debug)]
pub struct Supervisor {
    clock: Clock,
    soft: CancellationToken,
    hard: CancellationToken,
    tasks: TaskTracker,
    records: Arc<Mutex<Vec<Record>>>,
}

/// How a stop went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Stopped {
    /// Every running tick came to its end.
    Finished,
    /// Some ticks outlived the grace time and were cut.
    Cut,
}

impl Supervisor {
    /// A supervisor without workers. `clock` dates what [`health`](Self::health) tells.
    #[must_use]
    pub fn new(clock: Clock) -> Self {
        Self {
            clock,
            soft: CancellationToken::new(),
            hard: CancellationToken::new(),
            tasks: TaskTracker::new(),
            records: Arc::default(),
        }
    }

    /// For workers that outlive those of this one, which stop it in the end. Their health is told here.
    pub(crate) fn backstage(&self) -> Self {
        Self {
            records: Arc::clone(&self.records),
            ..Self::new(self.clock.clone())
        }
    }

    /// Starts `worker` on the current runtime. The answer wakes it.
    pub fn start<W: Worker>(&self, worker: W) -> Wake {
        let wake = worker.wake();
        let record = Record::new(self.clock.clone(), worker.name(), worker.stall_after());
        self.records().push(record.clone());
        let (soft, hard, woken) = (self.soft.clone(), self.hard.clone(), wake.clone());
        self.tasks.spawn(async move {
            run(&worker, &woken, &record, &soft, &hard).await;
            if timeout(RELEASE_LIMIT, worker.release()).await.is_err() {
                tracing::warn!(
                    worker = worker.name(),
                    "release timed out, leases will expire"
                );
            }
            record.stopped();
        });
        wake
    }

    /// How every worker is, in the order of their starts.
    #[must_use]
    pub fn health(&self) -> Vec<Health> {
        self.records().iter().map(Record::read).collect()
    }

    /// Lets no worker begin another tick. Returns at once; [`stop`](Self::stop) waits.
    pub fn stop_ticking(&self) {
        self.soft.cancel();
    }

    /// Stops: no new tick, up to `grace` for the running ones, then the rest is cut; every
    /// worker gives back what it holds.
    pub async fn stop(&self, grace: Duration) -> Stopped {
        self.soft.cancel();
        self.tasks.close();
        if timeout(grace, self.tasks.wait()).await.is_ok() {
            return Stopped::Finished;
        }
        self.hard.cancel();
        self.tasks.wait().await;
        Stopped::Cut
    }

    fn records(&self) -> std::sync::MutexGuard<'_, Vec<Record>> {
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
