//! Semantic locks: a saga says that it is not done with something yet.
//!
//! The steps of a saga commit one by one, so others can see what is half done, and build on it. A
//! semantic lock is the flag that tells them not to: "this order is `PENDING`, for that saga". It
//! is a row, taken in the transaction of the step that begins to use the resource, and released in
//! that of the step, or compensation, that ends it; in between it outlives transactions, processes
//! and crashes.
//!
//! Whoever else wants the resource takes the lock too, also for a single transaction: take, work,
//! release. [`holder`](Locks::holder) alone proves nothing about the next moment.
//!
//! Not promised: that the lock ends by itself. Its owner may be slow, or parked for a person; a
//! lock that were given to the next one by a clock would protect nothing. What is held for long is
//! listed ([`held`](Locks::held)).

use std::sync::Arc;
use std::time::Duration;

use sqlx::PgConnection;
use time::OffsetDateTime;
use uuid::Uuid;

use super::store;
use crate::Schema;
use crate::retry::{Judged, Verdict};

/// The longest name of a resource, in bytes.
const MAX_RESOURCE: usize = 512;
/// How often a lock may be released under the hands of whoever asks who has it.
const LOOKS: usize = 3;

/// Marks on resources that sagas are at work on. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Locks {
    statements: Arc<store::LockStatements>,
}

/// A lock that somebody holds.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Hold {
    /// What is held.
    pub resource: String,
    /// The saga that holds it.
    pub owner: Uuid,
    /// Since when, by the database's clock.
    pub since: OffsetDateTime,
}

/// How a lock was had.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Take {
    /// It was free.
    Taken,
    /// This owner had it already: the step was here before.
    Yours,
}

/// How a lock was let go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Release {
    /// It is free now.
    Released,
    /// This owner did not have it: it was released before, or never taken.
    NotYours,
}

/// Why a lock was not taken. [`Judged`]: a [`retry::Executor`](crate::retry::Executor) around the
/// whole transaction waits until it is free.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LockError {
    /// Another saga is at work on it. Roll back, and try again later or give up.
    #[error("{} is held by {} since {}", .0.resource, .0.owner, .0.since)]
    Held(Hold),
    /// It changed hands faster than we could see whose it is. Try again.
    #[error("{0} is wanted by many")]
    Contended(String),
    /// The name of the resource can't be stored.
    #[error("a resource is named by 1 to {MAX_RESOURCE} bytes, none of them a control character")]
    InvalidResource,
    /// The database refused, or can't be reached.
    #[error("lock store failed")]
    Store(#[from] sqlx::Error),
}

impl Judged for LockError {
    fn verdict(&self) -> Verdict {
        match self {
            Self::Held(_) | Self::Contended(_) | Self::Store(_) => Verdict::Retry,
            Self::InvalidResource => Verdict::Reject,
        }
    }
}

impl Locks {
    /// The locks in `schema`.
    #[must_use]
    pub fn new(schema: &Schema) -> Self {
        Self {
            statements: Arc::new(store::LockStatements::new(schema)),
        }
    }

    /// Marks `resource` (`order:17`) as being worked on by the saga `owner`, once and for all its
    /// repetitions. Commit it with the effect.
    ///
    /// A transaction that takes several takes them in one order, as all do that take the same: two
    /// that wait for each other are ended by PostgreSQL as a deadlock.
    ///
    /// # Errors
    /// [`LockError::Held`] when another saga has it; when the name is invalid or the database fails.
    pub async fn take(
        &self,
        tx: &mut PgConnection,
        resource: &str,
        owner: Uuid,
    ) -> Result<Take, LockError> {
        check(resource)?;
        for _ in 0..LOOKS {
            if store::take(tx, &self.statements, resource, owner).await? {
                return Ok(Take::Taken);
            }
            // A new statement: it sees what the one before had to wait for.
            match store::holder(tx, &self.statements, resource).await? {
                Some(hold) if hold.owner == owner => return Ok(Take::Yours),
                Some(hold) => return Err(LockError::Held(hold)),
                // Released in between.
                None => {}
            }
        }
        Err(LockError::Contended(resource.to_owned()))
    }

    /// Lets go of `resource`, if `owner` has it.
    ///
    /// # Errors
    /// When the name is invalid or the database fails.
    pub async fn release(
        &self,
        tx: &mut PgConnection,
        resource: &str,
        owner: Uuid,
    ) -> Result<Release, LockError> {
        check(resource)?;
        Ok(
            match store::release(tx, &self.statements, resource, owner).await? {
                true => Release::Released,
                false => Release::NotYours,
            },
        )
    }

    /// Lets go of everything that `owner` has, and says how much that was: the end of a saga.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn release_all(&self, tx: &mut PgConnection, owner: Uuid) -> Result<u64, LockError> {
        Ok(store::release_all(tx, &self.statements, owner).await?)
    }

    /// Who holds `resource`.
    ///
    /// # Errors
    /// When the name is invalid or the database fails.
    pub async fn holder(
        &self,
        connection: &mut PgConnection,
        resource: &str,
    ) -> Result<Option<Hold>, LockError> {
        check(resource)?;
        Ok(store::holder(connection, &self.statements, resource).await?)
    }

    /// What has been held for this long and longer, the oldest first: for whoever looks after sagas
    /// that do not end.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn held(
        &self,
        connection: &mut PgConnection,
        for_longer_than: Duration,
        limit: u32,
    ) -> Result<Vec<Hold>, LockError> {
        Ok(store::held(connection, &self.statements, for_longer_than, limit).await?)
    }

    /// Every statement, for a test that prepares them all.
    #[doc(hidden)]
    pub fn statements(&self) -> impl Iterator<Item = &str> {
        self.statements.all()
    }
}

fn check(resource: &str) -> Result<(), LockError> {
    let long = resource.len() > MAX_RESOURCE;
    if resource.is_empty() || long || resource.contains(char::is_control) {
        return Err(LockError::InvalidResource);
    }
    Ok(())
}
