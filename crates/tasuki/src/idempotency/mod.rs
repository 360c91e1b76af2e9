//! Idempotency keys: a request that is sent twice is answered twice and done once.
//!
//! A caller names its request by a key of its own. [`Keys::once`] opens a transaction, takes
//! the key's lock and looks for an answer: the first request does the work and stores its
//! answer in the same transaction; every repetition within the time to live gets that answer,
//! byte for byte; another request under the same key is refused.
//!
//! ```no_run
//! # use tasuki::idempotency::{self, Answer, Keys, Reply, Request, RequestHash};
//! # async fn grant(_: &mut sqlx::PgConnection) -> Result<String, idempotency::Error> { Ok(String::new()) }
//! # async fn example(pool: sqlx::PgPool, keys: Keys) -> Result<(), idempotency::Error> {
//! let hash = RequestHash::of("POST", "/v1/grants", br#"{"sku": "sword"}"#);
//! let request = Request::new("shop", "order-17", hash)?;
//! let outcome = keys
//!     .once(&pool, &request, async |tx| {
//!         let body = grant(tx).await?;
//!         Ok::<_, idempotency::Error>(Answer::Decided(Reply::new(200, body)))
//!     })
//!     .await?;
//! # Ok(()) }
//! ```
//!
//! Invariants: the stored answer commits with the effect or not at all; keys of two callers
//! never meet; an answer that is nobody's decision ([`Answer::Undecided`], an error, a panic,
//! a hang-up) is rolled back with everything the work wrote, and the key stays free.
//!
//! Twins are serialised twice: in this process before they take a connection, so that a rush
//! of them does not eat the pool, and in the database by an advisory lock. Two keys whose
//! lock numbers collide wait for each other and never mix: the table's primary key decides.
//!
//! [`Keys::open_all`] and [`Keys::store_all`] are the same for many requests in one
//! transaction (see [`batch`](crate::batch)); [`Keys::begin_all`] opens those of them that
//! have nobody to wait for. With the feature `axum`, `layer` makes any axum service idempotent.
//!
//! Not here: keeping an answer after its time to live, and effects outside this database.

mod answer;
mod flight;
mod hash;
mod keys;
#[cfg(feature = "axum")]
pub mod layer;
mod request;
mod store;
mod tally;

pub use answer::{Answer, Opened, Outcome, Reply};
pub use hash::RequestHash;
pub use keys::{Keys, try_lock_all};
#[cfg(feature = "axum")]
pub use layer::{Layer, Tx};
pub use request::{LockNumber, Request};

/// Why a request was not done.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The key is empty, too long, or has other than visible ASCII characters.
    #[error("an idempotency key has 1 to 255 visible ASCII characters")]
    InvalidKey,
    /// The caller's name can't be stored.
    #[error("a caller is named by 1 to 512 bytes, none of them a control character")]
    InvalidCaller,
    /// The key was used for another request.
    #[error("the idempotency key was used for another request")]
    Conflict,
    /// A request with this key still runs.
    #[error("a request with this idempotency key is still running")]
    InProgress,
    /// The key is free, and something else that the request needs is locked. It was not done.
    #[error("something that the request needs is locked by somebody else")]
    Held,
    /// The answer can't be stored as it is.
    #[error("the answer can't be stored: {0}")]
    InvalidAnswer(&'static str),
    /// Somebody wrote under the key without holding its lock.
    #[error("an answer appeared under a key that was locked and free")]
    Broken,
    /// The database refused, or can't be reached. The request may have been done: repeat it.
    #[error("idempotency store failed")]
    Store(#[from] sqlx::Error),
}
