//! Money and goods, compared: `charged but neither granted nor refunded` and its siblings.
//!
//! Orders that are on their way owe something to somebody by their nature, so only those that have
//! ended are judged. At rest every count is zero; what is found stays until a person has put it right.

use sqlx::PgPool;
use tasuki_contract::ids::OrderId;
use tasuki_contract::shop as wire;

use crate::store::reconcile;

/// What is looked for.
pub const CHECKS: [&str; 9] = [
    "charged_but_neither_granted_nor_refunded",
    "granted_but_not_paid",
    "undone_but_still_charged",
    "charged_another_amount",
    "sold_but_not_taken_from_stock",
    "undone_but_still_reserved",
    "stock_differs_from_its_moves",
    "reserved_differs_from_reservations",
    "provider_differs_from_payments",
];

/// How many of each kind are shown.
const SHOWN: i64 = 100;

/// Compares.
#[derive(Clone, Debug)]
pub struct Reconciler {
    pool: PgPool,
}

impl Reconciler {
    /// What is in this database.
    #[must_use]
    pub fn new(pool: PgPool) -> Self {
        Self { pool }
    }

    /// What does not match, now.
    ///
    /// # Errors
    /// When the database can't be asked.
    pub async fn look(&self) -> sqlx::Result<wire::Reconciliation> {
        let mut connection = self.pool.acquire().await?;
        let wrong = reconcile::wrong(&mut connection, SHOWN).await?;
        let unfinished = reconcile::unfinished(&mut connection).await?;
        let many = |check: &str| {
            let first = wrong.iter().find(|wrong| wrong.kind == check);
            first.map_or(0, |wrong| wrong.many)
        };
        let checks = CHECKS.map(|check| wire::CheckCount {
            check: check.to_owned(),
            count: many(check),
        });
        let total = checks.iter().map(|check| check.count).sum();
        let found = wrong.iter().map(|wrong| wire::Mismatch {
            check: wrong.kind.clone(),
            order_id: wrong.order_id.map(OrderId::from),
            subject: wrong.subject.clone(),
        });
        Ok(wire::Reconciliation {
            total,
            found: found.collect(),
            checks: checks.into(),
            unfinished,
        })
    }
}
