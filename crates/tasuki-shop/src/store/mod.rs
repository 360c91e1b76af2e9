//! The SQL of the shop.

use std::time::Duration;

use sqlx::postgres::types::PgInterval;

pub(crate) mod catalogue;
pub(crate) mod notices;
pub(crate) mod orders;
pub(crate) mod payments;
pub(crate) mod provider;
pub(crate) mod reconcile;
pub(crate) mod stock;
pub(crate) mod told;

/// A row that says what this release does not know.
pub(crate) fn unknown(what: &'static str) -> sqlx::Error {
    sqlx::Error::Decode(format!("{what} is none that is known here").into())
}

/// A span of time, as PostgreSQL takes it.
fn interval(time: Duration) -> PgInterval {
    PgInterval {
        months: 0,
        days: 0,
        microseconds: i64::try_from(time.as_micros()).unwrap_or(i64::MAX),
    }
}
