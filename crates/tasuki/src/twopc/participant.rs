//! Who takes part: databases, and whatever else can prepare.

use std::fmt;
use std::future::Future;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use sqlx::PgPool;

use super::{Error, TransactionId, gid};
use crate::lease::OwnPool;
use crate::worker;

/// Connections that a process opens beside a participant's pool, to tell decisions over.
const TELLERS: u32 = 4;

/// A PostgreSQL database that takes part. Cheap to clone.
///
/// Decisions are told over up to four connections of their own, with the options of the pool: if
/// every connection of the pool waits for a lock that a prepared transaction holds, there must be
/// another one to end it. The role of the pool must be the same in every process, because only who
/// prepared a transaction, or a superuser, may finish it.
#[derive(Clone, Debug)]
pub struct Database(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    name: String,
    pool: PgPool,
    tellers: OwnPool,
}

impl Database {
    /// The database behind `pool`, called `name`: 1 to 64 ASCII letters, digits, `_`, `-` or `.`.
    /// The log knows participants by their names: don't rename one while transactions are open.
    ///
    /// # Errors
    /// When the name is another.
    pub fn new(name: &str, pool: PgPool) -> Result<Self, Error> {
        checked(name)?;
        Ok(Self(Arc::new(Inner {
            name: name.to_owned(),
            tellers: OwnPool::beside(pool.clone(), TELLERS),
            pool,
        })))
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Where its transactions begin.
    pub(super) fn pool(&self) -> &PgPool {
        &self.0.pool
    }

    /// Where it is told how they end.
    pub(super) fn tellers(&self) -> &PgPool {
        self.0.tellers.get()
    }
}

/// What takes part and is not a PostgreSQL database: a service with a `prepare` of its own, a file
/// that is renamed at the end.
///
/// What it must keep, or nothing here holds:
/// - After `prepare` has returned `Ok` it can commit and can abort, also after it was restarted,
///   until it is told which.
/// - `commit` and `abort` may come more than once, from several processes at a time, and then
///   return `Ok` again. They are called until they do.
/// - `abort` of a transaction that it does not know is `Ok`, and a `prepare` of that transaction
///   that comes later fails: it may have been overtaken.
/// - What was never prepared it forgets by itself: nobody tells it if the process dies before.
pub trait Participant: Send + Sync + 'static {
    /// Its name, as for a [`Database`].
    fn name(&self) -> &str;

    /// Makes sure that it can commit whatever happens. An error, or no answer in time, aborts the
    /// transaction.
    fn prepare(&self, id: TransactionId) -> impl Future<Output = Result<(), worker::Error>> + Send;

    /// Commits what was prepared.
    fn commit(&self, id: TransactionId) -> impl Future<Output = Result<(), worker::Error>> + Send;

    /// Gives up what was, or may have been, prepared.
    fn abort(&self, id: TransactionId) -> impl Future<Output = Result<(), worker::Error>> + Send;
}

/// A [`Participant`] of whatever type.
pub(super) trait Custom: Send + Sync {
    fn prepare(&self, id: TransactionId) -> BoxFuture<'_, Result<(), worker::Error>>;
    fn commit(&self, id: TransactionId) -> BoxFuture<'_, Result<(), worker::Error>>;
    fn abort(&self, id: TransactionId) -> BoxFuture<'_, Result<(), worker::Error>>;
}

impl<P: Participant> Custom for P {
    fn prepare(&self, id: TransactionId) -> BoxFuture<'_, Result<(), worker::Error>> {
        Box::pin(Participant::prepare(self, id))
    }

    fn commit(&self, id: TransactionId) -> BoxFuture<'_, Result<(), worker::Error>> {
        Box::pin(Participant::commit(self, id))
    }

    fn abort(&self, id: TransactionId) -> BoxFuture<'_, Result<(), worker::Error>> {
        Box::pin(Participant::abort(self, id))
    }
}

/// Somebody whom a coordinator knows.
#[derive(Clone)]
pub(super) enum Member {
    Database(Database),
    Custom(Arc<dyn Custom>),
}

impl fmt::Debug for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Database(database) => database.fmt(f),
            Self::Custom(_) => f.write_str("Custom"),
        }
    }
}

/// Refuses what is no name of a participant.
pub(super) fn checked(name: &str) -> Result<(), Error> {
    if gid::is_name(name) {
        return Ok(());
    }
    Err(Error::Name {
        name: name.to_owned(),
    })
}
