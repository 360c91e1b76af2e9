//! What tests stand on: real servers, a database per test, a running service per test, and
//! waiting for conditions instead of times.
//!
//! Tests share one private stack, started by `tasuki-stack exec` around the test runner. A
//! test that is run alone, without it, starts a stack of its own.

#[cfg(feature = "host")]
mod environment;
#[cfg(feature = "host")]
mod issuer;
mod servers;
mod template;
mod wait;

#[cfg(feature = "host")]
pub use environment::{Reply, TestEnv, TestHost};
#[cfg(feature = "host")]
pub use issuer::Issuer;
pub use servers::{Servers, breakable};
pub use template::TestDb;
pub use wait::{eventually, eventually_within};
