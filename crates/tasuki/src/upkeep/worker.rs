//! One tick of upkeep: some of everything, and all of it bounded.

use std::sync::PoisonError;
use std::time::Duration;

use tokio::time::Instant;

use super::rules::Expiring;
use super::step::{BATCH, Filled, Step, Table};
use super::store::Sweep;
use super::{Error, Upkeep};
use crate::worker::{self, Tick, Worker};

/// Partitions made per table and tick. A first start of hourly ones needs 26.
const CREATES: usize = 32;
/// Partitions dropped, or looked into, per table and tick.
const DROPS: usize = 8;
/// Batches of rows deleted per table and tick.
const BATCHES: usize = 10;

/// How a pass over one table ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pass {
    /// All is done that can be done now, or another process does it.
    Done,
    /// There is more of the same.
    More,
}

impl Worker for Upkeep {
    fn name(&self) -> &str {
        &self.name
    }

    fn poll_interval(&self) -> Duration {
        self.poll
    }

    async fn tick(&self) -> Result<Tick, worker::Error> {
        let mut passes = Vec::new();
        let cleans = self.is_time_to_clean();
        for (rule, statements) in &self.partitioned {
            let table = Table {
                upkeep: self,
                rule,
                statements,
                keep: rule.keep,
                patience: Duration::ZERO,
            };
            passes.push(table.keep_up(cleans).await);
        }
        for (rule, sweep) in self.expiring.iter().filter(|_| cleans) {
            passes.push(self.keep_expiring(rule, sweep).await);
        }
        // Only now: a table that fails does not keep the others from being kept up.
        let passes = passes.into_iter().collect::<Result<Vec<_>, _>>()?;
        if passes.contains(&Pass::More) {
            return Ok(Tick::Worked);
        }
        if cleans {
            self.has_cleaned();
        }
        Ok(Tick::Idle)
    }
}

impl Upkeep {
    fn is_time_to_clean(&self) -> bool {
        let cleaned_at = self
            .cleaned_at
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        self.clean_every
            .is_some_and(|every| cleaned_at.is_none_or(|at| at.elapsed() >= every))
    }

    /// To the end: what was cut or postponed is still to be done at the next look.
    fn has_cleaned(&self) {
        let mut cleaned_at = self
            .cleaned_at
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        *cleaned_at = Some(Instant::now());
    }
}

impl Table<'_> {
    async fn keep_up(&self, cleans: bool) -> Result<Pass, Error> {
        let mut passes = vec![self.grow().await?];
        if cleans {
            passes.extend([self.shrink().await?, self.sweep().await?]);
        }
        self.report().await?;
        if passes.contains(&Pass::More) {
            Ok(Pass::More)
        } else {
            Ok(Pass::Done)
        }
    }

    async fn grow(&self) -> Result<Pass, Error> {
        let (mut cursor, mut made) = (None, 0);
        while made < CREATES {
            match self.create_next(cursor).await? {
                Step::Did(Filled::Made(next)) => {
                    cursor = Some(next);
                    made += 1;
                }
                Step::Did(Filled::Left(next)) => cursor = Some(next),
                Step::Nothing | Step::Postponed | Step::Busy => return Ok(Pass::Done),
            }
        }
        Ok(Pass::More)
    }

    async fn shrink(&self) -> Result<Pass, Error> {
        for _ in 0..DROPS {
            match self.drop_next().await? {
                Step::Did(_) => {}
                Step::Nothing | Step::Postponed | Step::Busy => return Ok(Pass::Done),
            }
        }
        Ok(Pass::More)
    }

    async fn sweep(&self) -> Result<Pass, Error> {
        for _ in 0..BATCHES {
            if is_last(self.sweep_default().await?) {
                return Ok(Pass::Done);
            }
        }
        Ok(Pass::More)
    }
}

impl Upkeep {
    async fn keep_expiring(&self, rule: &Expiring, sweep: &Sweep) -> Result<Pass, Error> {
        for _ in 0..BATCHES {
            if is_last(self.sweep_expired(rule, sweep).await?) {
                return Ok(Pass::Done);
            }
        }
        Ok(Pass::More)
    }
}

/// A batch that was not full was the last.
fn is_last(batch: Step<u64>) -> bool {
    match batch {
        Step::Did(rows) => rows < u64::from(BATCH),
        Step::Nothing | Step::Postponed | Step::Busy => true,
    }
}
