//! Ends what has ended: events at their expiration, events that are older than they are kept. Whoever
//! asks does not see them from the very second on; this is what tells those who follow the log.

use std::time::Duration;

use sqlx::PgPool;
use tasuki::begin;
use tasuki::seqlog::Log;
use tasuki::worker::{Error, Tick, Worker};

use crate::config::Retention;
use crate::store::lapse;

const DAY: Duration = Duration::from_secs(24 * 60 * 60);
/// How often it looks.
const POLL: Duration = Duration::from_secs(1);

/// The worker.
pub(crate) struct Lapse {
    pub(crate) pool: PgPool,
    pub(crate) log: Log,
    pub(crate) retention: Retention,
}

impl Worker for Lapse {
    fn name(&self) -> &str {
        "community.lapse"
    }

    fn poll_interval(&self) -> Duration {
        POLL
    }

    async fn tick(&self) -> Result<Tick, Error> {
        // One that fails keeps none of the others from its work.
        let (expired, aged, removed) = (self.expire().await, self.age().await, self.remove().await);
        if expired? + aged? + removed? == 0 {
            return Ok(Tick::Idle);
        }
        self.log.ring();
        Ok(Tick::Worked)
    }
}

impl Lapse {
    async fn expire(&self) -> sqlx::Result<usize> {
        let mut tx = begin(&self.pool).await?;
        let gone = lapse::expired(&mut tx).await?;
        tx.commit().await?;
        Ok(gone)
    }

    async fn age(&self) -> sqlx::Result<usize> {
        let mut tx = begin(&self.pool).await?;
        let gone = lapse::aged(&mut tx, DAY * self.retention.events_days.into()).await?;
        tx.commit().await?;
        Ok(gone)
    }

    async fn remove(&self) -> sqlx::Result<usize> {
        let mut tx = begin(&self.pool).await?;
        let gone = lapse::deletions(&mut tx, DAY * self.retention.deletions_days.into()).await?;
        tx.commit().await?;
        Ok(gone)
    }
}
