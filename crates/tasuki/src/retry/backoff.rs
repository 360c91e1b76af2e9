//! How long to wait before the next attempt: a rule without state, clock or dice of its own.

use std::sync::Arc;
use std::time::Duration;

/// The wait after a failed attempt: exponential with jitter, or a list.
///
/// The exponential rule is
/// `min(cap, base * factor^(attempt - 1)) * (jitter_min + random * (jitter_max - jitter_min))`,
/// and never below the floor. The cap comes before the jitter, so that those who have waited
/// longest still don't return in step.
#[derive(Clone, Debug, PartialEq)]
pub struct Backoff(Rule);

#[derive(Clone, Debug, PartialEq)]
enum Rule {
    Exponential {
        base: Duration,
        factor: f64,
        cap: Duration,
        jitter: (f64, f64),
        floor: Duration,
    },
    List(Arc<[Duration]>),
}

impl Default for Backoff {
    /// 1 s, doubled up to 60 s, jitter 0.5 to 1.5, never below 1 s.
    fn default() -> Self {
        Self::exponential(Duration::from_secs(1), Duration::from_secs(60))
            .jitter(0.5, 1.5)
            .at_least(Duration::from_secs(1))
    }
}

impl Backoff {
    /// Doubles from `base` up to `cap`, without jitter or floor until they are set.
    #[must_use]
    pub const fn exponential(base: Duration, cap: Duration) -> Self {
        Self(Rule::Exponential {
            base,
            factor: 2.0,
            cap,
            jitter: (1.0, 1.0),
            floor: Duration::ZERO,
        })
    }

    /// The entry of the attempt; the last one repeats. An empty list means no wait.
    #[must_use]
    pub fn list(waits: impl Into<Arc<[Duration]>>) -> Self {
        Self(Rule::List(waits.into()))
    }

    /// Multiplies by `factor` instead of 2. What is not at least 1 counts as 1: a wait that
    /// shrinks would hammer whoever is in trouble. A list ignores this.
    #[must_use]
    pub const fn factor(mut self, factor: f64) -> Self {
        if let Rule::Exponential { factor: old, .. } = &mut self.0 {
            *old = if factor >= 1.0 { factor } else { 1.0 };
        }
        self
    }

    /// Multiplies each wait by a random number from `min` to `max`. What is negative or no
    /// number counts as 0. A list ignores this: it says what it means.
    #[must_use]
    pub const fn jitter(mut self, min: f64, max: f64) -> Self {
        if let Rule::Exponential { jitter, .. } = &mut self.0 {
            *jitter = (not_negative(min), not_negative(max));
        }
        self
    }

    /// Never waits for less than `floor`. A list ignores this.
    #[must_use]
    pub const fn at_least(mut self, floor: Duration) -> Self {
        if let Rule::Exponential { floor: old, .. } = &mut self.0 {
            *old = floor;
        }
        self
    }

    /// The wait after attempt number `attempt` (the first is 1, and 0 counts as it), for a
    /// `random` number between 0 and 1.
    #[must_use]
    pub fn delay(&self, attempt: u32, random: f64) -> Duration {
        let step = attempt.saturating_sub(1);
        match &self.0 {
            Rule::List(waits) => {
                let entry = usize::try_from(step).ok().and_then(|step| waits.get(step));
                entry.or(waits.last()).copied().unwrap_or_default()
            }
            Rule::Exponential {
                base,
                factor,
                cap,
                jitter: (min, max),
                floor,
            } => {
                // A power that is too large for a float is infinite, and the cap is below it;
                // only 0 times infinity would be no number.
                let grown = if base.is_zero() {
                    0.0
                } else {
                    base.as_secs_f64() * factor.powf(f64::from(step))
                };
                let spread = min + not_negative(random).min(1.0) * (max - min);
                let seconds = grown.min(cap.as_secs_f64()) * not_negative(spread);
                Duration::try_from_secs_f64(seconds)
                    .unwrap_or(Duration::MAX)
                    .max(*floor)
            }
        }
    }

    /// As [`delay`](Self::delay), with a random number of its own.
    #[must_use]
    pub fn pick(&self, attempt: u32) -> Duration {
        self.delay(attempt, fastrand::f64())
    }
}

