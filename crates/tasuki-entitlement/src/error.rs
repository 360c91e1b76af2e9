//! What can go wrong here.

use tasuki::{idempotency, outbox, together};
use tasuki_service::database;

/// Why commands were not done.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("the key could not be opened or its answer kept")]
    Idempotency(#[from] idempotency::Error),
    #[error("the entitlements could not be read or written")]
    Store(#[from] sqlx::Error),
    #[error("the event could not be written")]
    Outbox(#[from] outbox::Error),
    #[error("the answer could not be written")]
    Encode(#[from] serde_json::Error),
    #[error("a time could not be written")]
    Time(#[from] time::error::Format),
    /// Also when somebody has changed an entitlement without its lock: versions would have had a
    /// gap or a repeat.
    #[error("the changes could not be written")]
    Together(#[from] together::Error),
}

/// What somebody else can hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Held {
    Key,
    Entitlement,
}

impl Error {
    /// What the database said, if it was the database.
    pub(crate) fn database(&self) -> Option<&sqlx::Error> {
        match self {
            Self::Store(error)
            | Self::Idempotency(idempotency::Error::Store(error))
            | Self::Outbox(outbox::Error::Store(error))
            | Self::Together(together::Error::Store(error)) => Some(error),
            Self::Idempotency(_)
            | Self::Outbox(_)
            | Self::Encode(_)
            | Self::Time(_)
            | Self::Together(_) => None,
        }
    }

    /// What somebody else holds, if that was it: nothing was done, and trying again soon may well
    /// help.
    pub(crate) fn held(&self) -> Option<Held> {
        match self {
            Self::Idempotency(idempotency::Error::InProgress) => Some(Held::Key),
            Self::Idempotency(idempotency::Error::Held) => Some(Held::Entitlement),
            _ => None,
        }
    }

    /// Whether nothing can be done for anybody at the moment.
    pub(crate) fn is_away(&self) -> bool {
        self.database().is_some_and(database::is_away)
    }
}
