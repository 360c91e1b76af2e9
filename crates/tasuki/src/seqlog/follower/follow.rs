//! The ordinary work of a consumer: rows, in order, and what becomes of one that fails.
//!
//! Rows are handled many at a time. When that fails, nobody knows which one it was: they come again one
//! by one, each attempt counted before it is made, so that a row that kills its process is found as well.
//! The one that fails for the last time is set aside, in the statement that moves past it.

use sqlx::postgres::PgRow;
use sqlx::{FromRow, Row};
use tokio::time::Instant;

use super::hold::Ended;
use super::{Follower, LIMIT, Standing};
use crate::lease::{stored_error, told, within};
use crate::seqlog::{Failure, Handler, Numbered, State, tally};
use crate::testing::crash_point;
use crate::worker::{Error, Tick};

/// Decodes rows; the error of the first that is not what is expected.
pub(super) fn decoded<R>(rows: &[PgRow]) -> Result<Vec<Numbered<R>>, sqlx::Error>
where
    R: for<'r> FromRow<'r, PgRow>,
{
    rows.iter().map(Numbered::read).collect()
}

impl<H: Handler> Follower<H> {
    /// Handles what comes next. `None`: the consumer is not where we thought, or not ours any more.
    pub(super) async fn follow(&self, standing: &mut Standing) -> Result<Option<Tick>, Error> {
        if Instant::now() < standing.retry_at {
            return Ok(Some(Tick::Idle));
        }
        let is_careful = standing.last_seq < standing.careful_until;
        let rows = self.read(standing, if is_careful { 1 } else { self.rows() });
        let rows = rows.await?;
        let Some(last) = rows.last() else {
            // Read after the head was: what it counts must be there.
            if standing.head > standing.last_seq {
                return self.fall_behind(standing).await;
            }
            return Ok(Some(Tick::Idle));
        };
        let to: i64 = last.try_get("seq")?;
        if to - standing.last_seq != i64::try_from(rows.len())? {
            return self.follow_gap(standing, rows).await;
        }
        crash_point("seqlog.read");
        if is_careful {
            return self.handle_alone(standing, &rows).await;
        }
        self.handle_all(standing, &rows, to).await
    }

    async fn read(&self, standing: &Standing, rows: u32) -> sqlx::Result<Vec<PgRow>> {
        let mut line = self.line().await?;
        let reading = self
            .log
            .store
            .read(line.connection(), standing.last_seq, rows);
        let rows = within(LIMIT, reading).await?;
        line.close().await?;
        Ok(rows)
    }

    /// Some number is missing. What comes before it is handled first.
    async fn follow_gap(
        &self,
        standing: &mut Standing,
        mut rows: Vec<PgRow>,
    ) -> Result<Option<Tick>, Error> {
        let mut next = standing.last_seq;
        let mut whole = 0;
        for row in &rows {
            let seq: i64 = row.try_get("seq")?;
            if seq != next + 1 {
                break;
            }
            (next, whole) = (seq, whole + 1);
        }
        rows.truncate(whole);
        if rows.is_empty() {
            return self.fall_behind(standing).await;
        }
        self.handle_all(standing, &rows, next).await
    }

    /// Handles rows together, up to the number `to`.
    async fn handle_all(
        &self,
        standing: &mut Standing,
        rows: &[PgRow],
        to: i64,
    ) -> Result<Option<Tick>, Error> {
        let failure = match decoded(rows) {
            Ok(decoded) => match self.handle(standing, &decoded, to).await? {
                Ended::Well => return Ok(Some(self.handled(standing, to, rows.len()))),
                Ended::Lost => return Ok(None),
                Ended::Badly(failure) => failure,
            },
            Err(error) => Failure::Poison(error.into()),
        };
        let error = match failure {
            Failure::Away(error) => return Err(self.is_away(error)),
            Failure::Failed(error) | Failure::Poison(error) => error,
        };
        let text = stored_error(&told(&*error));
        tracing::warn!(
            consumer = self.consumer,
            seq.from = standing.last_seq + 1,
            seq.to = to,
            error = text,
            "rows failed together, now one by one",
        );
        let mut line = self.line().await?;
        let (offsets, fence) = (&self.log.store.offsets, self.fence(standing));
        let careful = offsets.careful(line.connection(), fence, to, &text);
        let is_ours = within(LIMIT, careful).await?;
        line.close().await?;
        standing.careful_until = to;
        Ok(is_ours.then_some(Tick::Worked))
    }

    /// Handles one row, counted.
    async fn handle_alone(
        &self,
        standing: &mut Standing,
        rows: &[PgRow],
    ) -> Result<Option<Tick>, Error> {
        let to = standing.last_seq + 1;
        let mut line = self.line().await?;
        let (offsets, fence) = (&self.log.store.offsets, self.fence(standing));
        let attempt = within(LIMIT, offsets.attempt(line.connection(), fence)).await?;
        line.close().await?;
        let Some(attempt) = attempt else {
            self.lost(standing);
            return Ok(None);
        };
        crash_point("seqlog.attempted");
        if attempt > self.attempts {
            let error = "every process that handled it died of it, or was lost meanwhile";
            return self.set_aside(standing, attempt - 1, error).await;
        }
        let failure = match decoded(rows) {
            Ok(decoded) => match self.handle(standing, &decoded, to).await? {
                Ended::Well => return Ok(Some(self.handled(standing, to, 1))),
                Ended::Lost => return Ok(None),
                Ended::Badly(failure) => failure,
            },
            Err(error) => Failure::Poison(error.into()),
        };
        let (is_last, error) = match failure {
            Failure::Failed(error) => (attempt >= self.attempts, error),
            Failure::Poison(error) => (true, error),
            Failure::Away(error) => {
                let error = self.is_away(error);
                self.undo_attempt(standing, &told(&*error)).await?;
                return Err(error);
            }
        };
        let text = stored_error(&told(&*error));
        if is_last {
            return self.set_aside(standing, attempt, &text).await;
        }
        self.retry(standing, attempt, &text).await
    }

