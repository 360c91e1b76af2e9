//! Entitlement against real servers.

#![expect(clippy::unwrap_used, reason = "helpers of tests may fail the test")]

mod away;
mod concurrency;
mod idempotency;
mod lifetime;
mod refusals;
mod support;
mod walk;
