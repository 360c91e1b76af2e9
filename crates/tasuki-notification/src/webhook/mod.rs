//! Webhooks on their way out: signed, to public addresses only, one careful attempt at a time.
//!
//! [`send`] makes one attempt and says how it ended; [`sign`] makes what the receiver checks;
//! [`address`] keeps customers' URLs away from our own network.
//!
//! Invariant: a request leaves only with a signature, and only to an address that was judged for
//! this very connection.
//!
//! Not here: which deliveries are due, when a failed one is tried again, when an endpoint is left
//! alone, and where attempts are written down. This module knows no database and no configuration.

pub(crate) mod address;
pub(crate) mod send;
pub(crate) mod sign;
