//! What the tests share: a folder with the executable pointed at it, processes that never
//! outlive the test, what `tasuki up` wrote, and HTTP.

mod env;
mod process;
mod world;

pub(crate) use env::Env;
pub(crate) use process::{Answer, Process, holders, is_alive, signal};
pub(crate) use world::{Up, World};
