//! Moderation's rows.

pub(crate) mod audit;
pub(crate) mod events;
pub(crate) mod labels;
pub(crate) mod members;
pub(crate) mod reports;
pub(crate) mod rules;
