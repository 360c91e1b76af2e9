//! A connection for one statement, or for one transaction where a pooler is in between.

use sqlx::pool::PoolConnection;
use sqlx::{PgConnection, PgPool, Postgres, Transaction};

use super::Route;
use crate::transaction;

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

    pub(crate) fn connection(&mut self) -> &mut PgConnection {
        match self {
            Self::Direct(connection) => connection,
            Self::Pooler(transaction) => transaction,
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
