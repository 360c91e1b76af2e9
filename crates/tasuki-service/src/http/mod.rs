//! HTTP as every service speaks it.
//!
//! Whatever happens, an answer that is not a success has the body `{code, message}`: errors
//! of handlers ([`ApiError`]), of extractors ([`Json`], [`Path`], [`Query`], [`IdempotencyKey`]), of the router
//! (404, 405), of limits and panics (`envelope`), and of the protocol itself
//! (`protocol`). Every answer to a request carries the request id.
//!
//! Connections are bounded in number, in the size and time of a request's head and body, in
//! the time to its answer, and in the time that a client may leave it unread (`server`).

mod docs;
mod envelope;
mod error;
mod extract;
mod health;
mod key;
mod protocol;
mod proxies;
mod server;
mod shape;

pub use docs::described;
pub use envelope::Envelope;
pub use error::{ApiError, answer};
pub use extract::{Json, NoQuery, Path, Peer, Query};
pub use health::{Check, Health};
pub use key::IdempotencyKey;
pub use server::serve;
