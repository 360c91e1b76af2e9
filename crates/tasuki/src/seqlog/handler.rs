//! What a consumer does with rows, and what may go wrong.

use std::future::Future;
use std::time::Duration;

use sqlx::postgres::PgRow;
use sqlx::{FromRow, PgConnection, PgPool};
use tokio::time::timeout;

use super::{Numbered, Snapshot};
use crate::transaction::{self, Limits, Transaction};
use crate::worker::Error;
use crate::{is_away, is_passing};

/// What a consumer does with the rows of a log.
///
/// Effects in the database of the log go through [`Tx::get`]: they commit with the offset, so each row
/// has its effect once. Effects elsewhere happen before the offset moves, and may be repeated after a
/// crash: they must bear that.
pub trait Handler: Send + Sync + 'static {
    /// A row as it is read: a struct with `#[derive(sqlx::FromRow)]` and the columns of the log.
    type Row: for<'r> FromRow<'r, PgRow> + Send + Sync + Unpin;

    /// Handles some rows, in their order. The offset moves when this has succeeded.
    ///
    /// When it fails, what it did in the transaction is undone, and the rows come again one by one, so
    /// that the one that fails is found: it is set aside after its attempts, and the others go on.
    fn handle(
        &self,
        rows: &[Numbered<Self::Row>],
        tx: &mut Tx,
    ) -> impl Future<Output = Result<(), Failure>> + Send;

    /// Fills a fresh store from the source tables, as the snapshot shows them. Nobody sees the store
    /// before [`switch`](Self::switch).
    ///
    /// It may be called again after a crash, and while an earlier call, in a process that has stopped and
    /// comes back, is not over yet: what it writes elsewhere than in a transaction of its own nobody undoes.
    /// So a store has the number of the attempt in its name ([`Snapshot::attempt`]), and no two write
    /// into one.
    fn rebuild(
        &self,
        _snapshot: &mut Snapshot,
    ) -> impl Future<Output = Result<(), Failure>> + Send {
        async { Err(Failure::failed("this consumer has no way to be rebuilt")) }
    }

    /// As [`switch`](Self::switch), for the store of this attempt ([`Snapshot::attempt`]), which is the one
    /// that holds: stores of others that are still there can go.
    fn switch_to(
        &self,
        tx: &mut PgConnection,
        _attempt: i64,
    ) -> impl Future<Output = Result<(), Failure>> + Send {
        self.switch(tx)
    }

    /// Puts the store that was filled in the place of the old one, in the transaction in which the
    /// offset moves to where the snapshot was. It waits for a lock for a second at most: whoever reads
    /// the old store stands behind it meanwhile. It is called again when that was too short.
    fn switch(&self, _tx: &mut PgConnection) -> impl Future<Output = Result<(), Failure>> + Send {
        async { Ok(()) }
    }
}

/// The transaction in which the offset moves. It begins when it is first asked for: a handler that
/// never does has its effects elsewhere.
///
/// The server ends it when it hears nothing for a while ([`Follower::idle`](super::Follower::idle)), so
/// that a process that has stopped holds no lock for long: don't wait for others while it is open.
#[derive(Debug)]
pub struct Tx {
    pool: PgPool,
    limits: Limits,
    open: Option<Transaction>,
}

/// How long a roll back is waited for: it goes on when nobody does.
const ROLL_BACK: Duration = Duration::from_secs(5);

impl Tx {
    pub(super) const fn new(pool: PgPool, limits: Limits) -> Self {
        Self {
            pool,
            limits,
            open: None,
        }
    }

    /// The connection.
    ///
    /// # Errors
    /// When no transaction can be begun.
    pub async fn get(&mut self) -> sqlx::Result<&mut PgConnection> {
        let begun = match self.open.take() {
            Some(open) => open,
            None => transaction::begin_within(&self.pool, &self.limits).await?,
        };
        Ok(self.open.insert(begun))
    }

    pub(super) async fn commit(self) -> sqlx::Result<()> {
        match self.open {
            Some(open) => transaction::commit(open).await,
            None => Ok(()),
        }
    }

    pub(super) async fn roll_back(self) {
        if let Some(open) = self.open
            && timeout(ROLL_BACK, transaction::roll_back(open))
                .await
                .is_err()
        {
            tracing::debug!("roll back takes long, not waited for");
        }
    }
}

/// Why rows were not handled.
#[derive(Debug)]
#[non_exhaustive]
pub enum Failure {
    /// Something is wrong with a row, or with how it is handled: it is tried again, some times, and
    /// then set aside.
    Failed(Error),
    /// Something is wrong with a row for good: it is set aside at once.
    Poison(Error),
    /// What it needs can't be reached: no row is to blame, and everything waits until it is back.
    Away(Error),
}

impl Failure {
    /// A row that may succeed another time.
    pub fn failed(error: impl Into<Error>) -> Self {
        Self::Failed(error.into())
    }

    /// A row that never will.
    pub fn poison(error: impl Into<Error>) -> Self {
        Self::Poison(error.into())
    }

    /// What is needed can't be reached.
    pub fn away(error: impl Into<Error>) -> Self {
        Self::Away(error.into())
    }
}

/// An error of a database that is away, or in which others were in the way, blames no row; any other
/// one does.
impl<E: std::error::Error + Send + Sync + 'static> From<E> for Failure {
    fn from(error: E) -> Self {
        let first: &(dyn std::error::Error + 'static) = &error;
        let mut levels = std::iter::successors(Some(first), |error| error.source());
        if levels.any(is_nobodys_fault) {
            Self::away(error)
        } else {
            Self::failed(error)
        }
    }
}

fn is_nobodys_fault(error: &(dyn std::error::Error + 'static)) -> bool {
    let database = error.downcast_ref::<sqlx::Error>();
    database.is_some_and(|error| is_away(error) || is_passing(error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("the index could not be written")]
    struct Outer(#[source] sqlx::Error);

    #[test]
    fn a_database_that_is_away_blames_no_row() {
        let failure = Failure::from(Outer(sqlx::Error::PoolTimedOut));
        assert!(matches!(failure, Failure::Away(_)));
        let failure = Failure::from(Outer(sqlx::Error::RowNotFound));
        assert!(matches!(failure, Failure::Failed(_)));
    }
}
