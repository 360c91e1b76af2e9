//! How many rows to hold: as many as will be started in a moment, and no more.
//!
//! Claiming one row per free slot costs a round trip per row; claiming thousands keeps them
//! from other processes. So the number follows the pace of the work: it doubles while a claim
//! is started within [`FAST`], and halves when that takes longer than [`SLOW`]. A row that waits
//! for so long that nobody can tell when it will start is given back, and the number is as small
//! again as it was at first.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// A claim that was started within this time was too small.
const FAST: Duration = Duration::from_millis(25);
/// A claim that took longer to be started held rows that others could have run.
const SLOW: Duration = Duration::from_millis(100);

/// The number of rows to hold at a time.
#[derive(Debug)]
pub(super) struct Prefetch {
    least: usize,
    most: usize,
    now: AtomicUsize,
}

impl Prefetch {
    /// Starts at `least`, what can run side by side; never more than `most`.
    pub(super) fn new(least: usize, most: usize) -> Self {
        Self {
            least,
            most: most.max(least),
            now: AtomicUsize::new(least),
        }
    }

    pub(super) fn rows(&self) -> usize {
        self.now.load(Ordering::Relaxed)
    }

    /// Somebody waited too long to be started: back to what can run side by side.
    pub(super) fn shrink(&self) {
        self.now.store(self.least, Ordering::Relaxed);
    }

    /// A claim of `rows` was started to its last row after `took`.
    pub(super) fn learn(&self, rows: usize, took: Duration) {
        let now = self.rows();
        // A claim that was smaller than what may be held says nothing about holding more.
        if took < FAST && rows * 2 >= now {
            self.now.store((now * 2).min(self.most), Ordering::Relaxed);
        } else if took > SLOW {
            self.now.store((now / 2).max(self.least), Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_grows_while_work_is_fast_and_shrinks_to_the_slots_when_it_is_slow() {
        let prefetch = Prefetch::new(10, 100);
        for _ in 0..10 {
            prefetch.learn(prefetch.rows(), Duration::from_millis(1));
        }
        assert_eq!(prefetch.rows(), 100);
        prefetch.learn(1, Duration::from_millis(1));
        assert_eq!(prefetch.rows(), 100);
        for _ in 0..10 {
            prefetch.learn(prefetch.rows(), Duration::from_secs(1));
        }
        assert_eq!(prefetch.rows(), 10);
        prefetch.learn(1, Duration::from_millis(1));
        assert_eq!(prefetch.rows(), 10, "a small claim is no evidence");
        prefetch.learn(10, Duration::from_millis(1));
        assert_eq!(prefetch.rows(), 20);
        prefetch.shrink();
        assert_eq!(prefetch.rows(), 10);
    }
}
