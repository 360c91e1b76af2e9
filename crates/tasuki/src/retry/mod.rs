//! Trying again: how long to wait, how often, and whether it can help at all.
//!
//! Every error that decides what becomes of work has a [`Verdict`]; there is no default, so a
//! new error must choose. A [`Policy`] turns a verdict and the number of attempts into what
//! comes [`Next`]; its [`Backoff`] says how long to wait. Both are pure: rows with a lease use
//! them to set a due time by the database's clock, and [`Executor`] uses them to wait here, in
//! this process, around one call.
//!
//! Promised: waits never overflow, whatever the attempt; the jitter keeps callers that failed
//! together from returning together.
//!
//! Not here: anything durable. What must survive a crash is a row with a lease, not a loop.

mod backoff;
mod executor;

use std::time::Duration;

pub use backoff::Backoff;
pub use executor::{Attempt, Error, Executor, GaveUp};

/// Whether trying again can help.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Verdict {
    /// It may: wait as the policy says. Costs an attempt.
    Retry,
    /// It may, after this long (the other side said so). Costs an attempt.
    RetryAfter(Duration),
    /// It was not the work's fault (a broker or a database is away, a limit is reached): look
    /// again after this long. Costs no attempt.
    Snooze(Duration),
    /// It never can: the work is dead at once, however many attempts are left.
    Reject,
}

/// An error that knows whether trying again can help.
pub trait Judged {
    /// The verdict on this error.
    fn verdict(&self) -> Verdict;
}

/// How often to try, and how long to wait in between.
#[derive(Clone, Debug, PartialEq)]
pub struct Policy {
    /// Attempts in all, the first included. 0 means 1: there is no work that is never tried.
    pub max_attempts: u32,
    /// The wait after each.
    pub backoff: Backoff,
}

/// What becomes of work that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Next {
    /// It is tried again after this long; the attempt is counted.
    Retry(Duration),
    /// It is tried again after this long, and this attempt is not counted.
    Snooze(Duration),
    /// It is dead.
    Dead,
}

impl Policy {
    /// At most `max_attempts`, with `backoff` in between.
    #[must_use]
    pub const fn new(max_attempts: u32, backoff: Backoff) -> Self {
        Self {
            max_attempts,
            backoff,
        }
    }

    /// What rows with a lease use unless told otherwise: 10 attempts, [`Backoff::default`].
    #[must_use]
    pub fn leased() -> Self {
        Self::new(10, Backoff::default())
    }

    /// What comes after attempt number `attempt` (the first is 1) failed with `verdict`.
    #[must_use]
    pub fn next(&self, attempt: u32, verdict: Verdict) -> Next {
        self.next_with(attempt, verdict, fastrand::f64())
    }

    /// As [`next`](Self::next), with the caller's own random number between 0 and 1.
    #[must_use]
    pub fn next_with(&self, attempt: u32, verdict: Verdict, random: f64) -> Next {
        let exhausted = attempt >= self.max_attempts;
        match verdict {
            Verdict::Reject => Next::Dead,
            Verdict::Snooze(pause) => Next::Snooze(pause),
            Verdict::Retry | Verdict::RetryAfter(_) if exhausted => Next::Dead,
            Verdict::Retry => Next::Retry(self.backoff.delay(attempt, random)),
            Verdict::RetryAfter(pause) => Next::Retry(pause),
        }
    }
}

impl Default for Policy {
    fn default() -> Self {
        Self::leased()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn the_last_attempt_is_the_last_and_none_counts_as_one() {
        let policy = Policy::new(3, Backoff::list([SECOND]));
        assert_eq!(policy.next(1, Verdict::Retry), Next::Retry(SECOND));
        assert_eq!(policy.next(2, Verdict::Retry), Next::Retry(SECOND));
        assert_eq!(policy.next(3, Verdict::Retry), Next::Dead);
        assert_eq!(policy.next(4, Verdict::RetryAfter(SECOND)), Next::Dead);

        let never = Policy::new(0, Backoff::default());
        assert_eq!(never.next(1, Verdict::Retry), Next::Dead);
    }

    #[test]
    fn a_rejection_is_dead_at_once_and_a_snooze_never_is() {
        let policy = Policy::leased();
        assert_eq!(policy.next(1, Verdict::Reject), Next::Dead);
        for attempt in [0, 1, 10, u32::MAX] {
            let next = policy.next(attempt, Verdict::Snooze(SECOND));
            assert_eq!(next, Next::Snooze(SECOND));
        }
    }

    #[test]
    fn what_the_other_side_asks_for_is_what_it_gets() {
        let wait = Duration::from_secs(90);
        let next = Policy::leased().next(1, Verdict::RetryAfter(wait));
        assert_eq!(next, Next::Retry(wait));
    }

    #[test]
    fn leased_rows_get_ten_attempts() {
        let policy = Policy::leased();
        let dies_at = (1..100).find(|attempt| policy.next(*attempt, Verdict::Retry) == Next::Dead);
        assert_eq!(dies_at, Some(10));
    }
}
