//! What became of events, for who checks that nothing of them is missing or double.

use std::collections::HashMap;

use sqlx::PgPool;
use uuid::Uuid;

use crate::store;
use crate::store::verify::Known;

/// What is known of an event.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Told {
    /// The event.
    pub event_id: Uuid,
    /// Consumers that have processed it.
    pub processed: i64,
    /// The notifications that were made of it. Not known of an event that was taken in before
    /// that was written down.
    pub made: Option<i64>,
    /// Its notifications that wait or are being delivered.
    pub waiting: i64,
    /// Those that were sent.
    pub sent: i64,
    /// Those that are dead.
    pub failed: i64,
    /// Those that are gone because somebody discarded them, or because they were withdrawn. Only
    /// looked for where something is missing without them.
    pub given_up: i64,
    /// Open dead letters of the dead ones: as many, or something is wrong.
    pub letters: i64,
    /// The most that one recipient has over one channel: at most one, or something is wrong.
    pub most_each: i64,
}

impl Told {
    /// Whether there was to be more than there is.
    #[must_use]
    pub fn is_short(&self) -> bool {
        self.made
            .is_some_and(|made| made > self.there() + self.given_up)
    }

    /// Whether there is more than there was to be.
    #[must_use]
    pub fn is_double(&self) -> bool {
        self.most_each > 1 || self.made.is_some_and(|made| made < self.there())
    }

    fn there(&self) -> i64 {
        self.waiting + self.sent + self.failed
    }
}

impl From<Known> for Told {
    fn from(known: Known) -> Self {
        Self {
            event_id: known.event_id,
            processed: known.processed,
            made: known.made,
            waiting: known.waiting,
            sent: known.sent,
            failed: known.failed,
            given_up: 0,
            letters: known.letters,
            most_each: known.most_each,
        }
    }
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

    /// What is known of these events, in no order.
    ///
    /// # Errors
    /// When the database can't be asked.
    pub async fn told(&self, events: &[Uuid]) -> sqlx::Result<Vec<Told>> {
        let mut connection = self.pool.acquire().await?;
        let known = store::verify::known(&mut connection, events).await?;
        let mut told: Vec<_> = known.into_iter().map(Told::from).collect();
        let short = told.iter().filter(|it| it.is_short());
        let short: Vec<Uuid> = short.map(|it| it.event_id).collect();
        if !short.is_empty() {
            let given_up = store::verify::given_up(&mut connection, &short).await?;
            let given_up: HashMap<Uuid, i64> = given_up.into_iter().collect();
            for it in &mut told {
                it.given_up = given_up.get(&it.event_id).copied().unwrap_or(0);
            }
        }
        Ok(told)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(made: Option<i64>, sent: i64, failed: i64, given_up: i64) -> Told {
        Told {
            event_id: Uuid::nil(),
            processed: 1,
            made,
            waiting: 0,
            sent,
            failed,
            given_up,
            letters: failed,
            most_each: 1,
        }
    }

    #[test]
    fn what_is_missing_is_what_was_made_and_is_neither_there_nor_given_up() {
        for (made, sent, failed, given_up, short, double) in [
            (Some(0), 0, 0, 0, false, false),
            (Some(1), 0, 0, 0, true, false),
            (Some(2), 1, 0, 0, true, false),
            (Some(2), 1, 1, 0, false, false),
            (Some(2), 1, 0, 1, false, false),
            (Some(1), 1, 1, 0, false, true),
            // Nobody wrote down how many: nothing can be compared.
            (None, 0, 0, 0, false, false),
            (None, 3, 0, 0, false, false),
        ] {
            let told = told(made, sent, failed, given_up);
            assert_eq!(
                (told.is_short(), told.is_double()),
                (short, double),
                "{told:?}"
            );
        }
    }
}
