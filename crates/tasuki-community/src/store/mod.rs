//! The SQL of the community node.

pub(crate) mod attention;
pub(crate) mod find;
pub(crate) mod fresh;
pub(crate) mod ingest;
pub(crate) mod lapse;
pub(crate) mod moderation;
pub(crate) mod pressure;
pub(crate) mod rules;
pub(crate) mod search;
pub(crate) mod trust;
