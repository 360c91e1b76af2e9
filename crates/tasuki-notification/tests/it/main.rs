//! Notification against real servers.

#![expect(clippy::unwrap_used, reason = "helpers of tests may fail the test")]

mod aside;
mod away;
mod callers;
mod delivery;
mod gauges;
mod inbox;
mod intake;
mod logged;
mod retention;
mod stream;
mod support;
mod verify;
mod webhooks;
