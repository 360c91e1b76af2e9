//! The shop against real servers, beside the real entitlement service.

#![expect(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    reason = "helpers of tests may fail the test"
)]

mod books;
mod callers;
mod cancel;
mod errands;
mod flows;
mod grants;
mod http;
mod inventory;
mod operate;
mod payments;
mod support;
mod trace;
mod transfer;
mod unread;
mod upgrade;
