//! A store made anew: from the source tables as one snapshot shows them, then followed from where the
//! log was in that snapshot.
//!
//! What is in the snapshot and has no number yet is handled once more afterwards, so the handler must
//! bear a row that its store knows already. The store in use stays as it is until the switch, which
//! commits with the offset; a process that dies in between has changed nothing, and the next one begins
//! again.

use std::time::Duration;

use super::hold::Ended;
use super::{Follower, LIMIT, Standing};
use crate::lease::{stored_error, told, within};
use crate::seqlog::{Failure, Handler};
use crate::testing::crash_point;
use crate::transaction;
use crate::worker::{Error, Tick};

impl<H: Handler> Follower<H> {
    /// Rebuilds. `None`: it was given up, because the consumer is not ours any more.
    pub(super) async fn rebuild(&self, standing: &Standing) -> Result<Option<Tick>, Error> {
        tracing::info!(consumer = self.consumer, "rebuild begins");
        let mut snapshot = self.log.snapshot(&self.pool).await?;
        let seq = snapshot.seq();
        let work = self.handler.rebuild(&mut snapshot);
        let ended = self.hold(standing, self.rebuild_limit, work).await;
        drop(snapshot);
        match ended {
            Ended::Well => {}
            Ended::Lost => return Ok(None),
            Ended::Badly(failure) => return Err(self.not_rebuilt(standing, failure).await),
        }
        crash_point("seqlog.rebuilt");
        match self.switch(standing, seq).await? {
            Ended::Well => {
                tracing::info!(consumer = self.consumer, seq, "rebuilt and switched");
                Ok(Some(Tick::Worked))
            }
            Ended::Lost => Ok(None),
            Ended::Badly(failure) => Err(self.not_rebuilt(standing, failure).await),
        }
    }

    /// The fresh store takes the place of the old one, and the consumer goes on after `seq`.
    async fn switch(&self, standing: &Standing, seq: i64) -> Result<Ended, Error> {
        let mut tx = transaction::begin(&self.pool).await?;
        let limit = self.limit.max(Duration::from_secs(1));
        let ended = self
            .hold(standing, limit, self.handler.switch(&mut tx))
            .await;
        if !matches!(ended, Ended::Well) {
            transaction::roll_back(tx).await;
            return Ok(ended);
        }
        let (offsets, fence) = (&self.log.store.offsets, self.fence(standing));
        let rebuilt = offsets.rebuilt(&mut tx, fence, seq, self.lease);
        if !within(LIMIT, rebuilt).await? {
            transaction::roll_back(tx).await;
            self.lost(standing);
            return Ok(Ended::Lost);
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
