//! Faults that a check puts into a saga, at one step each (feature `testing`). Without the feature
//! there are none, and asking costs nothing.

use super::step::Phase;

/// Why a saga turns back that nobody wants any more.
pub(super) const TURNED: &str = "turned back by a check";

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    /// It says no before it has done anything.
    Abort,
    /// It says no at its second attempt.
    AbortLater,
    /// It is done, and nobody hears of it.
    Unknown,
    /// It is not done, and nobody knows that.
    Missing,
    /// It is done twice.
    Twice,
    /// It is done, and then nobody wants the saga any more.
    Turn,
    /// The process dies when it is about to begin.
    DieBegun,
    /// The process dies when it is done, before that is written down.
    DieActed,
    /// The process dies when it is written down.
    DieMoved,
}

#[cfg(feature = "testing")]
mod there {
    use std::sync::{Arc, Mutex, PoisonError};

    use super::{Phase, What};

    /// The faults that are still to come.
    #[derive(Clone, Debug, Default)]
    pub(crate) struct Faults(Arc<Mutex<Vec<Fault>>>);

    type Fault = (String, Phase, What);

    impl Faults {
        pub(crate) fn add(&self, step: &str, phase: Phase, what: What) {
            let mut faults = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            faults.push((step.to_owned(), phase, what));
        }

        /// How many have not come true.
        pub(crate) fn left(&self) -> usize {
            self.0.lock().unwrap_or_else(PoisonError::into_inner).len()
        }

        /// Those of a kind need not come true any more.
        pub(crate) fn forget(&self, what: What) {
            let mut faults = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            faults.retain(|fault| fault.2 != what);
        }

        /// Whether this one is to come true now, for once.
        pub(crate) fn take(&self, step: &str, phase: Phase, what: What) -> bool {
            let mut faults = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            let at = faults
                .iter()
                .position(|fault| fault.0 == step && fault.1 == phase && fault.2 == what);
            at.map(|at| faults.swap_remove(at)).is_some()
        }
    }
}

#[cfg(not(feature = "testing"))]
mod there {
    use super::{Phase, What};

    /// None.
    #[derive(Clone, Debug, Default)]
    pub(crate) struct Faults;

    impl Faults {
        pub(crate) const fn take(&self, _step: &str, _phase: Phase, _what: What) -> bool {
            false
        }
    }
}

pub(super) use there::Faults;
