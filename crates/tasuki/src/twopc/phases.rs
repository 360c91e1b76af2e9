//! Commit: everybody prepares, it is decided, everybody is told.

use std::collections::BTreeMap;

use futures_util::future::join_all;
use tokio::time::{Instant, timeout};
use uuid::Uuid;

use super::open::Part;
use super::store::session;
use super::tell::{Silence, tell};
use super::{
    Branch, BranchState, Branches, Committed, Coordinator, Database, Decision, Error, Transaction,
    TransactionId, meter,
};
use crate::lease::{Fence, Outcome, told, within};
use crate::retry::Backoff;
use crate::testing::crash_point;
use crate::transaction;
use crate::worker;

/// A branch whose participant was asked to prepare.
struct Asked {
    name: String,
    branch: Branch,
    refused: Option<Refusal>,
}

/// Why a participant has not prepared.
enum Refusal {
    Disabled,
    Other(worker::Error),
}

impl Transaction {
    /// Commits everywhere, or nowhere.
    ///
    /// With one database in it, it is an ordinary commit. Otherwise every participant prepares, in
    /// parallel; when all have, the decision is written down, and every one is told. It returns when
    /// all have confirmed, or have been told once in vain.
    ///
    /// Dropping the future is no worse than a crash: if it was decided, it will be committed; else it
    /// will be aborted, by a recovery, after the timeout.
    ///
    /// # Errors
    /// Nothing is committed, unless the error is [`Error::Unsure`].
    pub async fn commit(self) -> Result<Committed, Error> {
        let (schema, began) = (self.coordinator.schema.clone(), Instant::now());
        let is_short = self.is_short();
        let ended = if is_short {
            self.commit_alone().await
        } else {
            Box::pin(self.commit_all()).await
        };
        meter::ended(&schema, is_short, &ended, began.elapsed());
        ended
    }

    /// Whether one commit is all that it takes.
    fn is_short(&self) -> bool {
        let plain = |part: &Part| matches!(part, Part::Session(..));
        self.parts.values().all(plain) && self.parts.len() + usize::from(self.own.is_some()) <= 1
    }

    async fn commit_alone(self) -> Result<Committed, Error> {
        let id = self.id;
        let sessions = self
            .parts
            .into_iter()
            .filter_map(|(name, part)| match part {
                Part::Session(_, session) => Some((Some(name), session)),
                Part::Custom(_) => None,
            });
        let own = self.own.into_iter().map(|own| (None, own));
        for (participant, session) in own.chain(sessions) {
            let committed = within(self.coordinator.timeout, transaction::commit(session)).await;
            committed.map_err(|source| match participant {
                _ if !session::is_refusal(&source) => Error::Unsure { id, source },
                None => Error::Own { id, source },
                Some(participant) => Error::Refused {
                    id,
                    participant,
                    source: source.into(),
                },
            })?;
        }
        Ok(Committed {
            id,
            waiting_for: Vec::new(),
        })
    }

    async fn commit_all(self) -> Result<Committed, Error> {
        let Self {
            coordinator,
            prefix,
            id,
            name,
            mut own,
            parts,
        } = self;
        if let Some(own) = &mut own {
            let plain = within(coordinator.timeout, session::is_read_committed(own)).await;
            if !plain.map_err(|source| Error::Own { id, source })? {
                return Err(Error::Isolation);
            }
        }
        let log = Log {
            fence: Fence {
                id: id.as_uuid(),
                token: Uuid::new_v4(),
            },
            coordinator,
            id,
        };
        let branches = parts.iter().map(|(name, part)| {
            let gid = matches!(part, Part::Session(..)).then(|| prefix.gid(id, name));
            (name.clone(), Branch::preparing(gid))
        });
        let branches: Branches = branches.collect();
        let written = log.coordinator.write_down(log.fence, &name, &branches);
        written.await.map_err(Error::Log)?;
        crash_point("twopc.begun");
        let (branches, refused) = log.prepare(parts, branches).await;
        if let Some(error) = refused {
            drop(own);
            log.roll_back(branches).await;
            return Err(error);
        }
        crash_point("twopc.prepared");
        log.decide(own, branches).await
    }
}

/// A transaction that is written down.
struct Log {
    coordinator: Coordinator,
    id: TransactionId,
    fence: Fence,
}

impl Log {
    /// Has everybody prepare, and waits for all of them: whoever is still at it can't be told to
    /// abort. Says who refused first, if anybody did.
    async fn prepare(
        &self,
        parts: BTreeMap<String, Part>,
        mut branches: Branches,
    ) -> (Branches, Option<Error>) {
        let asking = parts.into_iter().filter_map(|(name, part)| {
            let branch = branches.remove(&name)?;
            Some(self.prepare_one(name, part, branch))
        });
        let asked: Vec<Asked> = join_all(asking).await;
        let (mut branches, mut first) = (Branches::new(), None);
        for Asked {
            name,
            branch,
            refused,
        } in asked
        {
            if let Some(refusal) = refused {
                let error = self.refused(&name, refusal);
                first.get_or_insert(error);
            }
            branches.insert(name, branch);
        }
        (branches, first)
    }

