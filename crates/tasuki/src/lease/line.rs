//! A connection for one statement, or for one transaction where a pooler is in between.

use std::io;
use std::time::Duration;

use sqlx::pool::PoolConnection;
use sqlx::{PgConnection, PgPool, Postgres, Transaction};
use tokio::time::timeout;

use super::Route;
use crate::transaction::{self, Limits};

/// An open line to the database.
pub(crate) enum Line {
    Direct(PoolConnection<Postgres>),
    Pooler(Transaction<'static, Postgres>),
}

impl Line {
    pub(crate) async fn open(pool: &PgPool, route: Route) -> sqlx::Result<Self> {
        Ok(match route {
            Route::Direct => Self::Direct(pool.acquire().await?),
            Route::Pooler => Self::Pooler(transaction::begin(pool).await?),
        })
    }

    /// One on which nobody waits for a lock for longer than `limit`. A direct one has that from its pool
    /// ([`OwnPool::hurried`](super::OwnPool::hurried)).
    pub(crate) async fn hurried(
        pool: &PgPool,
        route: Route,
        limit: Duration,
    ) -> sqlx::Result<Self> {
        match route {
            Route::Direct => Self::open(pool, route).await,
            Route::Pooler => {
                let limit = format!("SET LOCAL lock_timeout = {}", limit.as_millis());
                let begun = transaction::begin_with(pool, &limit).await?;
                Ok(Self::Pooler(begun))
            }
        }
    }

    /// One on which the server gives up what takes longer than `limits` say. A direct one has that from
    /// its pool ([`OwnPool::limited`](super::OwnPool::limited)).
    pub(crate) async fn limited(
        pool: &PgPool,
        route: Route,
        limits: &Limits,
    ) -> sqlx::Result<Self> {
        match route {
            Route::Direct => Self::open(pool, route).await,
            Route::Pooler => Ok(Self::Pooler(transaction::begin_within(pool, limits).await?)),
        }
    }

    pub(crate) fn connection(&mut self) -> &mut PgConnection {
        match self {
            Self::Direct(connection) => connection,
            Self::Pooler(transaction) => transaction,
        }
    }

    /// Closes the connection instead of giving it back. Whoever got it next would wait for the
    /// answer that we have given up waiting for.
    pub(crate) fn hang_up(&mut self) {
        if let Self::Direct(connection) = self {
            connection.close_on_drop();
        }
    }

    /// Makes what was done last. A line that is dropped instead undoes it, or leaves it done,
    /// as a lost connection would.
    pub(crate) async fn close(self) -> sqlx::Result<()> {
        match self {
            Self::Direct(_) => Ok(()),
            Self::Pooler(transaction) => transaction::commit(transaction).await,
        }
    }
}

/// A line that is hung up if it is dropped in the middle of something.
pub(crate) struct HungUp(Option<Line>);

impl HungUp {
    pub(crate) const fn unless_closed(line: Line) -> Self {
        Self(Some(line))
    }

    #[expect(
        clippy::expect_used,
        reason = "only `close` takes the line, and takes this with it"
    )]
    pub(crate) fn connection(&mut self) -> &mut PgConnection {
        self.0.as_mut().expect("it is open").connection()
    }

    pub(crate) async fn close(mut self) -> sqlx::Result<()> {
        match self.0.take() {
            Some(line) => line.close().await,
            None => Ok(()),
        }
    }
}

impl Drop for HungUp {
    fn drop(&mut self) {
        if let Some(line) = &mut self.0 {
            line.hang_up();
        }
    }
}

/// Waits for the answer to a statement, but not for ever: a connection may have died unseen, and
/// the next one may be well.
pub(crate) async fn within<T>(
    limit: Duration,
    statement: impl Future<Output = sqlx::Result<T>>,
) -> sqlx::Result<T> {
    let late = || {
        io::Error::new(
            io::ErrorKind::TimedOut,
            "no answer from the database in time",
        )
    };
    let answer = timeout(limit, statement).await;
    answer.unwrap_or_else(|_| Err(sqlx::Error::Io(late())))
}
