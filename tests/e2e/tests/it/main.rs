//! What the `tasuki` executable promises to the person at the terminal and to scripts.
//!
//! Every test drives the built executable in a folder of its own, with servers of its own,
//! and sees only what anybody can see: exit codes, output, files, HTTP, processes.

mod clumsy;
mod configuration;
mod credentials;
mod dead_letters;
mod help;
mod keeping;
mod killing;
mod relaying;
mod repairing;
mod sagas;
mod serving;
mod shopping;
mod stopping;
mod support;
mod telemetry;
mod two_phase;
mod up;
mod verifying;
mod walk;
