//! What is old and dead goes, what is old and waits is told.
//!
//! What was sent goes by partition, which is the library's work. A dead notification goes with its
//! letter: nothing could be done about that one any more. What waits is never removed, however old
//! it is: that is an anomaly, and somebody has to look.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use sqlx::PgPool;
use tasuki::worker::{Error, Tick, Worker};
use tokio::time::Instant;

use crate::config;
use crate::store::retention;
use crate::watch::number;

/// Notifications that wait for longer than they are kept. Alert `notification-stuck`: above 0.
const STUCK: &str = "tasuki_notification_stuck_rows";
/// The library's metric of rows that go one by one.
const DELETED: &str = "tasuki_upkeep_deleted_rows_total";
/// So many go at once.
const BATCH: u32 = 1000;
/// The longest time between two looks at the clock, whatever is configured.
const POLL: Duration = Duration::from_secs(60);
/// Which version of a thing somebody saw last is remembered for twice as long as notifications are
/// kept: by then nothing older can come, neither from a stream nor as a dead one that is redriven.
const SHOWN_FOR: i32 = 2;
const HOURS_A_DAY: i32 = 24;

/// Removes what is old and dead, and notices what is old and waits.
pub(crate) struct Retention {
    pool: PgPool,
    /// Whether anything is removed.
    removes: bool,
    days: i32,
    every: Duration,
    looked_at: Mutex<Option<Instant>>,
}

impl Retention {
    pub(crate) fn new(pool: PgPool, settings: &config::Retention) -> Self {
        Self {
            pool,
            removes: settings.enabled,
            days: i32::from(settings.retention_days),
            every: settings.cleanup_interval,
            looked_at: Mutex::default(),
        }
    }

    fn is_time(&self) -> bool {
        let looked_at = self.looked_at.lock();
        let looked_at = looked_at.unwrap_or_else(PoisonError::into_inner);
        looked_at.is_none_or(|at| at.elapsed() >= self.every)
    }

    fn has_looked(&self) {
        let looked_at = self.looked_at.lock();
        *looked_at.unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }

    /// Removes some; says whether there may be more.
    async fn remove(&self) -> sqlx::Result<bool> {
        let mut connection = self.pool.acquire().await?;
        let (hours, limit) = (self.days * HOURS_A_DAY, i64::from(BATCH));
        let retired = retention::retire(&mut connection, hours, limit).await?;
        let retired = u64::try_from(retired).unwrap_or(0);
        if retired > 0 {
            tracing::info!(
                notifications = retired,
                "dead notifications are old, removed and their letters closed",
            );
        }
        let forgotten = retention::forget(&mut connection, self.days * SHOWN_FOR, limit).await?;
        for (table, rows) in [("notifications_live", retired), ("shown", forgotten)] {
            metrics::counter!(DELETED, "table" => table).increment(rows);
        }
        Ok(retired.max(forgotten) >= u64::from(BATCH))
    }

    async fn tell(&self) -> sqlx::Result<()> {
        let mut connection = self.pool.acquire().await?;
        let stuck = retention::stuck(&mut connection, self.days * HOURS_A_DAY).await?;
        metrics::gauge!(STUCK).set(number(stuck));
        if stuck > 0 {
            tracing::error!(
                notifications = stuck,
                "notifications wait for longer than they are kept"
            );
        }
        Ok(())
    }
}

impl Worker for Retention {
    fn name(&self) -> &str {
        "notification.retention"
    }

    fn poll_interval(&self) -> Duration {
        POLL.min(self.every)
    }

    async fn tick(&self) -> Result<Tick, Error> {
        if !self.is_time() {
            return Ok(Tick::Idle);
        }
        let removed = match self.removes {
            true => self.remove().await,
            false => Ok(false),
        };
        if matches!(removed, Ok(true)) {
            return Ok(Tick::Worked);
        }
        // Also when nothing could be removed. What nobody could count is no number.
        let told = self.tell().await;
        told.inspect_err(|_| metrics::gauge!(STUCK).set(f64::NAN))?;
        removed?;
        self.has_looked();
        Ok(Tick::Idle)
    }
}
