//! What tests stand on: real servers, a database per test, a running service per test, and
//! waiting for conditions instead of times.
//!
//! Tests share one private stack, started by `tasuki-stack exec` around the test runner. A
//! test that is run alone, without it, starts a stack of its own.

#[cfg(feature = "host")]
mod environment;
mod servers;
mod template;
mod wait;

#[cfg(feature = "host")]
pub use environment::{Reply, TestEnv, TestHost};
pub use servers::{Servers, breakable};
pub use template::TestDb;
pub use wait::{eventually, eventually_within};
