//! Events that have arrived at the same time share a transaction: locks, what is known of them, the
//! verdicts, the rows, the log. Nobody is answered before it has committed.
//!
//! Taking an event in twice is safe: the second time its id is known.

use std::sync::Arc;

use sqlx::{PgConnection, PgPool};
use tasuki::batch::{Group, Ran};
use tasuki::idempotency::LockNumber;
use tasuki::seqlog::Log;
use tasuki::testing::crash_point;
use tasuki::{begin_locked, is_away};

use crate::domain::{Plan, Verdict, decide};
use crate::nostr::{DELETION, Event};
use crate::relay::live::Live;
use crate::store::ingest;

/// Locks of one transaction.
const LOCKS: usize = 1_000;

/// An event whose signature holds, and the topics that it belongs to.
#[derive(Clone, Debug)]
pub(crate) struct Arrival {
    pub(crate) event: Arc<Event>,
    pub(crate) topics: Vec<String>,
}

/// Takes events in.
#[derive(Debug)]
pub(crate) struct Ingest {
    pub(crate) pool: PgPool,
    pub(crate) live: Live,
    pub(crate) log: Log,
    /// How far in the future an event may be, in seconds.
    pub(crate) ahead: i64,
}

impl Ingest {
    /// One transaction.
    async fn take_in(&self, arrivals: &[Arrival]) -> sqlx::Result<Vec<Verdict>> {
        let mut tx = begin_locked(&self.pool, locks(arrivals)).await?;
        let plan = store_locked(&mut tx, arrivals, self.ahead).await?;
        if plan.accepted.is_empty() {
            tx.rollback().await?;
            return Ok(plan.verdicts);
        }
        let visible = arrivals.iter().zip(&plan.verdicts);
        let visible = visible.filter(|(_, verdict)| **verdict == Verdict::Stored);
        let told = self.live.about_to_commit(visible.map(|(it, _)| it));
        crash_point("community.before_commit");
        tx.commit().await?;
        crash_point("community.committed");
        told.committed();
        self.log.ring();
        Ok(plan.verdicts)
    }
}

/// Takes events in, in the caller's transaction: locks, what is known of them, verdicts, rows.
pub(crate) async fn store(
    tx: &mut PgConnection,
    arrivals: &[Arrival],
    ahead: i64,
) -> sqlx::Result<Plan> {
    ingest::lock(tx, locks(arrivals)).await?;
    store_locked(tx, arrivals, ahead).await
}

fn locks(arrivals: &[Arrival]) -> Vec<LockNumber> {
    let events: Vec<_> = arrivals.iter().map(|it| it.event.as_ref()).collect();
    ingest::locks(&events)
}

/// The rest of it, once there are the locks.
async fn store_locked(
    tx: &mut PgConnection,
    arrivals: &[Arrival],
    ahead: i64,
) -> sqlx::Result<Plan> {
    let events: Vec<_> = arrivals.iter().map(|it| it.event.as_ref()).collect();
    let topics: Vec<_> = arrivals.iter().map(|it| it.topics.as_slice()).collect();
    let known = ingest::known(tx, &events).await?;
    let plan = decide(&events, known, ahead);
    if !plan.accepted.is_empty() {
        ingest::write(tx, &events, &topics, &plan).await?;
    }
    Ok(plan)
}

/// Cuts a batch where it would take more locks than one may: a deletion takes one for each event that it
/// names, and the server has a table of them for everybody.
pub(crate) fn within_locks(arrivals: &[Arrival]) -> impl Iterator<Item = &[Arrival]> {
    let mut left = arrivals;
    std::iter::from_fn(move || {
        let mut locks = 0;
        let fits = left.iter().take_while(|it| {
            locks += 1 + it.event.tags.len() * usize::from(it.event.kind == DELETION);
            locks <= LOCKS
        });
        // One that is too large by itself goes alone.
        let (now, later) = left.split_at(fits.count().max(1).min(left.len()));
        left = later;
        (!now.is_empty()).then_some(now)
    })
}

impl Group for Ingest {
    type Command = Arrival;
    type Reply = Verdict;
    type Error = sqlx::Error;

    async fn run(&self, arrivals: &[Arrival]) -> Ran<Verdict, sqlx::Error> {
        let mut verdicts = Vec::with_capacity(arrivals.len());
        for arrivals in within_locks(arrivals) {
            verdicts.extend(self.take_in(arrivals).await?.into_iter().map(Ok));
        }
        Ok(verdicts)
    }

    fn is_everyones(&self, error: &sqlx::Error) -> bool {
        is_away(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nostr::Signer;

    #[test]
    fn a_batch_takes_no_more_locks_than_one_may() {
        let by = Signer::random();
        let arrival = |kind, tags: usize| Arrival {
            event: Arc::new(by.event(1, kind, vec![vec!["e".to_owned()]; tags], String::new())),
            topics: Vec::new(),
        };
        let sizes = |arrivals: &[Arrival]| {
            let cut = within_locks(arrivals);
            cut.map(<[Arrival]>::len).collect::<Vec<_>>()
        };
        assert_eq!(sizes(&[]), [0_usize; 0]);
        assert_eq!(sizes(&vec![arrival(1, 200); 1_500]), [1_000, 500]);
        assert_eq!(sizes(&vec![arrival(DELETION, 199); 12]), [5, 5, 2]);
        assert_eq!(sizes(&[arrival(DELETION, 2_000), arrival(1, 0)]), [1, 1]);
    }
}
