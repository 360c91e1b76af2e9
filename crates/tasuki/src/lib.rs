//! Transactional primitives on PostgreSQL and NATS JetStream.
//!
//! | problem | module |
//! | --- | --- |
//! | background work that starts, paces itself, survives panics and stops in order | [`worker`] |
//! | a crate's tables in whatever schema its user names | [`mod@migrate`], [`Schema`] |
//! | ids that can't be swapped, and sort by time | [`typed_ids!`] |
//! | time that a test can hold still | [`Clock`] |
//!
//! What this crate does not do: it knows no service, opens no listener, reads no
//! environment variable and installs no global.

#![warn(missing_docs)]

pub mod admin;
pub mod batch;
pub mod bus;
pub mod dlq;
pub mod idempotency;
pub mod inbox;
pub mod jobs;
pub mod lease;
pub mod migrate;
pub mod outbox;
pub mod retry;
pub mod testing;
pub mod upkeep;
pub mod worker;

mod clock;
mod ids;
mod schema;
mod transaction;

pub use clock::Clock;
#[doc(hidden)]
pub use ids::uuid_v7;
#[doc(inline)]
pub use migrate::install as migrate;
pub use schema::{InvalidSchema, Schema};

/// What the macros of this crate expand to. Not an API.
#[doc(hidden)]
pub mod __private {
    pub use {serde, sqlx, uuid};
}
