//! The protocol, without I/O: events, filters and messages as NIP-01 and its companions write them.

mod event;
mod filter;
mod hex;
mod kind;
mod message;
mod report;
mod sign;
mod tags;

pub(crate) use event::{Event, Fault, Parsed};
pub(crate) use filter::{Filter, Limits as FilterLimits, TagFilter, searched};
pub(crate) use hex::{Id, Key};
pub(crate) use kind::{AUTH, Class, DELETION, class, is_repost};
pub(crate) use message::{Answer, Asked, Count, NAME_LIMIT, Prefix, Refusal, asked};
pub(crate) use report::{NIP_56, REPORT, REPORTS, Report, Target, word};
pub(crate) use sign::Signer;
pub(crate) use tags::{Coordinate, TagKey, short_hash};
