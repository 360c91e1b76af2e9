//! What people see of transactions, and what they may do about one that does not end.

use std::sync::Arc;

use sqlx::postgres::PgRow;
use sqlx::types::Json;
use sqlx::{FromRow, PgConnection, Row};
use time::OffsetDateTime;

use super::store::{Said, Store};
use super::{Branch, BranchState, Branches, Decision, TransactionId};
use crate::Schema;
use crate::dlq::{ACTOR_LIMIT, ACTOR_RULE, REASON_LIMIT, REASON_RULE, is_plain};

/// The most that one page shows.
const PAGE_LIMIT: u32 = 1000;

/// The log of one schema, for people. Needs no participant: what a person decides is written
/// down, and the recovery acts on it at its next poll.
#[derive(Clone, Debug)]
pub struct Ledger(Arc<Store>);

/// Which transactions to list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Listed {
    /// Those that some participant has not confirmed.
    Open,
    /// Those that have ended, for as long as they are kept.
    Finished,
}

/// One transaction in the log.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Record {
    /// Which one.
    pub id: TransactionId,
    /// What its coordinator called it.
    pub name: String,
    /// How it ends. `None`: its coordinator has not decided, or has died before; then it is
    /// aborted.
    pub decision: Option<Decision>,
    /// When that was decided.
    pub decided_at: Option<OffsetDateTime>,
    /// The participants.
    pub branches: Branches,
    /// How often the recovery has tried to end it, in vain.
    pub tries: u32,
    /// What went wrong the last time.
    pub last_error: Option<String>,
    /// Who is at it, or was last.
    pub owner: Option<String>,
    /// When its participants began to prepare.
    pub created_at: OffsetDateTime,
    /// When it is tried again, unless somebody is at it.
    pub next_try_at: Option<OffsetDateTime>,
    /// When the last participant had confirmed.
    pub finished_at: Option<OffsetDateTime>,
}

impl Record {
    /// The participants that have not confirmed yet.
    pub fn waiting_for(&self) -> impl Iterator<Item = (&str, &Branch)> {
        let open = self.branches.iter();
        open.filter(|(_, branch)| !branch.state.is_done())
            .map(|(name, branch)| (name.as_str(), branch))
    }
}

impl FromRow<'_, PgRow> for Record {
    fn from_row(row: &PgRow) -> sqlx::Result<Self> {
        let decision: Option<String> = row.try_get("decision")?;
        let branches: Json<Branches> = row.try_get("branches")?;
        let tries: i32 = row.try_get("attempt_count")?;
        Ok(Self {
            id: row.try_get("transaction_id")?,
            name: row.try_get("name")?,
            decision: decision.as_deref().map(Decision::read).transpose()?,
            decided_at: row.try_get("decided_at")?,
            branches: branches.0,
            tries: u32::try_from(tries).unwrap_or(0),
            last_error: row.try_get("last_error")?,
            owner: row.try_get("locked_by")?,
            created_at: row.try_get("created_at")?,
            next_try_at: row.try_get("next_retry_at")?,
            finished_at: row.try_get("finished_at")?,
        })
    }
}

/// One transaction, and what people did about it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Story {
    /// The transaction.
    pub record: Record,
    /// Who did what, the first first.
    pub trail: Vec<Audit>,
}

/// What somebody did about a transaction.
#[derive(Clone, Debug, PartialEq, Eq, FromRow)]
#[non_exhaustive]
pub struct Audit {
    /// `COMMIT`, `ABORT` or `WRITE_OFF`.
    pub action: String,
    /// Whom it was about, if not about all.
    pub participant: Option<String>,
    /// Who.
    pub actor: String,
    /// Why.
    pub reason: String,
    /// When.
    pub acted_at: OffsetDateTime,
}

/// What a person decides.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Resolution {
    /// Tell everybody of the commit again, now. Only of a transaction that is decided so: that
    /// every participant has prepared, its coordinator alone knows.
    Commit,
    /// Abort it, now, if it is not decided; or tell everybody of the abort again.
    Abort,
    /// This participant will never answer: wait for it no longer. If it is a database and comes back
    /// all the same, the sweep ends its branch as decided. Any other participant nobody tells.
    WriteOff(String),
}

impl Resolution {
    pub(super) const fn as_str(&self) -> &'static str {
        match self {
            Self::Commit => "COMMIT",
            Self::Abort => "ABORT",
            Self::WriteOff(_) => "WRITE_OFF",
        }
    }

    pub(super) fn participant(&self) -> Option<&str> {
        match self {
            Self::WriteOff(participant) => Some(participant),
            Self::Commit | Self::Abort => None,
        }
    }
}

