//! A transaction while work is done in it.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt;
use std::sync::Arc;

use sqlx::PgConnection;
use tokio::time::timeout;

use super::participant::{Custom, Member};
use super::{Coordinator, Database, Error, Prefix, TransactionId};
use crate::lease::within;
use crate::transaction;

/// A transaction over several participants. Dropping it rolls back, without waiting for it;
/// [`abort`](Self::abort) waits.
#[must_use]
pub struct Transaction {
    pub(super) coordinator: Coordinator,
    pub(super) prefix: Prefix,
    pub(super) id: TransactionId,
    pub(super) name: String,
    pub(super) own: Option<transaction::Transaction>,
    pub(super) parts: BTreeMap<String, Part>,
}

/// What one participant has to do with it.
pub(super) enum Part {
    Session(Database, transaction::Transaction),
    Custom(Arc<dyn Custom>),
}

/// A transaction that is committed, for good.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Committed {
    /// Which one.
    pub id: TransactionId,
    /// Participants that have not confirmed yet: they are away, and are told by the recovery as soon
    /// as they are back. Until then their locks stand, and what they have is not to be seen there.
    pub waiting_for: Vec<String>,
}

impl fmt::Debug for Transaction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Transaction")
            .field("id", &self.id)
            .field("name", &self.name)
            .field("own", &self.own.is_some())
            .field("participants", &self.parts.keys())
            .finish_non_exhaustive()
    }
}

impl Transaction {
    pub(super) fn new(
        coordinator: Coordinator,
        prefix: Prefix,
        id: TransactionId,
        name: &str,
    ) -> Self {
        Self {
            coordinator,
            prefix,
            id,
            name: name.to_owned(),
            own: None,
            parts: BTreeMap::new(),
        }
    }

    /// Which one it is, in the log and for participants that are no databases.
    #[must_use]
    pub const fn id(&self) -> TransactionId {
        self.id
    }

    /// The connection to work with in this database, in a transaction that begins with the first
    /// call: READ COMMITTED, unless the first statement says otherwise.
    ///
    /// # Errors
    /// When the coordinator does not know the database, or it can't be reached.
    pub async fn on(&mut self, database: &Database) -> Result<&mut PgConnection, Error> {
        let name = database.name();
        let unknown = || Error::Unknown {
            name: name.to_owned(),
        };
        let Some(Member::Database(known)) = self.coordinator.members.get(name) else {
            return Err(unknown());
        };
        let part = match self.parts.entry(name.to_owned()) {
            Entry::Occupied(part) => part.into_mut(),
            Entry::Vacant(place) => {
                let limit = self.coordinator.timeout;
                let begun = within(limit, transaction::begin(known.pool())).await;
                let begun = begun.map_err(|source| Error::Away {
                    participant: name.to_owned(),
                    source,
                })?;
                place.insert(Part::Session(known.clone(), begun))
            }
        };
        match part {
            Part::Session(_, session) => Ok(session),
            Part::Custom(_) => Err(unknown()),
        }
    }

    /// The connection to work with in the coordinator's own database. That needs no preparing: what
    /// is done here commits with the decision, in one transaction. Stay READ COMMITTED.
    ///
    /// # Errors
    /// When the database can't be reached.
    pub async fn here(&mut self) -> Result<&mut PgConnection, Error> {
        let coordinator = &self.coordinator;
        let begun = match self.own.take() {
            Some(own) => own,
            None => within(coordinator.timeout, transaction::begin(&coordinator.pool))
                .await
                .map_err(Error::Log)?,
        };
        Ok(self.own.insert(begun))
    }

    /// Lets a participant that is no database take part. Do what it is to commit under the
    /// [`id`](Self::id) of this transaction.
    ///
    /// # Errors
    /// When the coordinator does not know it, or it is a database.
    pub fn enlist(&mut self, name: &str) -> Result<(), Error> {
        let Some(Member::Custom(custom)) = self.coordinator.members.get(name) else {
            return Err(Error::Unknown {
                name: name.to_owned(),
            });
        };
        let part = Part::Custom(Arc::clone(custom));
        self.parts.insert(name.to_owned(), part);
        Ok(())
    }

    /// Rolls back everywhere, and waits until it is done. One participant that fails to is logged,
    /// and holds up no other.
    pub async fn abort(self) {
        if let Some(own) = self.own {
            transaction::roll_back(own).await;
        }
        let (id, limit) = (self.id, self.coordinator.timeout);
        let ending = self.parts.into_iter().map(|(name, part)| async move {
            let ended = match part {
                Part::Session(_, session) => {
                    let rolling = transaction::roll_back(session);
                    timeout(limit, rolling).await.map_err(Into::into)
                }
                Part::Custom(custom) => match timeout(limit, custom.abort(id)).await {
                    Ok(ended) => ended,
                    Err(late) => Err(late.into()),
                },
            };
            if let Err(error) = ended {
                let error: crate::worker::Error = error;
                tracing::warn!(
                    transaction.id = %id,
                    participant = name,
                    error = &*error as &(dyn std::error::Error + 'static),
                    "a participant could not be told to abort",
                );
            }
        });
        futures_util::future::join_all(ending).await;
    }
}
