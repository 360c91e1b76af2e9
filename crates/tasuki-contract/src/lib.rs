//! The vocabulary that crosses a process: ids, names, HTTP bodies, events, the error body.
//!
//! Everything here is plain data. There is no I/O, no framework and no rule: a service turns
//! these types into its own on the way in, and its own into these on the way out.

#![warn(missing_docs)]

pub mod entitlement;
pub mod error;
pub mod events;
pub mod ids;
pub mod names;
pub mod notification;
pub mod shop;
pub mod status;
pub mod streams;
pub mod timestamp;
