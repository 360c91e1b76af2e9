//! Why a move was not made, and what becomes of the saga then.
//!
//! Nobody is to blame for an outage. What fails for another reason, again and again, is tried ever more
//! slowly and in the end left to a person: it would cost everybody who shares its transactions.

use std::sync::Arc;
use std::time::Duration;

use crate::batch;
use crate::is_away;
use crate::lease::{Outcome, told};
use crate::retry::Backoff;

/// A saga that was given back so often without a move is not tried again by itself.
pub(super) const GIVEN_BACK_AT_MOST: u32 = 10;
/// Given back, to be claimed at once. (No pause at all would leave it where its lease ends.)
const AT_ONCE: Duration = Duration::from_millis(1);
/// When the database, or the journal, may have recovered.
const LATER: Duration = Duration::from_secs(1);

/// Why a move was not made.
#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    /// Somebody else has the saga, or this very move was made before.
    #[error("the saga is another's, or has moved already")]
    Stale,
    /// Its process is dead, says a check.
    #[error("its process is dead, says a check")]
    Dead,
    #[error("the story can't be written as JSON")]
    Story(#[source] serde_json::Error),
    #[error("the journal could not be written")]
    Store(#[from] sqlx::Error),
    /// The connection was lost in the middle: by an outage, or by what a step did.
    #[error("the connection was lost in the transaction of the step")]
    Lost(#[source] sqlx::Error),
    /// The commit was sent, and its answer got lost: what was written may be there.
    #[error("the connection was lost in the commit, which may have been made")]
    Unheard(#[source] sqlx::Error),
    /// Of a birth that may have been made like this there is no second try.
    #[error("the saga may have begun: the answer to its commit got lost")]
    TriedOnce,
    /// The database took the transaction back, at the latest as it was committed.
    #[error("the transaction of the step was refused")]
    Refused(#[source] sqlx::Error),
}

/// Why a driver has to let its saga go.
#[derive(Clone, Debug, thiserror::Error)]
pub(super) enum Trouble {
    #[error("the saga is another's, or has moved already")]
    Stale,
    #[error("its process is dead, says a check")]
    Dead,
    #[error("the journal could not be written")]
    Failed(#[source] Arc<Error>),
    #[error("the journal has stopped")]
    Stopped,
    #[error("too many sagas wait for the journal")]
    Overloaded,
    #[error("the journal was cut off")]
    Cut,
    #[error("panicked: {0}")]
    Panicked(String),
}

impl Error {
    /// The same, if it came up in a transaction that was open: the database was there then.
    pub(super) fn inside(self) -> Self {
        match self {
            Self::Store(error) if is_away(&error) => Self::Lost(error),
            Self::Store(error) => Self::Refused(error),
            error => error,
        }
    }

    /// The same, if it came up as the transaction was committed.
    pub(super) fn at_commit(error: sqlx::Error) -> Self {
        match is_away(&error) {
            true => Self::Unheard(error),
            false => Self::Refused(error),
        }
    }

    /// Whether somebody has locked the row of a saga for longer than we wait for that.
    pub(super) fn is_held_up(&self) -> bool {
        matches!(self, Self::Store(error) if is_locked(error))
    }

    /// Whether the database is away: everybody's trouble, and no saga's.
    pub(super) fn is_outage(&self) -> bool {
        match self {
            Self::Store(error) => is_away(error),
            Self::Stale | Self::Dead => false,
            Self::Story(_) | Self::Lost(_) | Self::Refused(_) => false,
            Self::Unheard(_) | Self::TriedOnce => false,
        }
    }
}

/// Whether a lock was waited for as long as it may be.
pub(super) fn is_locked(error: &sqlx::Error) -> bool {
    let code = error.as_database_error().and_then(|error| error.code());
    code.as_deref() == Some("55P03")
}

impl Trouble {
    /// What becomes of the claim, when the saga was given back `before` times in a row already.
    pub(super) fn outcome(&self, before: u32) -> Outcome<()> {
        let back = |after| Outcome::Back { after, error: None };
        match self {
            Self::Stale | Self::Dead | Self::Stopped => back(AT_ONCE),
            Self::Overloaded | Self::Cut => back(LATER),
            Self::Failed(error) if error.is_outage() => back(LATER),
            Self::Failed(_) | Self::Panicked(_) => Outcome::Retry {
                after: Backoff::default().pick(before.saturating_add(1)),
                error: told(self),
            },
        }
    }

    /// What becomes of a claim that nothing is the matter with.
    pub(super) const fn nothing() -> Outcome<()> {
        Outcome::Back {
            after: AT_ONCE,
            error: None,
        }
    }
}

impl From<batch::Error<Error>> for Trouble {
    fn from(error: batch::Error<Error>) -> Self {
        match error {
            batch::Error::Refused(error) => error.into(),
            batch::Error::Failed(error) => match *error {
                Error::Stale => Self::Stale,
                _ => Self::Failed(error),
            },
            batch::Error::Stopped => Self::Stopped,
            batch::Error::Overloaded => Self::Overloaded,
            batch::Error::Panicked => Self::Panicked("in the journal".to_owned()),
            _ => Self::Cut,
        }
    }
}

impl From<Error> for Trouble {
    fn from(error: Error) -> Self {
        match error {
            Error::Stale => Self::Stale,
            Error::Dead => Self::Dead,
            error => Self::Failed(Arc::new(error)),
        }
    }
}
