//! What is promised, while what it depends on is killed, paused, cut off or lost.

#![expect(clippy::unwrap_used, reason = "helpers of tests may fail the test")]

mod broker;
mod clock;
mod crash;
mod database;
mod platform;
mod restart;
mod saga;
mod seqlog;
mod site;
mod twopc;
