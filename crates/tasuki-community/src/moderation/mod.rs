//! Moderation: labels that the node gives, by rules and by people, and reports that it collects.
//!
//! A label is an event of the node (kind 39006), published and logged as those of anybody else, and a row
//! beside it. What a rule says of an event depends on the event, on when it was accepted and on nothing
//! else: whoever reads the log again makes the same labels, and finds them there. People's labels are
//! rows that are never made again, only kept. A label lapses or is withdrawn; its target's end is not its.
//!
//! Locks, always in this order: the rules (shared, by whoever asks them; exclusive, by whoever changes
//! them), targets, and what publishing takes.

mod apply;
mod consumer;
mod definition;
mod label;
mod office;
mod operator;
mod report;
mod rule;
mod tell;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use tasuki::outbox::Outbox;
use tasuki::{idempotency, outbox};
use uuid::Uuid;

pub(crate) use apply::Seen;
pub(crate) use consumer::{BATCH, Moderation};
pub use definition::{Definition, Invalid};
pub(crate) use label::{Label, Origin};
pub use office::{Given, Office, Ruled, Which, given, ruled};
pub use operator::{By, Refused, Saying};
pub use operator::{add_rule, close_rule};
pub(crate) use operator::{change_rule, link, unlink};
pub(crate) use report::Reporting;
pub(crate) use rule::Life;

use crate::node::Keys;
use rule::Rule;

/// Labels that were published, by `origin`: rule, operator.
const LABELS: &str = "tasuki_community_labels_total";
/// Reports that were taken down.
const REPORTS: &str = "tasuki_community_reports_total";
/// Versions of rules that are kept ready; they never change.
const READY: usize = 1_000;

/// Versions of rules that were asked before.
type Ready = HashMap<(Uuid, i32), Arc<Rule>>;

/// Who labels. Clones are the same.
#[derive(Clone, Debug)]
pub(crate) struct Moderator {
    pub(crate) keys: Keys,
    outbox: Outbox,
    /// How far in the future an event may be, in seconds.
    pub(crate) ahead: i64,
    ready: Arc<Mutex<Ready>>,
}

/// Why something was not done.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The database could not be read or written.
    #[error("moderation's tables could not be read or written")]
    Store(#[from] sqlx::Error),
    /// The key could not be opened, or its answer kept.
    #[error("the key could not be opened or its answer kept")]
    Idempotency(#[from] idempotency::Error),
    /// The author could not be told.
    #[error("the author could not be told")]
    Outbox(#[from] outbox::Error),
    /// What is stored can't be written or read as JSON.
    #[error("a row could not be written or read")]
    Row(#[from] serde_json::Error),
    /// A time could not be written.
    #[error("a time could not be written")]
    Time(#[from] time::error::Format),
    /// A rule that was checked when it was made can't be used by this release.
    #[error("the rule {rule} can't be used: {invalid}")]
    Rule {
        /// Which one.
        rule: Uuid,
        /// Why not.
        invalid: Invalid,
    },
    /// Nothing was changed; it would not be allowed.
    #[error(transparent)]
    Refused(#[from] Refused),
}

impl Moderator {
    pub(crate) fn new(keys: Keys, outbox: Outbox, ahead: i64) -> Self {
        Self {
            keys,
            outbox,
            ahead,
            ready: Arc::default(),
        }
    }

    /// A version of a rule, ready to be asked.
    fn rule(&self, id: Uuid, version: i32, definition: &str) -> Result<Arc<Rule>, Error> {
        let mut ready = self.ready.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(rule) = ready.get(&(id, version)) {
            return Ok(Arc::clone(rule));
        }
        let definition = serde_json::from_str(definition)?;
        let rule = Rule::new(id, version, definition);
        let rule = Arc::new(rule.map_err(|invalid| Error::Rule { rule: id, invalid })?);
        if ready.len() >= READY {
            ready.clear();
        }
        ready.insert((id, version), Arc::clone(&rule));
        Ok(rule)
    }
}
