//! Scores, without I/O: how risky somebody is by what others report, and how densely somebody talks with
//! others.
//!
//! Everything fades: it weighs half as much after each half-life, and nothing beyond its window. Only who
//! reports or answers counts, and never how often, so nothing is gained by saying it again.
//!
//! `density`: a contact counts when both have spoken to each other, as much as the older word of the two
//! weighs; `100 · (1 − e^(−sum / 20))`. Nobody becomes dense by being spoken to, or by speaking to many who
//! do not answer.
//!
//! `risk`: a reporter weighs as much as his report, times his own density as a part of one. What is left of
//! all of them, the part for which nobody vouches, is `0.5 · (1 − e^(−rest / 10))` together, however many
//! they are; `100 · (1 − e^(−sum / 2))`. So one reporter who is well known makes 39, three make 78, and any
//! number of fresh keys at most 22.

use std::time::Duration;

/// Contacts after which two thirds of the density are reached.
const CONTACTS: f64 = 20.0;
/// Well known reporters after whom two thirds of the risk are reached.
const REPORTERS: f64 = 2.0;
/// What all unknown reporters together weigh at most, as a part of one who is well known.
const STRANGERS: f64 = 0.5;
/// Unknown reporters after whom two thirds of that are reached.
const CROWD: f64 = 10.0;

/// How long something counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fading {
    /// In seconds: what is older does not count.
    pub(crate) window: i64,
    /// In seconds: what is that old counts half.
    pub(crate) half_life: i64,
}

impl Fading {
    pub(crate) fn new(window: Duration, half_life: Duration) -> Self {
        let seconds = |time: Duration| i64::try_from(time.as_secs()).unwrap_or(i64::MAX);
        Self {
            window: seconds(window),
            half_life: seconds(half_life).max(1),
        }
    }

    /// What is older than this does not count.
    pub(crate) const fn since(&self, now: i64) -> i64 {
        now.saturating_sub(self.window)
    }

    /// What something from `at` weighs: 1 when it is new, and 0 outside of the window.
    fn weight(&self, now: i64, at: i64) -> f64 {
        let age = now.saturating_sub(at).max(0);
        if age >= self.window {
            return 0.0;
        }
        (-number(age) / number(self.half_life)).exp2()
    }
}

/// Seconds as a number to count with; all of them are below 68 years.
fn number(seconds: i64) -> f64 {
    f64::from(i32::try_from(seconds).unwrap_or(i32::MAX))
}

/// Somebody to whom one has spoken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Contact {
    /// When last.
    pub(crate) said_at: i64,
    /// When last it went the other way.
    pub(crate) heard_at: Option<i64>,
}

/// Somebody who has reported something.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Reporter {
    /// When last.
    pub(crate) reported_at: i64,
    /// His density.
    pub(crate) density: f64,
}

/// A score, and what it is made of.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Score {
    sum: f64,
    scale: f64,
    /// Reporters, or contacts in both directions.
    pub(crate) counted: u32,
    /// Those to whom somebody has spoken, whether they answer or not.
    pub(crate) spoken_to: u32,
}

impl Score {
    /// From 0 to 100.
    pub(crate) fn exact(&self) -> f64 {
        100.0 * saturated(self.sum / self.scale)
    }

    /// The nearest whole number.
    pub(crate) fn value(&self) -> u8 {
        let exact = self.exact();
        let reached = |value: &u8| exact >= f64::from(*value) - 0.5;
        (1..=100).rev().find(reached).unwrap_or(0)
    }

    /// In how many seconds the whole number will be another one because everything fades; nothing where it
    /// is the least.
    pub(crate) fn fades_in(&self, fading: &Fading) -> Option<i64> {
        let value = self.value();
        if value == 0 {
            return None;
        }
        let edge = (f64::from(value) - 0.5) / 100.0;
        let left = -self.scale * (1.0 - edge).ln();
        let seconds = number(fading.half_life) * (self.sum / left).log2();
        let time = Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or(Duration::MAX);
        Some(i64::try_from(time.as_secs()).unwrap_or(i64::MAX))
    }
}

/// From 0 towards 1.
fn saturated(sum: f64) -> f64 {
    1.0 - (-sum).exp()
}

/// How densely somebody talks with others.
pub(crate) fn density(contacts: &[Contact], now: i64, fading: &Fading) -> Score {
    let weight = |at| fading.weight(now, at);
    let mut score = Score {
        sum: 0.0,
        scale: CONTACTS,
        counted: 0,
        spoken_to: 0,
    };
    for contact in contacts {
        let said = weight(contact.said_at);
        score.spoken_to += u32::from(said > 0.0);
        let both = contact.heard_at.map_or(0.0, weight).min(said);
        score.counted += u32::from(both > 0.0);
        score.sum += both;
    }
    score
}

