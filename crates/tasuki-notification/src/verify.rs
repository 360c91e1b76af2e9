//! What became of events, for who checks that nothing of them is missing or double.

use std::collections::HashSet;

use sqlx::PgPool;
use uuid::Uuid;

use crate::store;

/// What is known of an event.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Told {
    /// The event.
    pub event_id: Uuid,
    /// Consumers that have processed it.
    pub processed: i64,
    /// Its notifications that wait or are being delivered.
    pub waiting: i64,
    /// Those that were sent.
    pub sent: i64,
    /// Those that are dead.
    pub failed: i64,
    /// Open dead letters of those: as many, or something is wrong.
    pub letters: i64,
    /// The most that one recipient has over one channel: at most one, or something is wrong.
    pub most_each: i64,
    /// Somebody it names has wishes of their own, and may have asked not to be told.
    pub muted: bool,
}

/// Reads what became of events.
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

    /// What is known of these events and the users they name, in no order.
    ///
    /// # Errors
    /// When the database can't be asked.
    pub async fn told(&self, events: &[(Uuid, String)]) -> sqlx::Result<Vec<Told>> {
        let mut connection = self.pool.acquire().await?;
        let ids: Vec<Uuid> = events.iter().map(|(id, _)| *id).collect();
        let known = store::verify::known(&mut connection, &ids).await?;
        let users: Vec<String> = events.iter().map(|(_, user)| user.clone()).collect();
        let wishers = store::verify::wishers(&mut connection, &users).await?;
        let wishers: HashSet<String> = wishers.into_iter().collect();
        let wishes = events.iter().filter(|(_, user)| wishers.contains(user));
        let wishes: HashSet<Uuid> = wishes.map(|(id, _)| *id).collect();
        let told = known.into_iter().map(|it| Told {
            event_id: it.event_id,
            processed: it.processed,
            waiting: it.waiting,
            sent: it.sent,
            failed: it.failed,
            letters: it.letters,
            most_each: it.most_each,
            muted: wishes.contains(&it.event_id),
        });
        Ok(told.collect())
    }
}
