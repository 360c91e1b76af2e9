//! The community node against real servers, and clients of others.

#![expect(
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "helpers of tests may fail the test"
)]

mod abuse;
mod auth;
mod bounds;
mod clients;
mod find;
mod frames;
mod handover;
mod info;
mod log;
mod moderation;
mod nips;
mod pressure;
mod publish;
mod sdk;
mod search;
mod shares;
mod support;
mod topics;
mod trending;
mod trust;
mod trust_assertions;
mod upkeep;
mod versions;
