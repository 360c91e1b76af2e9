//! The SQL of the shop.

pub(crate) mod catalogue;
pub(crate) mod notices;
pub(crate) mod orders;
pub(crate) mod payments;
pub(crate) mod provider;
pub(crate) mod reconcile;
pub(crate) mod stock;

/// A row that says what this release does not know.
pub(crate) fn unknown(what: &'static str) -> sqlx::Error {
    sqlx::Error::Decode(format!("{what} is none that is known here").into())
}
