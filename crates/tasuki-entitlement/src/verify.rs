//! What was answered, for who checks that nothing of it is missing.
//!
//! The audit has every accepted change; each must have exactly one event in the outbox, waiting or
//! published. Published events are kept for a while only: changes older than that have none any
//! more.

use sqlx::PgPool;
use time::OffsetDateTime;
use uuid::Uuid;

use crate::store;

/// Pages that are read at once when all entitlements are: 64 MB, a second's work at most.
const PAGES: i64 = 8192;

/// A change that was answered.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Change {
    /// The event that tells of it.
    pub event_id: Uuid,
    /// When it happened.
    pub occurred_at: OffsetDateTime,
    /// Whose.
    pub user_id: String,
    /// What.
    pub stock_keeping_unit: String,
    /// The version that it made.
    pub version: i64,
    /// Its event waits to be published.
    pub waiting: bool,
    /// Its event can't be published, and waits for a person.
    pub dead: bool,
    /// Rows of its event in the outbox, published or not: one, or something is wrong.
    pub events: i64,
}

/// An entitlement whose versions have a gap or a repeat.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Torn {
    /// Whose.
    pub user_id: String,
    /// What.
    pub stock_keeping_unit: String,
    /// Its version.
    pub version: i64,
    /// How many changes the audit has of it.
    pub audited: i64,
}

/// Reads what was answered.
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

    /// The changes from `from` on, before `until`.
    ///
    /// # Errors
    /// When the database can't be asked.
    pub async fn changes(
        &self,
        from: OffsetDateTime,
        until: OffsetDateTime,
    ) -> sqlx::Result<Vec<Change>> {
        let mut connection = self.pool.acquire().await?;
        let audited = store::audited(&mut connection, from, until).await?;
        let changes = audited.into_iter().map(|it| Change {
            event_id: it.audit_id,
            occurred_at: it.occurred_at,
            user_id: it.user_id,
            stock_keeping_unit: it.stock_keeping_unit,
            version: it.version,
            waiting: it.waiting > 0,
            dead: it.dead > 0,
            events: it.waiting + it.dead + it.published,
        });
        Ok(changes.collect())
    }

    /// Entitlements that changed from `from` on and whose versions have a gap or a repeat, at most
    /// `limit`. One that changes while they are read may be missed.
    ///
    /// No index says when an entitlement changed, because every change would have to write it: the
    /// table is read page by page, so that no statement takes long and none holds up a vacuum.
    ///
    /// # Errors
    /// When the database can't be asked.
    pub async fn torn(&self, from: OffsetDateTime, limit: u32) -> sqlx::Result<Vec<Torn>> {
        let mut connection = self.pool.acquire().await?;
        let end = store::pages(&mut connection).await?;
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        let (mut torn, mut first) = (Vec::new(), 0);
        while first < end && torn.len() < limit {
            let left = i64::try_from(limit - torn.len()).unwrap_or(i64::MAX);
            let pages = first..first + PAGES;
            torn.extend(store::torn(&mut connection, from, pages, left).await?);
            first += PAGES;
        }
        let torn = torn.into_iter();
        Ok(torn
            .map(|(user_id, stock_keeping_unit, version, audited)| Torn {
                user_id,
                stock_keeping_unit,
                version,
                audited,
            })
            .collect())
    }
}
