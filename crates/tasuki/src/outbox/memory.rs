//! What a relay remembers between its claims. A hint: without it things are later, never wrong.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use time::OffsetDateTime;

use super::away::Away;

/// A sequence per stream, for each that the stream was created as.
pub(super) type Highest = HashMap<(Arc<str>, OffsetDateTime), u64>;

#[derive(Debug, Default)]
pub(super) struct State {
    /// Ordered events: the key after which the next claim goes on.
    pub(super) after_key: String,
    /// There are more keys than one claim looks at.
    pub(super) more_keys: bool,
    /// Claims so far.
    pub(super) claims: i64,
    /// Subjects whose stream did not answer the last time, and those whose stream did.
    pub(super) away: HashMap<Arc<str>, Away>,
    pub(super) here: HashSet<Arc<str>>,
    /// The highest acknowledged sequences.
    pub(super) highest: Highest,
}

impl State {
    /// The number of a claim that was just made.
    pub(super) const fn count_claim(&mut self) -> i64 {
        self.claims += 1;
        self.claims
    }

    /// Nobody answers, for whatever subject.
    pub(super) fn is_deserted(&self) -> bool {
        self.here.is_empty() && !self.away.is_empty()
    }

    /// How much longer events to `subject` are not worth a try.
    pub(super) fn pause(&self, subject: &str) -> Option<Duration> {
        self.away.get(subject)?.pause()
    }
}
