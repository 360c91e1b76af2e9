//! Entitlement against real servers.

#![expect(clippy::unwrap_used, reason = "helpers of tests may fail the test")]

mod away;
mod callers;
mod concurrency;
mod held;
mod hot;
mod idempotency;
mod lifetime;
mod refusals;
mod retention;
mod support;
mod walk;
