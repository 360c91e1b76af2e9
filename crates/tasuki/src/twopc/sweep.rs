//! Ends what is prepared in a participant and that nobody waits for in the log.
//!
//! Nobody prepares before the log has the transaction, and the log keeps it open until everybody has
//! confirmed. So what is found prepared, and afterwards not found open, has ended elsewhere: it was
//! aborted while its `PREPARE TRANSACTION` was still on its way, or its participant was written off
//! and came back. Or the log has lost it. In every case it ends as the log says, and if the log says
//! nothing, it is aborted. The same goes for one that is open, but waits for others alone.

use std::collections::HashMap;
use std::time::Duration;

use uuid::Uuid;

use super::participant::Member;
use super::store::session::{self, Found};
use super::store::{Known, Store};
use super::{Coordinator, Database, Decision, Prefix, meter};
use crate::lease::{OwnPool, within};
use crate::testing::crash_point;
use crate::transaction;
use crate::worker::{Error, Tick, Worker};

/// Looks into every participant's `pg_prepared_xacts`. It is a worker; several of them, in several
/// processes, do no harm.
#[derive(Debug)]
pub struct Sweep {
    name: String,
    coordinator: Coordinator,
    pool: OwnPool,
    every: Duration,
}

impl Sweep {
    pub(super) fn new(coordinator: &Coordinator, every: Duration) -> Self {
        Self {
            name: format!("{}.twopc_sweep", coordinator.schema),
            pool: OwnPool::beside(coordinator.pool.clone(), 1),
            coordinator: coordinator.clone(),
            every,
        }
    }

    async fn look_into(&self, database: &Database, prefix: &Prefix) -> Result<(), sqlx::Error> {
        let limit = self.coordinator.timeout;
        // First what is prepared, then the log: the other way round, what is begun in between would
        // look unknown.
        let found = within(limit, session::prepared(database.tellers(), prefix)).await?;
        meter::prepared(&self.coordinator.schema, database.name(), &found);
        let old: Vec<(Uuid, Found)> = found
            .into_iter()
            .filter(|found| found.age >= limit)
            .filter_map(|found| Some((prefix.transaction(&found.gid)?.as_uuid(), found)))
            .collect();
        if old.is_empty() {
            return Ok(());
        }
        let known = within(limit, self.known(&old)).await?;
        let mut refused = None;
        for (id, found) in old {
            let decision = match known.get(&found.gid) {
                Some(Known::Open) => continue,
                Some(Known::Over(decision)) => *decision,
                None => Decision::Abort,
            };
            match self.end(database, id, &found, decision).await {
                Ok(()) => {}
                // One that another role has prepared, say: it does not keep the younger ones prepared.
                Err(error) if session::is_refusal(&error) => {
                    refused.get_or_insert(error);
                }
                // Whoever does not answer would not answer for the others, either.
                Err(error) => return Err(error),
            }
        }
        refused.map_or(Ok(()), Err)
    }

    async fn known(&self, found: &[(Uuid, Found)]) -> sqlx::Result<HashMap<String, Known>> {
        let ids: Vec<Uuid> = found.iter().map(|(id, _)| *id).collect();
        let gids: Vec<&str> = found.iter().map(|(_, found)| found.gid.as_str()).collect();
        let store: &Store = &self.coordinator.store;
        let mut tx = transaction::begin(self.pool.get()).await?;
        store.known(&mut tx, (&ids, &gids)).await
    }

    async fn end(
        &self,
        database: &Database,
        id: Uuid,
        found: &Found,
        decision: Decision,
    ) -> sqlx::Result<()> {
        crash_point("twopc.orphan");
        let finishing = session::finish(database.tellers(), &found.gid, decision, None);
        let finished = within(self.coordinator.timeout, finishing).await;
        finished.inspect_err(|error| {
            tracing::warn!(
                participant = database.name(),
                gid = found.gid,
                owner = found.owner,
                decision = decision.as_str(),
                error = error as &(dyn std::error::Error + 'static),
                "could not end a prepared transaction that nobody waits for in the log",
            );
        })?;
        meter::orphan(&self.coordinator.schema, database.name());
        tracing::warn!(
            transaction.id = %id,
            participant = database.name(),
            decision = decision.as_str(),
            age_s = found.age.as_secs(),
            "ended a prepared transaction that nobody waits for in the log",
        );
        Ok(())
    }
}

impl Worker for Sweep {
    fn name(&self) -> &str {
        &self.name
    }

    fn poll_interval(&self) -> Duration {
        self.every
    }

    async fn tick(&self) -> Result<Tick, Error> {
        let coordinator = &self.coordinator;
        let prefix = coordinator.prefix().await?;
        let mut failed: Option<Error> = None;
        for (name, member) in coordinator.members.iter() {
            let Member::Database(database) = member else {
                continue;
            };
            // One that is away does not hold up the others.
            if let Err(error) = self.look_into(database, prefix).await {
                meter::unseen(&coordinator.schema, name);
                let told = crate::lease::told(&error);
                failed = Some(format!("participant `{name}`: {told}").into());
            }
        }
        match failed {
            None => Ok(Tick::Idle),
            Some(error) => Err(error),
        }
    }
}
