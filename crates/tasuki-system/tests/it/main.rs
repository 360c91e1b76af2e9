//! The system service against real servers.

#![expect(clippy::unwrap_used, reason = "helpers of tests may fail the test")]

mod status;