    async fn prepare_one(&self, name: String, part: Part, mut branch: Branch) -> Asked {
        crash_point("twopc.preparing");
        let limit = self.coordinator.timeout;
        let prepared = match part {
            Part::Session(database, session) => {
                let gid = branch.gid.clone().unwrap_or_default();
                match within(limit, session::prepare(session, &gid)).await {
                    Ok(xid) => Ok(Some(xid)),
                    Err(error) => Err(self.refusal(&database, error).await),
                }
            }
            Part::Custom(custom) => match timeout(limit, custom.prepare(self.id)).await {
                Ok(prepared) => prepared.map(|()| None).map_err(Refusal::Other),
                Err(_late) => Err(Refusal::Other(Silence::Late.into())),
            },
        };
        let refused = match prepared {
            Ok(xid) => {
                branch.xid = xid;
                branch.state = BranchState::Prepared;
                crash_point("twopc.prepared_one");
                None
            }
            Err(refusal) => Some(refusal),
        };
        Asked {
            name,
            branch,
            refused,
        }
    }

    /// Why a database refused. That prepared transactions are turned off has a code that a user's
    /// own trigger may use, too: the setting tells.
    async fn refusal(&self, database: &Database, error: sqlx::Error) -> Refusal {
        let disabled = session::is_disabled(&error)
            && within(self.coordinator.timeout, session::room(database.tellers()))
                .await
                .is_ok_and(|room| room == 0);
        if disabled {
            Refusal::Disabled
        } else {
            Refusal::Other(error.into())
        }
    }

    fn refused(&self, participant: &str, refusal: Refusal) -> Error {
        let participant = participant.to_owned();
        match refusal {
            Refusal::Disabled => Error::Disabled { participant },
            Refusal::Other(source) => Error::Refused {
                id: self.id,
                participant,
                source,
            },
        }
    }

    /// Writes the decision down, and acts on it. From the moment that the decision is durable it is
    /// committed, whatever happens to us.
    async fn decide(
        &self,
        own: Option<transaction::Transaction>,
        branches: Branches,
    ) -> Result<Committed, Error> {
        let id = self.id;
        let failed = match self.coordinator.decide(own, self.fence, &branches).await {
            Ok(true) => None,
            Ok(false) => {
                self.roll_back(branches).await;
                return Err(Error::Overruled { id });
            }
            Err(error) => Some(error),
        };
        if let Some(source) = failed {
            // The answer may have got lost after it was written. Whoever decides now finds out.
            match self.coordinator.stand(self.fence.id).await {
                Ok((Decision::Commit, _)) => {}
                Ok((Decision::Abort, _)) => {
                    self.roll_back(branches).await;
                    return Err(Error::Own { id, source });
                }
                Err(error) => {
                    tracing::warn!(
                        transaction.id = %id,
                        error = &error as &(dyn std::error::Error + 'static),
                        "the log can't be asked how the transaction was decided",
                    );
                    return Err(Error::Unsure { id, source });
                }
            }
        }
        crash_point("twopc.decided");
        let branches = self.end(Decision::Commit, branches).await;
        let open = branches.into_iter();
        let open = open.filter(|(_, branch)| !branch.state.is_done());
        Ok(Committed {
            id,
            waiting_for: open.map(|(name, _)| name).collect(),
        })
    }

    /// Rolls back what may have been prepared. Nobody but us could have decided to commit, so
    /// participants are told also while the log can't be reached.
    async fn roll_back(&self, branches: Branches) {
        let decision = match self.coordinator.stand(self.fence.id).await {
            Ok((decision, _)) => decision,
            Err(error) => {
                tracing::warn!(
                    transaction.id = %self.id,
                    error = &error as &(dyn std::error::Error + 'static),
                    "an abort could not be written down, the recovery will",
                );
                Decision::Abort
            }
        };
        self.end(decision, branches).await;
    }

    /// Tells everybody, once, and leaves to the recovery whoever did not confirm.
    async fn end(&self, decision: Decision, mut branches: Branches) -> Branches {
        let error = tell(&self.coordinator, self.id, decision, &mut branches).await;
        crash_point("twopc.told");
        let noted = match error {
            None => self.coordinator.finish(self.fence, branches.clone()).await,
            Some(error) => {
                let after = Backoff::default().pick(1);
                let outcome = Outcome::Retry { after, error };
                let handed = self.coordinator.hand_over(self.fence, &branches, outcome);
                handed.await
            }
        };
        if let Err(error) = noted {
            // It stays ours until the lease is over; then the recovery takes it.
            tracing::warn!(
                transaction.id = %self.id,
                error = told(&error),
                "the end of a transaction could not be written down, the recovery will",
            );
        }
        branches
    }
}
