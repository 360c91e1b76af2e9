//! Search: the consumer `index-v1` follows the log and keeps a document for every event that can be seen;
//! who searches asks the documents. Beside them it keeps who pays attention to which event.

/// Connections that search: those who look for what a word is in can't keep others waiting.
const CONNECTIONS: u32 = 8;

/// Connections for searches. Whether a word is in half of all documents or in one decides which way is the
/// short one, so each search is planned with its words; everything else has one plan for all values.
pub(crate) fn pool(requests: &PgPool) -> PgPool {
    let options = requests.connect_options().as_ref().clone();
    let options = options.options([("plan_cache_mode", "force_custom_plan")]);
    let pool = requests.options().clone().max_connections(CONNECTIONS);
    pool.connect_lazy_with(options)
}

/// The longest question, in bytes.
pub(crate) const QUESTION: usize = 1024;

mod attention;
mod document;
mod index;
mod query;
mod terms;

use sqlx::PgPool;

pub(crate) use attention::{Attention, Window};
pub(crate) use document::Document;
pub(crate) use index::Index;
pub(crate) use query::Query;
pub(crate) use terms::Terms;
