//! Telling participants how a transaction ends. Whoever does it, coordinator or recovery, does it
//! here; twice is harmless.

use futures_util::future::join_all;
use tokio::time::timeout;

use super::participant::Member;
use super::store::session::{self, Told};
use super::{Branch, Branches, Coordinator, Decision, TransactionId};
use crate::lease::{stored_error, told, within};
use crate::testing::crash_point;
use crate::worker;

/// Why a participant has not confirmed.
#[derive(Debug, thiserror::Error)]
pub(super) enum Silence {
    #[error("this process does not know it")]
    Unknown,
    #[error("it did not answer in time")]
    Late,
    #[error(
        "it was rolled back there by somebody else, though it is committed: mend its data, then \
         write it off"
    )]
    RolledBack,
    #[error("somebody else is ending it there")]
    Busy,
    #[error("the database refused or can't be reached")]
    Store(#[from] sqlx::Error),
    #[error(transparent)]
    Custom(worker::Error),
}

/// Tells everybody who has not confirmed yet, side by side, and notes the answers in `branches`.
/// Says what went wrong, if anything did: a participant that fails holds up no other.
pub(super) async fn tell(
    coordinator: &Coordinator,
    id: TransactionId,
    decision: Decision,
    branches: &mut Branches,
) -> Option<String> {
    let open = branches.iter_mut();
    let open = open.filter(|(_, branch)| !branch.state.is_done());
    let telling = open.map(|(name, branch)| async move {
        match tell_one(coordinator, id, decision, name, branch).await {
            Ok(()) => {
                branch.state = decision.done();
                branch.error = None;
                crash_point("twopc.told_one");
                None
            }
            Err(silence) => {
                let error = stored_error(&told(&silence));
                branch.tries = branch.tries.saturating_add(1);
                tracing::warn!(
                    transaction.id = %id,
                    participant = name,
                    decision = decision.as_str(),
                    tries = branch.tries,
                    error,
                    "a participant has not confirmed, it will be told again",
                );
                let line = format!("{name}: {error}");
                branch.error = Some(error);
                Some(line)
            }
        }
    });
    let failed: Vec<String> = join_all(telling).await.into_iter().flatten().collect();
    (!failed.is_empty()).then(|| failed.join("; "))
}

async fn tell_one(
    coordinator: &Coordinator,
    id: TransactionId,
    decision: Decision,
    name: &str,
    branch: &Branch,
) -> Result<(), Silence> {
    let limit = coordinator.timeout;
    match coordinator.members.get(name) {
        Some(Member::Database(database)) => {
            // A branch without a name was another kind of participant's.
            let gid = branch.gid.as_deref().ok_or(Silence::Unknown)?;
            let finishing =
                session::finish(database.tellers(), gid, decision, branch.xid.as_deref());
            match within(limit, finishing).await? {
                Told::Done => Ok(()),
                Told::RolledBack => Err(Silence::RolledBack),
                Told::Busy => Err(Silence::Busy),
            }
        }
        Some(Member::Custom(custom)) => {
            let ending = match decision {
                Decision::Commit => custom.commit(id),
                Decision::Abort => custom.abort(id),
            };
            let ended = timeout(limit, ending)
                .await
                .map_err(|_late| Silence::Late)?;
            ended.map_err(Silence::Custom)
        }
        None => Err(Silence::Unknown),
    }
}
