//! Ends the transactions that coordinators left behind: rows with a lease, as everything that must
//! be done by somebody.
//!
//! The decision comes first: what has none is aborted in the log, so that a coordinator that was
//! only slow can't commit it any more, and only then are participants told.

use std::time::Duration;

use sqlx::PgConnection;
use uuid::Uuid;

use super::store::Row;
use super::tell::tell;
use super::{Branches, Coordinator, Decision, TransactionId};
use crate::lease::{Claim, Claimed, Fence, Leases, Outcome, Runner, Settings, Unit, Work, told};
use crate::retry::Backoff;
use crate::testing::crash_point;

/// Transactions that one process ends side by side.
const SLOTS: usize = 8;
/// Transactions per claim.
const BATCH: usize = 50;

/// The worker that ends transactions which their coordinators left behind.
pub type Recovery = Runner<Ending>;

/// What a [`Recovery`] does with a transaction.
#[derive(Debug)]
pub struct Ending {
    coordinator: Coordinator,
    name: String,
    backoff: Backoff,
}

pub(super) fn worker(coordinator: &Coordinator, poll: Duration) -> Recovery {
    let work = Ending {
        name: format!("{}.twopc", coordinator.schema),
        coordinator: coordinator.clone(),
        backoff: Backoff::default(),
    };
    let settings = Settings {
        pool: coordinator.pool.clone(),
        route: coordinator.route,
        owner: coordinator.owner.clone(),
        unit: Unit::Row,
        slots: SLOTS,
        batch: BATCH,
        lease: coordinator.lease(),
        poll,
    };
    Runner::new(work, settings)
}

impl Ending {
    async fn end(&self, fence: Fence, failed_attempts: u32, row: Row) -> Outcome<Branches> {
        let coordinator = &self.coordinator;
        let id = TransactionId::from(fence.id);
        let decided = row.decision.as_deref().map(Decision::read).transpose();
        let standing = match decided {
            Ok(Some(decision)) => Ok((decision, None)),
            Ok(None) => coordinator.stand(fence.id).await,
            Err(error) => Err(error),
        };
        let (decision, mut branches) = match standing {
            // What the log has now is more than what it had when we claimed: numbers, if it was
            // decided in between.
            Ok((decision, branches)) => (decision, branches.unwrap_or(row.branches.0)),
            Err(error) => return self.retry(failed_attempts, told(&error)),
        };
        tracing::info!(
            transaction.id = %id,
            transaction.name = row.name,
            decision = decision.as_str(),
            "ending a transaction that was left behind",
        );
        let error = tell(coordinator, id, decision, &mut branches).await;
        crash_point("twopc.recovered");
        let Some(error) = error else {
            return Outcome::Done(branches);
        };
        if let Err(error) = coordinator.record(fence, &branches).await {
            tracing::warn!(
                transaction.id = %id,
                error = &error as &(dyn std::error::Error + 'static),
                "the answers of participants could not be written down",
            );
        }
        self.retry(failed_attempts, error)
    }

    /// There is no last attempt: whoever is prepared waits for as long as it takes.
    fn retry(&self, failed_attempts: u32, error: String) -> Outcome<Branches> {
        Outcome::Retry {
            after: self.backoff.pick(failed_attempts.saturating_add(1)),
            error,
        }
    }
}

impl Work for Ending {
    type Row = Row;
    type Done = Branches;

    fn name(&self) -> &str {
        &self.name
    }

    fn leases(&self) -> &Leases {
        &self.coordinator.store.leases
    }

    async fn claim(
        &self,
        connection: &mut PgConnection,
        claim: &Claim<'_>,
    ) -> sqlx::Result<Vec<Claimed<Row>>> {
        self.leases().claim(connection, claim, |_| Ok(())).await
    }

    async fn run(&self, unit: Vec<Claimed<Row>>) -> Vec<(Fence, Outcome<Branches>)> {
        let mut ended = Vec::with_capacity(unit.len());
        for claimed in unit {
            crash_point("twopc.claimed");
            let (fence, failed) = (claimed.fence, claimed.failed_attempts);
            ended.push((fence, self.end(fence, failed, claimed.row).await));
        }
        ended
    }

    async fn settle(
        &self,
        connection: &mut PgConnection,
        done: &[(Fence, Branches)],
    ) -> sqlx::Result<Vec<Uuid>> {
        self.coordinator.store.finish(connection, done).await
    }

    fn panicked(&self, failed_attempts: u32, message: &str) -> Outcome<Branches> {
        self.retry(failed_attempts, format!("panicked: {message}"))
    }
}
