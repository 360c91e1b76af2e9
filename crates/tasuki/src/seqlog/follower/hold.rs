//! Keeps a consumer while its handler works, and ends the work when it is lost.

use std::panic::AssertUnwindSafe;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::{Follower, Standing};
use crate::lease::within;
use crate::seqlog::{Failure, Handler, tally};
use crate::worker::panic_message;

/// How the work of a handler ended.
pub(super) enum Ended {
    /// It succeeded.
    Well,
    /// It did not.
    Badly(Failure),
    /// Another instance is active, or somebody has moved the consumer: it was cut.
    Lost,
}

impl<H: Handler> Follower<H> {
    /// Runs `work`, whose panic is a failure, for at most `limit`. The lease is renewed meanwhile.
    pub(super) async fn hold(
        &self,
        standing: &Standing,
        limit: Duration,
        work: impl Future<Output = Result<(), Failure>>,
    ) -> Ended {
        let work = AssertUnwindSafe(timeout(limit, work)).catch_unwind();
        let ended = tokio::select! {
            biased;
            ended = work => ended,
            () = self.until_lost(standing) => {
                self.lost(standing);
                return Ended::Lost;
            }
        };
        match ended {
            Ok(Ok(Ok(()))) => Ended::Well,
            Ok(Ok(Err(failure))) => Ended::Badly(failure),
            Ok(Err(_elapsed)) => Ended::Badly(Failure::failed(format!("cut after {limit:?}"))),
            Err(panic) => {
                let message = panic_message(&*panic);
                Ended::Badly(Failure::failed(format!("panicked: {message}")))
            }
        }
    }

    /// Renews the lease again and again; returns when the consumer is not ours any more, or not where
    /// we found it, and when nobody can have heard of us for as long as the lease is: then another instance
    /// may be at work, and effects elsewhere would be those of two.
    async fn until_lost(&self, standing: &Standing) {
        let share = self.lease / 3;
        let mut heard_at = standing.renewed_at;
        loop {
            sleep_until(heard_at + share).await;
            let asked_at = Instant::now();
            let left = (heard_at + self.lease).saturating_duration_since(asked_at);
            // Not at once only because a rebuild has taken so long since.
            match within(left.max(share), self.renew(standing)).await {
                Ok(true) => heard_at = asked_at,
                Ok(false) => return,
                Err(error) => {
                    tracing::warn!(
                        consumer = self.consumer,
                        error = &error as &(dyn std::error::Error + 'static),
                        "lease of a consumer could not be renewed",
                    );
                    if heard_at.elapsed() >= self.lease {
                        return;
                    }
                    sleep(share / 4).await;
                }
            }
        }
    }

    async fn renew(&self, standing: &Standing) -> sqlx::Result<bool> {
        let mut line = self.line().await?;
        let (offsets, fence) = (&self.log.store.offsets, self.fence(standing));
        let found = offsets.renew(line.connection(), fence, self.lease).await?;
        line.close().await?;
        Ok(found.is_some_and(|(last_seq, state)| {
            last_seq == standing.last_seq && state == standing.state.as_str()
        }))
    }

    /// What we had in hand is not ours to finish.
    pub(super) fn lost(&self, standing: &Standing) {
        tally::lost(&self.consumer);
        tracing::info!(
            consumer = self.consumer,
            epoch = standing.epoch,
            seq = standing.last_seq,
            "consumer was taken over or moved, what was in hand is given up",
        );
    }
}
