//! A log to be killed at: numbered, followed, and now and then rebuilt.

use std::time::Duration;

use anyhow::Result;
use sqlx::{PgConnection, PgPool};
use tasuki::Schema;
use tasuki::lease::Route;
use tasuki::retry::Backoff;
use tasuki::seqlog::{Failure, Follower, Handler, Log, Numbered, Read, Snapshot, Tx};
use tasuki::worker::Supervisor;

use super::store;

/// Writes down what it sees; can't handle what is called `poison`.
struct Follow(PgPool);

impl Handler for Follow {
    type Row = Read;

    async fn handle(&self, rows: &[Numbered<Read>], tx: &mut Tx) -> Result<(), Failure> {
        let numbers: Vec<i64> = rows.iter().map(|row| row.seq).collect();
        store::follow(tx.get().await?, &numbers).await?;
        if rows.iter().any(|row| row.row.kind == "poison") {
            return Err(Failure::failed("it can't be done"));
        }
        Ok(())
    }

    async fn rebuild(&self, snapshot: &mut Snapshot) -> Result<(), Failure> {
        let attempt = snapshot.attempt();
        store::refill(snapshot.connection(), &self.0, attempt).await?;
        Ok(())
    }

    async fn switch_to(&self, tx: &mut PgConnection, attempt: i64) -> Result<(), Failure> {
        store::switch(tx, attempt).await?;
        Ok(())
    }
}

/// How it runs.
pub(crate) struct Work {
    pub(crate) lease: Duration,
    pub(crate) route: Route,
    /// Without a consumer.
    pub(crate) only_numbers: bool,
}

/// Starts a sequencer and a consumer.
pub(crate) fn start(supervisor: &Supervisor, pool: &PgPool, work: &Work) -> Result<()> {
    let lease = work.lease;
    let log = Log::new(&Schema::new("app")?);
    let sequencer = log.sequencer("app.sequencer", pool).batch(20);
    let sequencer = sequencer.through(work.route).lease(lease);
    supervisor.start(sequencer.poll(Duration::from_millis(20)));
    if work.only_numbers {
        return Ok(());
    }
    let follower = Follower::new(&log, "followed-v1", pool, Follow(pool.clone()))
        .batch(20)
        .attempts(2, Backoff::list([]))
        .through(work.route)
        .lease(lease)
        .idle(lease)
        .poll(Duration::from_millis(20));
    supervisor.start(follower);
    Ok(())
}
