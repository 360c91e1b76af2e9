//! How long to wait after a tick.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::time::Duration;

use super::{Outcome, Tick};

/// The longest pause after failures, however many there were in a row: it is also how long
/// work waits at the most once the reason is gone.
const CAP: Duration = Duration::from_secs(10);
/// The pause after the first failure of a row.
const BASE: Duration = Duration::from_millis(250);

/// What to do until the next tick.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pause {
    /// Tick again at once.
    None,
    /// Wait this long, or until woken.
    UntilWoken(Duration),
    /// Wait this long whatever happens: under load a wake arrives with every request, and
    /// would turn the backoff of a worker whose database is away into a busy loop.
    Full(Duration),
}

/// Turns outcomes into pauses: worked, none; idle, the poll interval; failed or panicked,
/// a growing backoff.
#[derive(Debug)]
pub(super) struct Pace {
    poll: Duration,
    failures: u32,
    random: RandomState,
}

impl Pace {
    pub(super) fn new(poll: Duration) -> Self {
        Self {
            poll,
            failures: 0,
            random: RandomState::new(),
        }
    }

    pub(super) fn after(&mut self, outcome: &Outcome) -> Pause {
        match outcome {
            Outcome::Ok(tick) => {
                self.failures = 0;
                match tick {
                    Tick::Worked => Pause::None,
                    Tick::Idle => Pause::UntilWoken(self.poll),
                }
            }
            Outcome::Failed(_) | Outcome::Panicked(_) => {
                self.failures = self.failures.saturating_add(1);
                let doubled = BASE.saturating_mul(1 << (self.failures - 1).min(16));
                Pause::Full(doubled.min(CAP).mul_f64(self.jitter()))
            }
        }
    }

    /// Between 0.5 and 1.0, so that processes that failed together don't return together.
    fn jitter(&self) -> f64 {
        let mut hasher = self.random.build_hasher();
        hasher.write_u32(self.failures);
        let [byte, ..] = hasher.finish().to_ne_bytes();
        0.5 + f64::from(byte) / 510.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failed() -> Outcome {
        Outcome::Failed("no".into())
    }

    fn length(pause: Pause) -> Duration {
        match pause {
            Pause::None => Duration::ZERO,
            Pause::UntilWoken(pause) | Pause::Full(pause) => pause,
        }
    }

    #[test]
    fn work_is_followed_at_once_and_idleness_by_the_poll_interval() {
        let mut pace = Pace::new(Duration::from_secs(1));
        assert_eq!(pace.after(&Outcome::Ok(Tick::Worked)), Pause::None);
        assert_eq!(
            pace.after(&Outcome::Ok(Tick::Idle)),
            Pause::UntilWoken(Duration::from_secs(1))
        );
    }

    #[test]
    fn failures_back_off_up_to_the_cap_and_success_forgets_them() {
        let mut pace = Pace::new(Duration::from_secs(1));
        let pauses: Vec<_> = (0..40).map(|_| length(pace.after(&failed()))).collect();
        assert!(pauses[0] >= BASE / 2 && pauses[0] <= BASE);
        assert!(pauses[39] >= CAP / 2 && pauses.iter().all(|pause| *pause <= CAP));

        pace.after(&Outcome::Ok(Tick::Idle));
        assert!(length(pace.after(&failed())) <= BASE);
    }
}
