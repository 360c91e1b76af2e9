//! What was told of orders, for who checks that all of it has arrived.
//!
//! Every order that has ended has told how, and what it told is in its story, in the transaction of
//! the change. Each of these events must be in the outbox exactly once, waiting or published.
//! Published events are kept for a while only: what was told before has none any more.

use sqlx::PgPool;
use time::OffsetDateTime;
use uuid::Uuid;

use crate::store::told as store;

/// An event of an order that has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Told {
    /// The event.
    pub event_id: Uuid,
    /// When it was told.
    pub told_at: OffsetDateTime,
    /// What happened, such as `OrderCompleted`.
    pub kind: String,
    /// To which order.
    pub order_id: String,
    /// It waits to be published.
    pub waiting: bool,
    /// It can't be published, and waits for a person.
    pub dead: bool,
    /// Its rows in the outbox, published or not: one, or something is wrong.
    pub events: i64,
}

/// An order that has ended, and told nobody how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Silent {
    /// The order.
    pub order_id: Uuid,
    /// When it ended.
    pub ended_at: OffsetDateTime,
}

/// Reads what was told.
#[derive(Clone, Debug)]
pub struct Ledger {
    pool: PgPool,
}

impl Ledger {
    /// What is in this database.
    #[must_use]
    pub fn new(pool: PgPool) -> Self {
        Self { pool }
    }

    /// What was told, at `kept_from` or later, of the orders that ended from `from` on, before `until`.
    ///
    /// # Errors
    /// When the database can't be asked.
    pub async fn told(
        &self,
        from: OffsetDateTime,
        until: OffsetDateTime,
        kept_from: OffsetDateTime,
    ) -> sqlx::Result<Vec<Told>> {
        let mut connection = self.pool.acquire().await?;
        let told = store::told(&mut connection, from, until, kept_from).await?;
        let told = told.into_iter().map(|it| Told {
            event_id: it.event_id,
            told_at: it.recorded_at,
            kind: it.event_type,
            order_id: it.order_id,
            waiting: it.waiting > 0,
            dead: it.dead > 0,
            events: it.waiting + it.dead + it.published,
        });
        Ok(told.collect())
    }

    /// The orders that ended from `from` on, before `until`, and told nobody how.
    ///
    /// # Errors
    /// When the database can't be asked.
    pub async fn silent(
        &self,
        from: OffsetDateTime,
        until: OffsetDateTime,
    ) -> sqlx::Result<Vec<Silent>> {
        let mut connection = self.pool.acquire().await?;
        let silent = store::silent(&mut connection, from, until)
            .await?
            .into_iter();
        Ok(silent
            .map(|(order_id, ended_at)| Silent { order_id, ended_at })
            .collect())
    }
}
