//! A store made anew: from the source tables as one snapshot shows them, then followed from where the
//! log was in that snapshot.
//!
//! What is in the snapshot and has no number yet is handled once more afterwards, so the handler must
//! bear a row that its store knows already. The store in use stays as it is until the switch, which
//! commits with the offset; a process that dies in between has changed nothing, and the next one begins
//! again.
//!
//! Each attempt has a number of its own, which the store that it fills has in its name and the switch must
//! show: one that slept through its replacement, or for which somebody has asked once more since, fills
//! what nobody will use.
//!
//! The switch stands in the way of whoever reads the store, and whoever reads it for long stands in the way
//! of the switch. So it waits for a lock only briefly, and is tried again: alone, because what was filled
//! is good.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::hold::Ended;
use super::{Follower, LIMIT, Standing};
use crate::lease::{stored_error, told, within};
use crate::retry::Backoff;
use crate::seqlog::{Failure, Handler, Snapshot};
use crate::testing::crash_point;
use crate::transaction::{self, Limits, Transaction};
use crate::worker::{Error, Tick};

/// How long a switch waits for a lock: as long as readers of the store stand behind it.
const LOCK: Duration = Duration::from_secs(1);
/// For how long a switch that others are in the way of is tried again.
const SWITCH_LIMIT: Duration = Duration::from_secs(600);

/// An attempt at a rebuild.
#[derive(Clone, Copy)]
struct Attempt {
    number: i64,
    /// Where the log was in its snapshot.
    seq: i64,
}

impl<H: Handler> Follower<H> {
    /// Rebuilds. `None`: it was given up, because the consumer is not ours any more.
    pub(super) async fn rebuild(&self, standing: &Standing) -> Result<Option<Tick>, Error> {
        let Some(mut snapshot) = self.begin_rebuild(standing).await? else {
            self.lost(standing);
            return Ok(None);
        };
        let attempt = Attempt {
            number: snapshot.attempt(),
            seq: snapshot.seq(),
        };
        tracing::info!(
            consumer = self.consumer,
            attempt = attempt.number,
            "rebuild begins"
        );
        let work = self.handler.rebuild(&mut snapshot);
        let ended = self.hold(standing, self.rebuild_limit, work).await;
        drop(snapshot);
        match ended {
            Ended::Well => {}
            Ended::Lost => return Ok(None),
            Ended::Badly(failure) => return Err(self.not_rebuilt(standing, failure).await),
        }
        crash_point("seqlog.rebuilt");
        match self.switch_in_time(standing, attempt).await? {
            Ended::Well => {
                tracing::info!(
                    consumer = self.consumer,
                    seq = attempt.seq,
                    "rebuilt and switched"
                );
                Ok(Some(Tick::Worked))
            }
            Ended::Lost => Ok(None),
            Ended::Badly(failure) => Err(self.not_rebuilt(standing, failure).await),
        }
    }

    /// The number first: what is asked for from now on is another rebuild, of a later snapshot.
    async fn begin_rebuild(&self, standing: &Standing) -> Result<Option<Snapshot>, Error> {
        let mut line = self.line().await?;
        let (offsets, fence) = (&self.log.store.offsets, self.fence(standing));
        let beginning = offsets.begin_rebuild(line.connection(), fence, self.lease);
        let number = within(LIMIT, beginning).await?;
        line.close().await?;
        let Some(number) = number else {
            return Ok(None);
        };
        let snapshot = self.log.snapshot(&self.pool).await?;
        Ok(Some(snapshot.of_attempt(number)))
    }

    /// Switches; again and again while others are in the way.
    async fn switch_in_time(&self, standing: &Standing, attempt: Attempt) -> Result<Ended, Error> {
        let began = Instant::now();
        let backoff = Backoff::exponential(Duration::from_millis(500), Duration::from_secs(10));
        let mut tries = 0;
        loop {
            let failure = match self.switch(standing, attempt).await? {
                Ended::Badly(Failure::Away(error)) if began.elapsed() < SWITCH_LIMIT => error,
                ended => return Ok(ended),
            };
            tracing::warn!(
                consumer = self.consumer,
                error = told(&*failure),
                "somebody is in the way of the switch, it is tried again",
            );
            tries += 1;
            let pause = async {
                sleep(backoff.pick(tries)).await;
                Ok(())
            };
            let paused = self.hold(standing, SWITCH_LIMIT, pause).await;
            if !matches!(paused, Ended::Well) {
                return Ok(paused);
            }
        }
    }

    /// The fresh store takes the place of the old one, and the consumer goes on from its snapshot.
    async fn switch(&self, standing: &Standing, attempt: Attempt) -> Result<Ended, Error> {
        let limits = Limits {
            lock: Some(LOCK),
            ..self.limits()
        };
        let mut tx = transaction::begin_within(&self.pool, &limits).await?;
        let limit = self.limit.max(Duration::from_secs(1));
        let switching = self.handler.switch_to(&mut tx, attempt.number);
        let ended = self.hold(standing, limit, switching).await;
        if !matches!(ended, Ended::Well) {
            transaction::roll_back(tx).await;
            return Ok(ended);
        }
        self.commit_switch(standing, attempt, tx).await
    }

    async fn commit_switch(
        &self,
        standing: &Standing,
        attempt: Attempt,
        mut tx: Transaction,
    ) -> Result<Ended, Error> {
        let (offsets, fence) = (&self.log.store.offsets, self.fence(standing));
        let whole = (attempt.number, attempt.seq);
        let rebuilt = offsets.rebuilt(&mut tx, fence, whole, self.lease);
        match within(LIMIT, rebuilt).await {
            Ok(true) => {}
            Ok(false) => {
                transaction::roll_back(tx).await;
                self.lost(standing);
                return Ok(Ended::Lost);
            }
            Err(error) => {
                transaction::roll_back(tx).await;
                return Ok(Ended::Badly(error.into()));
            }
        }
        crash_point("seqlog.switching");
        within(LIMIT, transaction::commit(tx)).await?;
        crash_point("seqlog.switched");
        Ok(Ended::Well)
    }

    /// Leaves a note for whoever looks at the consumer. It is tried again after a pause.
    async fn not_rebuilt(&self, standing: &Standing, failure: Failure) -> Error {
        let (Failure::Failed(error) | Failure::Poison(error) | Failure::Away(error)) = failure;
        let text = stored_error(&told(&*error));
        tracing::error!(consumer = self.consumer, error = text, "rebuild failed");
        let noting = async {
            let mut line = self.line().await?;
            let (offsets, fence) = (&self.log.store.offsets, self.fence(standing));
            offsets.note(line.connection(), fence, &text).await?;
            line.close().await
        };
        if let Err(error) = within(LIMIT, noting).await {
            tracing::debug!(
                consumer = self.consumer,
                error = &error as &(dyn std::error::Error + 'static),
                "why the rebuild failed could not be written down",
            );
        }
        error
    }
}
