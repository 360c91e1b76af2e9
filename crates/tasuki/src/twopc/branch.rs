//! What the log knows of a transaction's participants.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// How a transaction ends, in every participant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Decision {
    /// Every participant commits.
    Commit,
    /// Every participant rolls back.
    Abort,
}

impl Decision {
    /// As the log has it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Commit => "COMMIT",
            Self::Abort => "ABORT",
        }
    }

    pub(super) fn read(text: &str) -> sqlx::Result<Self> {
        match text {
            "COMMIT" => Ok(Self::Commit),
            "ABORT" => Ok(Self::Abort),
            other => Err(sqlx::Error::Decode(
                format!("`{other}` is no decision").into(),
            )),
        }
    }

    /// The state of a branch that has confirmed this.
    pub(super) const fn done(self) -> BranchState {
        match self {
            Self::Commit => BranchState::Committed,
            Self::Abort => BranchState::Aborted,
        }
    }
}

/// Where one participant is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
#[non_exhaustive]
pub enum BranchState {
    /// It was asked to prepare, or is about to be; nobody knows whether it did.
    Preparing,
    /// It has prepared, and waits for the decision.
    Prepared,
    /// It has confirmed the commit.
    Committed,
    /// It has confirmed the abort.
    Aborted,
    /// A person has said that it will never answer.
    WrittenOff,
}

impl BranchState {
    /// As the log has it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Preparing => "PREPARING",
            Self::Prepared => "PREPARED",
            Self::Committed => "COMMITTED",
            Self::Aborted => "ABORTED",
            Self::WrittenOff => "WRITTEN_OFF",
        }
    }

    /// Whether nothing is to be waited for any more.
    #[must_use]
    pub const fn is_done(self) -> bool {
        matches!(self, Self::Committed | Self::Aborted | Self::WrittenOff)
    }
}

/// One participant's part of a transaction.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Branch {
    /// Where it is.
    pub state: BranchState,
    /// What `pg_prepared_xacts` calls it; none for a participant that is not a database.
    pub gid: Option<String>,
    /// The number that the participant's database gave to it. After the prepared transaction is
    /// gone, it tells whether it was committed.
    pub xid: Option<String>,
    /// How often it was told of the decision without confirming.
    pub tries: u32,
    /// What went wrong the last time.
    pub error: Option<String>,
}

impl Branch {
    pub(super) const fn preparing(gid: Option<String>) -> Self {
        Self {
            state: BranchState::Preparing,
            gid,
            xid: None,
            tries: 0,
            error: None,
        }
    }
}

/// The participants of a transaction, by name.
pub type Branches = BTreeMap<String, Branch>;