/// How risky something is, by who has reported it.
pub(crate) fn risk(reporters: &[Reporter], now: i64, fading: &Fading) -> Score {
    let (mut known, mut strange, mut counted) = (0.0, 0.0, 0);
    for reporter in reporters {
        let weight = fading.weight(now, reporter.reported_at);
        let standing = (reporter.density / 100.0).clamp(0.0, 1.0);
        known += weight * standing;
        strange += weight * (1.0 - standing);
        counted += u32::from(weight > 0.0);
    }
    Score {
        sum: known + STRANGERS * saturated(strange / CROWD),
        scale: REPORTERS,
        counted,
        spoken_to: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: i64 = 1_800_000_000;
    const DAY: i64 = 86_400;
    const FADING: Fading = Fading {
        window: 30 * DAY,
        half_life: 10 * DAY,
    };

    fn reporter(age: i64, density: f64) -> Reporter {
        Reporter {
            reported_at: NOW - age,
            density,
        }
    }

    fn contact(said: i64, heard: Option<i64>) -> Contact {
        Contact {
            said_at: NOW - said,
            heard_at: heard.map(|age| NOW - age),
        }
    }

    fn risk_of(reporters: &[Reporter]) -> f64 {
        risk(reporters, NOW, &FADING).exact()
    }

    fn density_of(contacts: &[Contact]) -> f64 {
        density(contacts, NOW, &FADING).exact()
    }

    #[test]
    fn nobody_knows_is_zero() {
        assert_eq!(risk(&[], NOW, &FADING).value(), 0);
        assert_eq!(density(&[], NOW, &FADING).value(), 0);
        assert_eq!(risk(&[], NOW, &FADING).fades_in(&FADING), None);
    }

    #[test]
    fn scores_are_as_they_are_written() {
        let known = |count| vec![reporter(0, 100.0); count];
        let value = |reporters: &[Reporter]| risk(reporters, NOW, &FADING).value();
        assert_eq!([1, 3, 20].map(|count| value(&known(count))), [39, 78, 100]);
        let fresh = |count| vec![reporter(0, 0.0); count];
        assert_eq!(
            [1, 3, 100_000].map(|count| value(&fresh(count))),
            [2, 6, 22]
        );
        let both = |count| density(&vec![contact(0, Some(0)); count], NOW, &FADING).value();
        assert_eq!([1, 20, 200].map(both), [5, 63, 100]);
    }

    #[test]
    fn more_and_better_known_reporters_are_more_risk() {
        let mut before = 0.0;
        for count in 1..50 {
            let now = risk_of(&vec![reporter(DAY, 40.0); count]);
            assert!(now > before && now <= 100.0, "{count}: {now}");
            before = now;
        }
        before = 0.0;
        for density in [0.0, 1.0, 20.0, 60.0, 100.0] {
            let now = risk_of(&[reporter(0, density), reporter(DAY, 10.0)]);
            assert!(now > before, "{density}: {now}");
            before = now;
        }
    }

    #[test]
    fn everything_fades_by_half_and_then_to_nothing() {
        let sum = |age| risk(&[reporter(age, 100.0)], NOW, &FADING).sum;
        assert!((sum(10 * DAY) - 0.5).abs() < 1e-9);
        assert!((sum(20 * DAY) - 0.25).abs() < 1e-9);
        assert!(sum(30 * DAY - 1) > 0.1);
        assert_eq!(risk(&[reporter(30 * DAY, 100.0)], NOW, &FADING).counted, 0);
        assert!(risk_of(&[reporter(30 * DAY, 100.0)]) <= 0.0);
        // One that is from a little later than now is new.
        assert!((sum(-600) - 1.0).abs() < 1e-9);
        assert!(
            density_of(&[contact(DAY, Some(DAY))]) > density_of(&[contact(DAY, Some(2 * DAY))])
        );
    }

    #[test]
    fn a_contact_counts_when_both_have_spoken() {
        let spam = vec![contact(0, None); 10_000];
        let score = density(&spam, NOW, &FADING);
        assert_eq!(
            (score.value(), score.counted, score.spoken_to),
            (0, 0, 10_000)
        );
        let one = density(
            &[contact(0, Some(0)), contact(0, Some(31 * DAY))],
            NOW,
            &FADING,
        );
        assert_eq!((one.value(), one.counted, one.spoken_to), (5, 1, 2));
        let mut before = 0.0;
        for count in 1..200 {
            let now = density_of(&vec![contact(0, Some(DAY)); count]);
            assert!(now > before && now <= 100.0, "{count}: {now}");
            before = now;
        }
    }

    #[test]
    fn it_is_known_when_a_value_will_fade() {
        // What strangers weigh together fades later than each of them: never sooner than is said.
        for (reporters, density) in [(1, 100.0), (5, 80.0), (40, 100.0), (40, 0.0)] {
            let reporters = vec![reporter(DAY, density); reporters];
            let score = risk(&reporters, NOW, &FADING);
            let soon = score.fades_in(&FADING).unwrap();
            let at = |seconds: i64| risk(&reporters, NOW + seconds, &FADING).value();
            assert_eq!(at(soon - 1), score.value(), "in {soon}");
            assert!(density < 100.0 || at(soon + 2) < score.value(), "in {soon}");
        }
        let contacts = vec![contact(DAY, Some(DAY)); 12];
        let score = density(&contacts, NOW, &FADING);
        let soon = score.fades_in(&FADING).unwrap();
        let at = |seconds: i64| density(&contacts, NOW + seconds, &FADING).value();
        assert_eq!(at(soon - 1), score.value());
        assert_eq!(at(soon + 2), score.value() - 1);
    }
}
