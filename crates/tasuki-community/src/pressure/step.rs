//! From what is behind to what is held back, without I/O.

use crate::config;

/// What is held back. Each step adds to those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Step {
    /// Nothing.
    None,
    /// Consumers handle more rows together.
    Batches,
    /// No events of long ago.
    Backfill,
    /// No topics of low priority.
    Low,
    /// So many events a minute, and no topics that nobody has seen.
    Slow,
}

impl Step {
    const ALL: [Self; 5] = [
        Self::None,
        Self::Batches,
        Self::Backfill,
        Self::Low,
        Self::Slow,
    ];

    pub(crate) const fn number(self) -> u8 {
        match self {
            Self::None => 0,
            Self::Batches => 1,
            Self::Backfill => 2,
            Self::Low => 3,
            Self::Slow => 4,
        }
    }

    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::None => "nothing",
            Self::Batches => "nothing yet: consumers handle more rows together",
            Self::Backfill => "events of long ago",
            Self::Low => "events of long ago, and topics of low priority",
            Self::Slow => {
                "events beyond the rate, of long ago, of topics that are new or of low priority"
            }
        }
    }

    /// How many rows must be waiting for it.
    const fn threshold(self, settings: &config::Pressure) -> u64 {
        match self {
            Self::None => 0,
            Self::Batches => settings.batches_at,
            Self::Backfill => settings.backfill_at,
            Self::Low => settings.low_at,
            Self::Slow => settings.slow_at,
        }
    }

    /// One up where there are as many rows as the next one needs, one down where there are fewer than a
    /// part of what this one needs.
    pub(super) fn next(self, backlog: u64, settings: &config::Pressure) -> Self {
        let number = usize::from(self.number());
        let up = Self::ALL.get(number + 1).copied();
        if let Some(up) = up.filter(|up| backlog >= up.threshold(settings)) {
            return up;
        }
        let kept = self
            .threshold(settings)
            .saturating_mul(settings.release.into())
            / 100;
        match number.checked_sub(1).and_then(|below| Self::ALL.get(below)) {
            Some(below) if backlog < kept.max(1) => *below,
            _ => self,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const SETTINGS: config::Pressure = config::Pressure {
        batches_at: 10,
        backfill_at: 20,
        low_at: 30,
        slow_at: 40,
        release: 50,
        batch: 1_000,
        backfill_age: Duration::from_secs(60),
        events_per_minute: 60,
    };

    /// Every step on the way, from nothing on.
    fn way(backlogs: &[u64]) -> Vec<u8> {
        let mut step = Step::None;
        let steps = backlogs.iter().map(|backlog| {
            step = step.next(*backlog, &SETTINGS);
            step.number()
        });
        steps.collect()
    }

    #[test]
    fn it_goes_up_and_down_by_one_step_at_a_time() {
        assert_eq!(way(&[9, 10, 19, 20, 30, 40, 99]), [0, 1, 1, 2, 3, 4, 4]);
        assert_eq!(way(&[99; 5]), [1, 2, 3, 4, 4]);
        let down = [99, 99, 99, 99, 0, 0, 0, 0, 0];
        assert_eq!(way(&down), [1, 2, 3, 4, 3, 2, 1, 0, 0]);
    }

    #[test]
    fn a_step_is_left_well_below_where_it_was_taken() {
        assert_eq!(way(&[10, 9, 5, 4, 9]), [1, 1, 1, 0, 0]);
        assert_eq!(way(&[20, 20, 19, 10, 9, 19, 20]), [1, 2, 2, 2, 1, 1, 2]);
        assert_eq!(
            way(&[40, 40, 40, 40, 39, 20, 19, 15]),
            [1, 2, 3, 4, 4, 4, 3, 3]
        );
    }
}
