//! What can go wrong here.

use tasuki::{choreography, idempotency, inbox, jobs, saga, twopc};

use crate::domain::{Setback, Unsellable};

/// Why something was not done.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("the key could not be opened or its answer kept")]
    Idempotency(#[from] idempotency::Error),
    #[error("the shop's tables could not be read or written")]
    Store(#[from] sqlx::Error),
    #[error("the event could not be written")]
    Story(#[from] choreography::Error),
    #[error("what has come could not be recorded")]
    Inbox(#[from] inbox::Error),
    #[error("the job could not be written")]
    Jobs(#[from] jobs::Error),
    #[error("the saga could not be started or stopped")]
    Saga(#[from] saga::Error),
    #[error("the transfer was not made")]
    Transfer(#[from] twopc::Error),
    #[error("the answer could not be written")]
    Encode(#[from] serde_json::Error),
    #[error("a time could not be written")]
    Time(#[from] time::error::Format),
    #[error(transparent)]
    Unsellable(#[from] Unsellable),
    #[error(transparent)]
    Setback(#[from] Setback),
    #[error("{0}")]
    Unanswered(String),
    #[error("{0}")]
    Refused(String),
    #[error("there is no such order")]
    NoOrder,
    #[error("the order is {0}: it can't be cancelled any more")]
    TooLate(&'static str),
    #[error("there is no second warehouse: set shop.warehouse.url")]
    NoWarehouse,
    #[error("too many transfers wait")]
    Busy,
}

impl Error {
    /// Whether the database can't be reached: nobody's fault, and no reason to give anything up.
    pub(crate) fn is_away(&self) -> bool {
        self.database().is_some_and(tasuki::is_away)
    }

    /// What the database said, if it was the database.
    pub(crate) fn database(&self) -> Option<&sqlx::Error> {
        let mut level: Option<&(dyn std::error::Error + 'static)> = Some(self);
        while let Some(error) = level {
            if let Some(found) = error.downcast_ref::<sqlx::Error>() {
                return Some(found);
            }
            level = error.source();
        }
        None
    }
}
