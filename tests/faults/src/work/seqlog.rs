//! A log to be killed at: numbered, followed, and now and then rebuilt.

use std::time::Duration;

use anyhow::Result;
use sqlx::{PgConnection, PgPool};
use tasuki::Schema;
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
        store::refill(snapshot.connection(), &self.0).await?;
        Ok(())
    }

    async fn switch(&self, tx: &mut PgConnection) -> Result<(), Failure> {
        store::switch(tx).await?;
        Ok(())
    }
}

/// Starts a sequencer and, unless it `only_numbers`, a consumer.
pub(crate) fn start(
    supervisor: &Supervisor,
    pool: &PgPool,
    lease: Duration,
    only_numbers: bool,
) -> Result<()> {
    let log = Log::new(&Schema::new("app")?);
    let sequencer = log.sequencer("app.sequencer", pool).batch(20);
    supervisor.start(sequencer.lease(lease).poll(Duration::from_millis(20)));
    if only_numbers {
        return Ok(());
    }
    let follower = Follower::new(&log, "followed-v1", pool, Follow(pool.clone()))
        .batch(20)
        .attempts(2, Backoff::list([]))
        .lease(lease)
        .idle(lease)
        .poll(Duration::from_millis(20));
    supervisor.start(follower);
    Ok(())
}
