//! The library against real servers.

#![expect(clippy::unwrap_used, reason = "helpers of tests may fail the test")]

mod migrate;
mod retry;
mod worker;
