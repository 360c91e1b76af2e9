//! The promises of the private stack, each broken on purpose where that is possible.

mod cluster;
mod exec;
mod fault;
mod orphan;
mod proxy;
mod settings;
mod stack;
mod standby;
mod support;
mod user;
