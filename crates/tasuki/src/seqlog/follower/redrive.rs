//! Rows that were set aside and that somebody has put back: handled by themselves, from the copy that
//! was kept, while the offset stays where it is.

use super::follow::decoded;
use super::hold::Ended;
use super::{Follower, LIMIT, Standing};
use crate::lease::{stored_error, told, within};
use crate::seqlog::store::offsets::Redriven;
use crate::seqlog::{Failure, Handler, Numbered, tally};
use crate::testing::crash_point;
use crate::worker::{Error, Tick};

impl<H: Handler> Follower<H> {
    /// Handles one row that was put back. `None`: there is none that is due, or it is not ours.
    pub(super) async fn redrive(&self, standing: &mut Standing) -> Result<Option<Tick>, Error> {
        let mut line = self.line().await?;
        let (offsets, fence) = (&self.log.store.offsets, self.fence(standing));
        let finding = offsets.redriven(line.connection(), &self.consumer);
        let Some(redriven) = within(LIMIT, finding).await? else {
            line.close().await?;
            standing.is_redriven = false;
            return Ok(None);
        };
        let attempting = offsets.redrive_attempt(line.connection(), fence, redriven.id);
        let attempt = within(LIMIT, attempting).await?;
        line.close().await?;
        let Some(attempt) = attempt else {
            standing.is_redriven = false;
            return Ok(None);
        };
        if attempt > self.attempts {
            let error = "every process that handled it died of it, or was lost meanwhile";
            let failure = Failure::poison(error);
            self.redrive_failed(standing, &redriven, attempt - 1, failure)
                .await?;
            return Ok(Some(Tick::Worked));
        }
        crash_point("seqlog.redriving");
        let failure = match decoded(std::slice::from_ref(&redriven.row)) {
            Ok(rows) => match self.handle_redriven(standing, &redriven, &rows).await? {
                Ended::Well => {
                    tally::handled(&self.consumer, "done", 1);
                    return Ok(Some(Tick::Worked));
                }
                Ended::Lost => return Ok(Some(Tick::Worked)),
                Ended::Badly(failure) => failure,
            },
            Err(error) => Failure::Poison(error.into()),
        };
        self.redrive_failed(standing, &redriven, attempt, failure)
            .await?;
        Ok(Some(Tick::Worked))
    }

    async fn handle_redriven(
        &self,
        standing: &Standing,
        redriven: &Redriven,
        rows: &[Numbered<H::Row>],
    ) -> Result<Ended, Error> {
        let mut tx = self.tx();
        let work = self.handler.handle(rows, &mut tx);
        let ended = self.hold(standing, self.limit, work).await;
        if !matches!(ended, Ended::Well) {
            tx.roll_back().await;
            return Ok(ended);
        }
        let (offsets, fence) = (&self.log.store.offsets, self.fence(standing));
        let finishing = async {
            let connection = tx.get().await?;
            let is_ours = offsets
                .redrive_done(connection, fence, redriven.id, self.lease)
                .await?;
            if is_ours {
                tx.commit().await?;
            } else {
                tx.roll_back().await;
            }
            Ok(is_ours)
        };
        match within(LIMIT, finishing).await {
            Ok(true) => Ok(Ended::Well),
            Ok(false) => Ok(Ended::Lost),
            Err(error) => Ok(Ended::Badly(error.into())),
        }
    }

    async fn redrive_failed(
        &self,
        standing: &Standing,
        redriven: &Redriven,
        attempt: u32,
        failure: Failure,
    ) -> Result<(), Error> {
        let (counted, is_last, error) = match failure {
            Failure::Failed(error) => (attempt, attempt >= self.attempts, error),
            Failure::Poison(error) => (attempt, true, error),
            Failure::Away(error) => (attempt.saturating_sub(1), false, self.is_away(error)),
        };
        let text = stored_error(&told(&*error));
        let (offsets, fence) = (&self.log.store.offsets, self.fence(standing));
        let mut line = self.line().await?;
        let writing = async {
            let connection = line.connection();
            if is_last {
                tally::handled(&self.consumer, "set_aside", 1);
                return offsets
                    .redrive_dead(connection, fence, redriven.id, (counted, &text))
                    .await;
            }
            tally::handled(&self.consumer, "failed", 1);
            let pause = self.backoff.pick(attempt);
            offsets
                .redrive_retry(connection, fence, redriven.id, (counted, &text), pause)
                .await
        };
        within(LIMIT, writing).await?;
        line.close().await?;
        Ok(())
    }
}