    /// Has rows handled, and moves the offset to `to` in the same transaction.
    async fn handle(
        &self,
        standing: &Standing,
        rows: &[Numbered<H::Row>],
        to: i64,
    ) -> Result<Ended, Error> {
        let mut tx = self.tx();
        let work = self.handler.handle(rows, &mut tx);
        let ended = self.hold(standing, self.limit, work).await;
        if !matches!(ended, Ended::Well) {
            tx.roll_back().await;
            return Ok(ended);
        }
        crash_point("seqlog.handled");
        let (offsets, fence) = (&self.log.store.offsets, self.fence(standing));
        let advancing = async {
            let is_ours = offsets
                .advance(tx.get().await?, fence, to, self.lease)
                .await?;
            if is_ours {
                crash_point("seqlog.advancing");
                tx.commit().await?;
            } else {
                tx.roll_back().await;
            }
            Ok(is_ours)
        };
        match within(LIMIT, advancing).await {
            Ok(true) => Ok(Ended::Well),
            Ok(false) => {
                self.lost(standing);
                Ok(Ended::Lost)
            }
            // A statement that failed and was hidden shows only now. Or it is committed, and the answer
            // got lost: then the offset has moved, and whatever is done about this finds that.
            Err(error) => Ok(Ended::Badly(error.into())),
        }
    }

    fn handled(&self, standing: &mut Standing, to: i64, rows: usize) -> Tick {
        crash_point("seqlog.advanced");
        tally::handled(&self.consumer, "done", rows);
        standing.last_seq = to;
        Tick::Worked
    }

    /// Nobody is to blame: everything waits, for the pause that follows a tick that failed.
    pub(super) fn is_away(&self, error: Error) -> Error {
        tally::handled(&self.consumer, "away", 1);
        error
    }

    async fn undo_attempt(&self, standing: &Standing, error: &str) -> sqlx::Result<()> {
        let mut line = self.line().await?;
        let (offsets, fence) = (&self.log.store.offsets, self.fence(standing));
        let error = stored_error(error);
        let undoing = offsets.undo_attempt(line.connection(), fence, &error);
        within(LIMIT, undoing).await?;
        line.close().await
    }

    async fn retry(
        &self,
        standing: &mut Standing,
        attempt: u32,
        error: &str,
    ) -> Result<Option<Tick>, Error> {
        let pause = self.backoff.pick(attempt);
        let mut line = self.line().await?;
        let (offsets, fence) = (&self.log.store.offsets, self.fence(standing));
        let retrying = offsets.retry(line.connection(), fence, pause, error);
        let is_ours = within(LIMIT, retrying).await?;
        line.close().await?;
        tally::handled(&self.consumer, "failed", 1);
        tracing::warn!(
            consumer = self.consumer,
            seq = standing.last_seq + 1,
            attempt,
            error,
            "row failed, will retry",
        );
        standing.retry_at = Instant::now() + pause;
        Ok(is_ours.then_some(Tick::Idle))
    }

    async fn set_aside(
        &self,
        standing: &mut Standing,
        attempts: u32,
        error: &str,
    ) -> Result<Option<Tick>, Error> {
        let mut line = self.line().await?;
        let (offsets, fence) = (&self.log.store.offsets, self.fence(standing));
        let setting = offsets.set_aside(line.connection(), fence, self.lease, (attempts, error));
        let is_ours = within(LIMIT, setting).await?;
        crash_point("seqlog.setting_aside");
        line.close().await?;
        if !is_ours {
            self.lost(standing);
            return Ok(None);
        }
        crash_point("seqlog.set_aside");
        standing.last_seq += 1;
        tally::handled(&self.consumer, "set_aside", 1);
        tracing::error!(
            consumer = self.consumer,
            seq = standing.last_seq,
            attempts,
            error,
            "row set aside, it waits for a person",
        );
        Ok(Some(Tick::Worked))
    }

    /// The next row is gone. Looked at twice: it can't be taken back by itself.
    async fn fall_behind(&self, standing: &mut Standing) -> Result<Option<Tick>, Error> {
        if !self.read(standing, 1).await?.is_empty() {
            return Ok(Some(Tick::Worked));
        }
        let error = self.is_too_far_behind(standing);
        let mut line = self.line().await?;
        let (offsets, fence) = (&self.log.store.offsets, self.fence(standing));
        let text = error.to_string();
        let falling = offsets.too_far(line.connection(), fence, &text);
        let is_ours = within(LIMIT, falling).await?;
        line.close().await?;
        if !is_ours {
            self.lost(standing);
            return Ok(None);
        }
        standing.state = State::TooFarBehind;
        tracing::error!(
            consumer = self.consumer,
            seq = standing.last_seq,
            "consumer is too far behind, it stands still until it is rebuilt",
        );
        Err(error)
    }

    pub(super) fn is_too_far_behind(&self, standing: &Standing) -> Error {
        let (consumer, next) = (&self.consumer, standing.last_seq + 1);
        format!(
            "consumer `{consumer}` is too far behind: row {next} is not in the log any more; \
             rebuild it, or move it to a row that is"
        )
        .into()
    }
}
