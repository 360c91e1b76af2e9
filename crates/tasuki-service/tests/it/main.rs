//! What the services share, against real servers.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "helpers of tests may fail the test"
)]

mod auth;
mod config;
mod database;
mod frame;
mod limits;
mod malformed;
mod stop;
