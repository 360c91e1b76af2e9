//! The payment provider, as far as the shop is concerned.
//!
//! What holds of every provider behind [`Gateway`]: a key names one charge for ever. Asked again, it
//! answers what it answered before; a refund is by the key of its charge, so that what nobody heard
//! of can be undone too; and a charge that was undone before it came is refused.

mod simulated;

use std::fmt;

use futures_util::future::BoxFuture;

use crate::domain::Money;
pub(crate) use simulated::Simulated;

/// Somebody who takes money.
pub(crate) trait Gateway: fmt::Debug + Send + Sync + 'static {
    /// Takes `money`, once per key.
    fn charge<'a>(
        &'a self,
        key: &'a str,
        money: &'a Money,
        method: &'a str,
    ) -> BoxFuture<'a, Result<Charged, ChargeError>>;

    /// Gives back all that was taken under `key`, or sees to it that nothing ever is.
    fn refund<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<Refunded, RefundError>>;
}

/// Money that was taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Charged {
    /// What the provider calls it.
    pub(crate) reference: String,
}

/// Why no money was taken, as far as is known.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ChargeError {
    /// It was not, and never will be.
    #[error("declined: {0}")]
    Declined(String),
    /// The provider has this key already, and says no more: what it took is under the key.
    #[error("the provider has a charge {reference} under this key already")]
    Duplicate { reference: String },
    /// It may have been.
    #[error("the provider did not answer: {0}")]
    Unanswered(String),
}

/// What a refund came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refunded {
    /// The money is back.
    Money,
    /// There was none, and there will be none.
    Nothing,
}

/// Why the money is not back.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum RefundError {
    /// The provider refuses; another attempt may help.
    #[error("the provider refuses to refund {0}")]
    Refused(String),
    /// It may be back.
    #[error("the provider did not answer: {0}")]
    Unanswered(String),
}
