//! How long the steps of a shared transaction may keep each other waiting, all of them together.
//!
//! When that is over, those that have not run yet go into the next batch; those of a kind that was
//! slow go alone, beside each other. So every batch moves somebody, however slow its steps are.

use std::collections::HashSet;
use std::time::Duration;

use tokio::time::Instant;

use super::failure::Hindrance;

/// How long steps are begun in a transaction that others wait for.
const BUDGET: Duration = Duration::from_millis(200);
/// Such steps would use that up between two of them.
const SLOW: Duration = Duration::from_millis(100);

/// A kind of step: its definition and its name.
type Kind<'a> = (&'a str, &'static str);

/// The time that a transaction has for steps.
pub(super) struct Pace<'a> {
    began: Instant,
    is_alone: bool,
    slow: HashSet<Kind<'a>>,
}

impl<'a> Pace<'a> {
    pub(super) fn new(is_alone: bool) -> Self {
        Self {
            began: Instant::now(),
            is_alone,
            slow: HashSet::new(),
        }
    }

    /// Whether no further step is to begin.
    pub(super) fn is_over(&self) -> bool {
        !self.is_alone && self.began.elapsed() >= BUDGET
    }

    pub(super) fn is_slow(&self, kind: Kind<'_>) -> bool {
        self.slow.contains(&kind)
    }

    /// A step of this kind took so long. What others hold up is not slow by itself.
    pub(super) fn took(&mut self, kind: Option<Kind<'a>>, why: Option<Hindrance>, took: Duration) {
        if took >= SLOW && why != Some(Hindrance::HeldUp) {
            self.slow.extend(kind);
        }
    }
}
