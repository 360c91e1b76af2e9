//! The library against real servers.

#![expect(clippy::unwrap_used, reason = "helpers of tests may fail the test")]

mod admin;
mod barrier;
mod batch;
mod bus;
mod choreography;
mod compensate;
mod counted;
mod dlq;
mod dropped;
mod examples;
mod graveyard;
mod heard;
mod idempotency;
mod idempotency_layer;
mod idempotency_set;
mod inbox;
mod jobs;
mod last_published;
mod lease;
mod locked;
mod migrate;
mod outbox;
mod pooler;
mod retry;
mod saga;
mod seqlog;
mod together;
mod twopc;
mod upkeep;
mod worker;
