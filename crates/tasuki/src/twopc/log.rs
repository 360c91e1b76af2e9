//! A coordinator's words with its log. Each is over after the timeout, and may be dropped.
//!
//! They go over connections of their own: those of the pool may all wait for locks that a prepared
//! transaction holds, and it is these words that end it.

use uuid::Uuid;

use super::store::Opening;
use super::{Branches, Coordinator, Decision};
use crate::lease::{Fence, HungUp, Line, Outcome, within};
use crate::testing::crash_point;
use crate::transaction::{self, Transaction};

impl Coordinator {
    /// A line that is hung up if whoever asks over it is dropped.
    async fn line(&self) -> sqlx::Result<HungUp> {
        let line = Line::open(self.log.get(), self.route).await?;
        Ok(HungUp::unless_closed(line))
    }

    pub(super) async fn which_log(&self) -> sqlx::Result<Uuid> {
        let mut line = self.line().await?;
        let log = self.store.log(line.connection()).await?;
        line.close().await?;
        Ok(log)
    }

    /// Writes down who takes part, before anybody prepares.
    pub(super) async fn write_down(
        &self,
        fence: Fence,
        name: &str,
        branches: &Branches,
    ) -> sqlx::Result<()> {
        let writing = async {
            let mut line = self.line().await?;
            let opening = Opening {
                fence,
                name,
                branches,
                owner: &self.owner,
                lease: self.lease(),
            };
            self.store.open(line.connection(), &opening).await?;
            line.close().await
        };
        within(self.timeout, writing).await
    }

    /// Writes the decision to commit down, in `own` if there is such a transaction: it then commits
    /// with the decision, or not at all. Says whether it was still to be decided.
    pub(super) async fn decide(
        &self,
        own: Option<Transaction>,
        fence: Fence,
        branches: &Branches,
    ) -> sqlx::Result<bool> {
        let deciding = async {
            let lease = self.lease();
            if let Some(mut own) = own {
                let ours = self.store.commit(&mut own, fence, branches, lease).await?;
                crash_point("twopc.deciding");
                if ours {
                    own.commit().await?;
                } else {
                    transaction::roll_back(own).await;
                }
                return Ok(ours);
            }
            let mut line = self.line().await?;
            let connection = line.connection();
            let ours = self.store.commit(connection, fence, branches, lease);
            let ours = ours.await?;
            line.close().await?;
            Ok(ours)
        };
        within(self.timeout, deciding).await
    }

    /// How a transaction ends: aborted, unless it was decided before. The branches are those of the
    /// log, if it has them still.
    pub(super) async fn stand(&self, id: Uuid) -> sqlx::Result<(Decision, Option<Branches>)> {
        let standing = async {
            let mut line = self.line().await?;
            let aborted = self.store.abort(line.connection(), id).await?;
            line.close().await?;
            if let Some(branches) = aborted {
                return Ok((Decision::Abort, Some(branches)));
            }
            let mut line = self.line().await?;
            let standing = self.store.standing(line.connection(), id).await?;
            line.close().await?;
            // Nothing known of it: it was never written down, or has ended long ago.
            Ok(
                standing.map_or((Decision::Abort, None), |(decision, branches)| {
                    (decision, Some(branches))
                }),
            )
        };
        within(self.timeout, standing).await
    }

    /// Writes down what participants have answered.
    pub(super) async fn record(&self, fence: Fence, told: &Branches) -> sqlx::Result<()> {
        let recording = async {
            let mut line = self.line().await?;
            self.store.record(line.connection(), fence, told).await?;
            line.close().await
        };
        within(self.timeout, recording).await
    }

    /// Moves a transaction that everybody has confirmed to the finished ones.
    pub(super) async fn finish(&self, fence: Fence, told: Branches) -> sqlx::Result<()> {
        let finishing = async {
            let mut line = self.line().await?;
            // None is right, too: the recovery has taken it over, and finishes it.
            self.store
                .finish(line.connection(), &[(fence, told)])
                .await?;
            line.close().await
        };
        within(self.timeout, finishing).await
    }

    /// Leaves the rest to the recovery.
    pub(super) async fn hand_over(
        &self,
        fence: Fence,
        told: &Branches,
        outcome: Outcome<()>,
    ) -> sqlx::Result<()> {
        self.record(fence, told).await?;
        let handing = async {
            let mut line = self.line().await?;
            let leases = &self.store.leases;
            leases
                .put_back(line.connection(), &[(fence, outcome)])
                .await?;
            line.close().await
        };
        within(self.timeout, handing).await
    }
}
