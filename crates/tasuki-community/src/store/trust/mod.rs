//! Who is reported, who talks with whom, and what is said of it.

pub(crate) mod assertions;
pub(crate) mod contacts;
pub(crate) mod events;
pub(crate) mod rebuild;
pub(crate) mod reports;
pub(crate) mod scores;