const fn not_negative(number: f64) -> f64 {
    if number > 0.0 { number } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn secs(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    /// A random backoff whose parts are as odd as a user could make them.
    fn odd(random: &mut fastrand::Rng) -> (Backoff, Duration, Duration, f64) {
        let mut duration = || match random.u8(0..10) {
            0 => Duration::ZERO,
            1 => Duration::MAX,
            2 => Duration::from_nanos(1),
            _ => {
                let magnitude = random.u8(1..50);
                Duration::from_micros(random.u64(1..1 << magnitude))
            }
        };
        let (base, cap, floor) = (duration(), duration(), duration());
        let (low, high) = (random.f64() * 2.0, random.f64() * 4.0);
        let backoff = Backoff::exponential(base, cap)
            .factor(random.f64() * 8.0)
            .jitter(low, high)
            .at_least(floor);
        (backoff, cap, floor, low.max(high))
    }

    #[test]
    fn the_default_follows_the_rule() {
        let backoff = Backoff::default();
        for (attempt, middle) in [(1, 1), (2, 2), (3, 4), (4, 8), (6, 32), (7, 60), (99, 60)] {
            assert_eq!(backoff.delay(attempt, 0.5), secs(middle), "{attempt}");
        }
        assert_eq!(backoff.delay(1, 0.0), secs(1), "the floor");
        assert_eq!(backoff.delay(3, 0.0), secs(2));
        assert_eq!(backoff.delay(3, 1.0), secs(6));
        assert_eq!(
            backoff.delay(99, 1.0),
            secs(90),
            "the jitter is after the cap"
        );
    }

    #[test]
    fn a_list_gives_each_attempt_its_entry_and_repeats_the_last() {
        let backoff = Backoff::list([secs(1), secs(5), secs(10)]);
        let waits = [0, 1, 2, 3, 4, u32::MAX].map(|attempt| backoff.pick(attempt));
        assert_eq!(waits, [1, 1, 5, 10, 10, 10].map(secs));
        assert_eq!(Backoff::list([]).pick(1), Duration::ZERO);
    }

    #[test]
    fn no_attempt_however_late_overflows_or_leaves_its_bounds() {
        let mut random = fastrand::Rng::with_seed(7);
        for _ in 0..20_000 {
            let (backoff, cap, floor, widest) = odd(&mut random);
            let attempt = match random.u8(0..4) {
                0 => u32::MAX,
                1 => 0,
                _ => random.u32(0..64),
            };
            let dice = random.f64();
            let delay = backoff.delay(attempt, dice);
            assert!(delay >= floor, "{backoff:?} {attempt}");
            let ceiling = cap.as_secs_f64() * widest * (1.0 + 1e-9) + 1e-6;
            assert!(
                delay == floor || delay.as_secs_f64() <= ceiling,
                "{backoff:?} {attempt}: {delay:?}"
            );
            assert_eq!(delay, backoff.delay(attempt, dice), "the rule is pure");
        }
    }

    #[test]
    fn a_later_attempt_never_waits_for_less_with_the_same_dice() {
        let mut random = fastrand::Rng::with_seed(8);
        for _ in 0..2_000 {
            let (backoff, ..) = odd(&mut random);
            let dice = random.f64();
            let waits: Vec<_> = (1..40)
                .map(|attempt| backoff.delay(attempt, dice))
                .collect();
            assert!(waits.is_sorted(), "{backoff:?}");
        }
    }

    #[test]
    fn nonsense_in_is_no_nonsense_out() {
        let backoff = Backoff::exponential(secs(1), secs(60))
            .factor(f64::NAN)
            .jitter(-3.0, f64::NAN);
        for dice in [f64::NAN, f64::INFINITY, -1.0, 7.0] {
            assert_eq!(backoff.delay(5, dice), Duration::ZERO);
        }
        let wide = Backoff::exponential(secs(1), Duration::MAX).jitter(0.0, f64::INFINITY);
        assert_eq!(wide.delay(u32::MAX, 1.0), Duration::MAX);
    }
}
