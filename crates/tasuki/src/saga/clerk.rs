//! The clerk of an engine. It writes down which definitions the engine runs, for people, whose processes
//! have none of its code; and it counts the sagas that are due and that the engine can't run, because it
//! does not know their version. Nobody runs those that no engine knows: they wait, and say nothing.
//!
//! No saga waits for the clerk.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::engine::{Inner, lock};
use super::store::outlines::Due;
use super::tally;
use crate::lease::{Line, within};
use crate::worker::{Error, Tick, Worker};

/// How many times as often the engine looks for sagas.
const RARELY: u32 = 25;
/// How long an answer of the database is waited for.
const PATIENCE: Duration = Duration::from_secs(5);

pub(super) struct Clerk {
    name: String,
    inner: Arc<Inner>,
    /// Whether the definitions are written down.
    is_written: AtomicBool,
    /// Names and versions that were counted before.
    told: Mutex<HashSet<(String, i32)>>,
}

impl Clerk {
    pub(super) fn new(inner: Arc<Inner>) -> Self {
        Self {
            name: format!("{}-clerk", inner.settings.name),
            inner,
            is_written: AtomicBool::new(false),
            told: Mutex::default(),
        }
    }

    async fn write_down(&self) -> sqlx::Result<()> {
        let Inner {
            pool,
            settings,
            registry,
            sagas,
            ..
        } = &*self.inner;
        let mut line = Line::open(pool.get(), settings.route).await?;
        let all = registry.all();
        let written = sagas.outlines.define(line.connection(), &all);
        let written = within(PATIENCE, written).await;
        written.inspect_err(|_| line.hang_up())?;
        line.close().await
    }

    async fn due(&self) -> sqlx::Result<Vec<Due>> {
        let Inner {
            pool,
            settings,
            sagas,
            ..
        } = &*self.inner;
        let mut line = Line::open(pool.get(), settings.route).await?;
        let due = within(PATIENCE, sagas.outlines.due(line.connection())).await;
        let due = due.inspect_err(|_| line.hang_up())?;
        line.close().await?;
        Ok(due)
    }

    /// What is known here counts as nothing, also where others can't run it.
    fn count(&self, due: Vec<Due>) {
        let (names, versions) = self.inner.registry.known();
        let known: HashSet<(String, i32)> = names.into_iter().zip(versions).collect();
        let worker = &self.inner.settings.name;
        let mut told = lock(&self.told);
        for (name, version) in told.drain().chain(known.iter().cloned()) {
            tally::unknown(worker, &name, version, 0);
        }
        for saga in due {
            let which = (saga.definition, saga.version);
            if !known.contains(&which) {
                tally::unknown(worker, &which.0, which.1, saga.sagas);
                told.insert(which);
            }
        }
    }
}

impl Worker for Clerk {
    fn name(&self) -> &str {
        &self.name
    }

    fn poll_interval(&self) -> Duration {
        self.inner.settings.poll * RARELY
    }

    async fn tick(&self) -> Result<Tick, Error> {
        if !self.is_written.load(Ordering::SeqCst) {
            self.write_down().await?;
            self.is_written.store(true, Ordering::SeqCst);
        }
        let due = self.due().await?;
        self.count(due);
        Ok(Tick::Idle)
    }
}
