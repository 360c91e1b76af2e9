//! Trust: the consumer `trust-v1` follows the log and keeps who is reported and who talks with whom; scores
//! are made of that (`score`), and what changes is published as events that the node signs (NIP-85).
//!
//! Promised: each event counts once; a report counts whatever becomes of it, and everything else for as long
//! as its event can be seen; a score depends on nothing but those rows and the time. An assertion and the
//! row that says so are one transaction, and nothing is said again that has not changed.

mod assertion;
mod facts;
mod follow;
mod score;
mod scores;
mod speak;

pub(crate) use assertion::{Algorithm, place};
pub(crate) use facts::{Reference, Reported, Said};
pub(crate) use follow::Trust;
pub(crate) use score::{Contact, Fading};
pub(crate) use scores::Scores;
pub(crate) use speak::Speak;
