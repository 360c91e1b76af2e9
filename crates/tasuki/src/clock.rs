//! Where the time comes from.
//!
//! Decisions that must agree between machines (leases, due times, expiry of keys) use the
//! database's clock, never this one. [`Clock`] is for what one process says about itself:
//! token lifetimes, the time part of an id, when a worker last ran.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use time::OffsetDateTime;

/// The current time, from the system or from a test.
#[derive(Clone, Default)]
pub struct Clock(Source);

#[derive(Clone, Default)]
enum Source {
    #[default]
    System,
    Held(Arc<Mutex<OffsetDateTime>>),
}

impl Clock {
    /// The clock of this machine.
    #[must_use]
    pub const fn system() -> Self {
        Self(Source::System)
    }

    /// A clock that stands still at `start` until [`advance`](Self::advance) moves it.
    /// Clones share the same hand.
    #[must_use]
    pub fn held_at(start: OffsetDateTime) -> Self {
        Self(Source::Held(Arc::new(Mutex::new(start))))
    }

    /// The time now.
    #[must_use]
    #[expect(
        clippy::disallowed_methods,
        reason = "the one place that asks the system"
    )]
    pub fn now(&self) -> OffsetDateTime {
        match &self.0 {
            Source::System => OffsetDateTime::now_utc(),
            Source::Held(hand) => *hand.lock().unwrap_or_else(PoisonError::into_inner),
        }
    }

    /// Moves a held clock forward. The system's clock moves by itself and ignores this.
    pub fn advance(&self, by: Duration) {
        if let Source::Held(hand) = &self.0 {
            *hand.lock().unwrap_or_else(PoisonError::into_inner) += by;
        }
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Source::System => f.write_str("Clock(system)"),
            Source::Held(_) => write!(f, "Clock(held at {})", self.now()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_held_clock_moves_only_when_told_and_for_every_clone() {
        let clock = Clock::held_at(OffsetDateTime::UNIX_EPOCH);
        let twin = clock.clone();
        clock.advance(Duration::from_secs(90));
        assert_eq!(
            twin.now(),
            OffsetDateTime::UNIX_EPOCH + Duration::from_secs(90)
        );
    }
}