/// Why nothing was listed or changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ResolveError {
    /// A text that nobody could have meant, or that PostgreSQL refuses.
    #[error("`{what}` must be {rule}")]
    Invalid {
        /// Which one.
        what: &'static str,
        /// What it must be.
        rule: &'static str,
    },
    /// There is no open transaction with this id: it was never there, or has ended.
    #[error("there is no open transaction {0}")]
    NotOpen(TransactionId),
    /// It is decided otherwise, and participants may have acted on it.
    #[error(
        "transaction {id} is decided: {}, and participants may have acted on it",
        decision.as_str()
    )]
    Decided {
        /// Which one.
        id: TransactionId,
        /// How it ends.
        decision: Decision,
    },
    /// Nobody has decided yet. Whether every participant has prepared, its coordinator alone knows: a
    /// person can abort it, and no more.
    #[error("transaction {0} is not decided: it can only be aborted")]
    Undecided(TransactionId),
    /// That participant is none of this transaction's, or has confirmed.
    #[error("transaction {id} does not wait for `{participant}`")]
    NotWaiting {
        /// Which one.
        id: TransactionId,
        /// Whom it does not wait for.
        participant: String,
    },
    /// The database could not be asked.
    #[error("the log of two-phase commits could not be read or changed")]
    Store(#[from] sqlx::Error),
}

impl Ledger {
    /// The log in `schema`.
    #[must_use]
    pub fn new(schema: &Schema) -> Self {
        Self(Arc::new(Store::new(schema)))
    }

    /// Up to `limit` (1000 at most) transactions, the latest first; `after` is the last one of the
    /// page before.
    ///
    /// # Errors
    /// When the database can't be asked.
    pub async fn list(
        &self,
        connection: &mut PgConnection,
        which: Listed,
        after: Option<TransactionId>,
        limit: u32,
    ) -> Result<Vec<Record>, ResolveError> {
        let limit = limit.clamp(1, PAGE_LIMIT);
        Ok(self.0.list(connection, which, after, limit).await?)
    }

    /// One transaction, open or finished, and what people did about it.
    ///
    /// # Errors
    /// When the database can't be asked.
    pub async fn show(
        &self,
        connection: &mut PgConnection,
        id: TransactionId,
    ) -> Result<Option<Story>, ResolveError> {
        let Some(record) = self.0.show(connection, id).await? else {
            return Ok(None);
        };
        let trail = self.0.trail(connection, id).await?;
        Ok(Some(Story { record, trail }))
    }

    /// Does what a person decided about an open transaction: takes it from whoever is at it and
    /// makes it due, with an audit record. Joins the caller's transaction; a recovery acts on it
    /// after the commit. Says how the transaction ends.
    ///
    /// # Errors
    /// When it is not open, is decided otherwise, or waits for no such participant; when actor or
    /// reason are not acceptable; when the database can't be asked.
    pub async fn resolve(
        &self,
        connection: &mut PgConnection,
        id: TransactionId,
        resolution: &Resolution,
        actor: &str,
        reason: &str,
    ) -> Result<Decision, ResolveError> {
        for (what, text, limit, rule) in [
            ("actor", actor, ACTOR_LIMIT, ACTOR_RULE),
            ("reason", reason, REASON_LIMIT, REASON_RULE),
        ] {
            if !is_plain(text, limit) {
                return Err(ResolveError::Invalid { what, rule });
            }
        }
        let locked = self.0.lock(connection, id).await?;
        let (decision, mut branches) = locked.ok_or(ResolveError::NotOpen(id))?;
        let decision = match (resolution, decision) {
            (Resolution::Commit | Resolution::WriteOff(_), None) => {
                return Err(ResolveError::Undecided(id));
            }
            (Resolution::Commit, Some(decision @ Decision::Abort))
            | (Resolution::Abort, Some(decision @ Decision::Commit)) => {
                return Err(ResolveError::Decided { id, decision });
            }
            (Resolution::Abort, None) => Decision::Abort,
            (_, Some(decision)) => decision,
        };
        if let Resolution::WriteOff(participant) = resolution {
            let branch = branches.get_mut(participant);
            let waiting = branch.filter(|branch| !branch.state.is_done());
            let Some(branch) = waiting else {
                let participant = participant.clone();
                return Err(ResolveError::NotWaiting { id, participant });
            };
            branch.state = BranchState::WrittenOff;
        }
        let said = Said { actor, reason };
        self.0
            .resolve(connection, id, (decision, &branches), resolution, said)
            .await?;
        tracing::warn!(
            transaction.id = %id,
            action = resolution.as_str(),
            participant = resolution.participant(),
            actor,
            reason,
            "a person decided about a transaction",
        );
        Ok(decision)
    }

    /// Every statement, for a test that prepares them all.
    #[doc(hidden)]
    pub fn statements(&self) -> impl Iterator<Item = &str> {
        self.0.all()
    }
}
