//! Search: the consumer `index-v1` follows the log and keeps a document for every event that can be seen;
//! who searches asks the documents.

/// The longest question, in bytes.
pub(crate) const QUESTION: usize = 1024;

mod document;
mod index;
mod query;
mod terms;

pub(crate) use document::Document;
pub(crate) use index::Index;
pub(crate) use query::Query;
pub(crate) use terms::Terms;
