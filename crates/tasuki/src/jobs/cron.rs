//! Cron expressions: five fields, in UTC.
//!
//! `minute hour day-of-month month day-of-week`, each `*`, a number or a range, with an optional
//! step, or a list of those; months and days of the week also by their first three letters, Sunday
//! as 0 or 7. As in every cron, a day matches when day-of-month *or* day-of-week does if both are
//! given, and when both do if one begins with `*`. `@hourly`, `@daily`, `@weekly`, `@monthly` and
//! `@yearly` stand for what they say.
//!
//! UTC, so that no occurrence is skipped or doubled when clocks change.

use std::str::FromStr;

use time::{Date, Duration, OffsetDateTime, UtcOffset};

/// Far enough for 29 February across a year 2100 that has none.
const DAYS: u32 = 9 * 366;

const MONTHS: &[&str] = &[
    "jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec",
];
const WEEKDAYS: &[&str] = &["sun", "mon", "tue", "wed", "thu", "fri", "sat"];

/// Times that a cron expression names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Cron {
    minutes: Set,
    hours: Set,
    days: Set,
    months: Set,
    weekdays: Set,
    /// Whether one of the two day fields is enough.
    either_day: bool,
}

/// A text that is no cron expression, or names no time at all.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{expression}` is no cron expression: {reason}")]
pub struct InvalidCron {
    expression: String,
    reason: String,
}

/// Small numbers, as bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Set(u64);

impl Set {
    fn add(&mut self, number: u8) {
        self.0 |= 1 << number.min(63);
    }

    const fn has(self, number: u8) -> bool {
        number < 64 && self.0 & (1 << number) != 0
    }

    fn first_from(self, number: u8, last: u8) -> Option<u8> {
        (number..=last).find(|number| self.has(*number))
    }
}

/// What a field may say.
struct Field {
    name: &'static str,
    range: (u8, u8),
    names: &'static [&'static str],
}

impl Field {
    const fn new(name: &'static str, range: (u8, u8), names: &'static [&'static str]) -> Self {
        Self { name, range, names }
    }

    fn parse(&self, text: &str) -> Result<Set, String> {
        let mut set = Set::default();
        for part in text.split(',') {
            let (range, step) = match part.split_once('/') {
                None => (part, None),
                Some((range, step)) => (range, Some(self.step(step)?)),
            };
            let (from, to) = if range == "*" {
                self.range
            } else if let Some((from, to)) = range.split_once('-') {
                (self.number(from)?, self.number(to)?)
            } else {
                let from = self.number(range)?;
                // `5/15` is every 15th from the 5th on.
                let to = step.map_or(from, |_| self.range.1);
                (from, to)
            };
            if from > to {
                return Err(format!("`{part}` ends before it begins in {}", self.name));
            }
            let step = usize::from(step.unwrap_or(1));
            (from..=to).step_by(step).for_each(|number| set.add(number));
        }
        Ok(set)
    }

    fn step(&self, text: &str) -> Result<u8, String> {
        let step = digits(text).filter(|step| *step > 0);
        step.ok_or_else(|| format!("`{text}` is no step in {}", self.name))
    }

    fn number(&self, text: &str) -> Result<u8, String> {
        let (least, most) = self.range;
        let named = self
            .names
            .iter()
            .zip(least..)
            .find(|(name, _)| name.eq_ignore_ascii_case(text))
            .map(|(_, number)| number);
        named
            .or_else(|| digits(text))
            .filter(|number| (least..=most).contains(number))
            .ok_or_else(|| {
                let name = self.name;
                format!("`{text}` in {name} is not one of {least} to {most}")
            })
    }
}

/// A number without the sign that `parse` would take.
fn digits(text: &str) -> Option<u8> {
    let plain = text.bytes().all(|byte| byte.is_ascii_digit());
    plain.then(|| text.parse().ok()).flatten()
}

impl FromStr for Cron {
    type Err = InvalidCron;

    fn from_str(expression: &str) -> Result<Self, InvalidCron> {
        let invalid = |reason: String| InvalidCron {
            expression: expression.to_owned(),
            reason,
        };
        let cron = parse(expression).map_err(invalid)?;
        if cron.after(OffsetDateTime::UNIX_EPOCH).is_none() {
            return Err(invalid("no day is ever like this".to_owned()));
        }
        Ok(cron)
    }
}

fn parse(expression: &str) -> Result<Cron, String> {
    let expression = match expression.trim() {
        "@hourly" => "0 * * * *",
        "@daily" | "@midnight" => "0 0 * * *",
        "@weekly" => "0 0 * * 0",
        "@monthly" => "0 0 1 * *",
        "@yearly" | "@annually" => "0 0 1 1 *",
        expression => expression,
    };
    let fields: Vec<&str> = expression.split_ascii_whitespace().collect();
    let &[minute, hour, day, month, weekday] = fields.as_slice() else {
        return Err(format!("it has {} fields instead of 5", fields.len()));
    };
    let mut weekdays = Field::new("day of week", (0, 7), WEEKDAYS).parse(weekday)?;
    if weekdays.has(7) {
        weekdays.add(0);
    }
    Ok(Cron {
        minutes: Field::new("minute", (0, 59), &[]).parse(minute)?,
        hours: Field::new("hour", (0, 23), &[]).parse(hour)?,
        days: Field::new("day of month", (1, 31), &[]).parse(day)?,
        months: Field::new("month", (1, 12), MONTHS).parse(month)?,
        weekdays,
        either_day: !day.starts_with('*') && !weekday.starts_with('*'),
    })
}

impl Cron {
    /// The first time after `time`; `None` only where the calendar ends.
    pub(super) fn after(&self, time: OffsetDateTime) -> Option<OffsetDateTime> {
        let next = time
            .to_offset(UtcOffset::UTC)
            .checked_add(Duration::minutes(1))?;
        let mut date = next.date();
        let mut from = (next.hour(), next.minute());
        for _ in 0..DAYS {
            if self.is_day(date)
                && let Some((hour, minute)) = self.time_from(from)
            {
                return Some(date.with_hms(hour, minute, 0).ok()?.assume_utc());
            }
            date = date.next_day()?;
            from = (0, 0);
        }
        None
    }

    fn is_day(&self, date: Date) -> bool {
        let day = self.days.has(date.day());
        let weekday = self.weekdays.has(date.weekday().number_days_from_sunday());
        let matches = if self.either_day {
            day || weekday
        } else {
            day && weekday
        };
        matches && self.months.has(u8::from(date.month()))
    }

    /// The first hour and minute of a day, not before `from`.
    fn time_from(&self, (hour, minute): (u8, u8)) -> Option<(u8, u8)> {
        if self.hours.has(hour)
            && let Some(minute) = self.minutes.first_from(minute, 59)
        {
            return Some((hour, minute));
        }
        let hour = self.hours.first_from(hour + 1, 23)?;
        Some((hour, self.minutes.first_from(0, 59)?))
    }
}

#[cfg(test)]
mod tests {
    use time::macros::datetime;

    use super::*;

    fn cron(expression: &str) -> Cron {
        expression.parse().unwrap()
    }

    fn following(expression: &str, from: OffsetDateTime, times: usize) -> Vec<OffsetDateTime> {
        let cron = cron(expression);
        std::iter::successors(cron.after(from), |time| cron.after(*time))
            .take(times)
            .collect()
    }

    #[test]
    fn the_next_time_is_the_first_that_matches() {
        let from = datetime!(2026-11-15 14:07:31 UTC); // A Sunday.
        for (expression, next) in [
            ("* * * * *", datetime!(2026-11-15 14:08 UTC)),
            ("*/15 * * * *", datetime!(2026-11-15 14:15 UTC)),
            ("7 * * * *", datetime!(2026-11-15 15:07 UTC)),
            ("5/20 * * * *", datetime!(2026-11-15 14:25 UTC)),
            ("30 3 * * *", datetime!(2026-11-16 03:30 UTC)),
            ("0 9-17/4 * * *", datetime!(2026-11-15 17:00 UTC)),
            ("0 9 * * MON-FRI", datetime!(2026-11-16 09:00 UTC)),
            ("0 20 * * 7", datetime!(2026-11-15 20:00 UTC)),
            ("0 20 * * 0", datetime!(2026-11-15 20:00 UTC)),
            ("0 0 1 jan,Jul *", datetime!(2027-01-01 00:00 UTC)),
            ("0 0 31 * *", datetime!(2026-12-31 00:00 UTC)),
            ("0 0 29 2 *", datetime!(2028-02-29 00:00 UTC)),
            ("@hourly", datetime!(2026-11-15 15:00 UTC)),
            ("@weekly", datetime!(2026-11-22 00:00 UTC)),
            ("59 23 31 12 *", datetime!(2026-12-31 23:59 UTC)),
        ] {
            assert_eq!(cron(expression).after(from), Some(next), "{expression}");
        }
    }

    #[test]
    fn a_time_that_matches_is_not_its_own_next() {
        let noon = datetime!(2026-11-15 12:00 UTC);
        let tomorrow = datetime!(2026-11-16 12:00 UTC);
        assert_eq!(cron("0 12 * * *").after(noon), Some(tomorrow));
        let just_before = noon - Duration::nanoseconds(1);
        assert_eq!(cron("0 12 * * *").after(just_before), Some(noon));
    }

    #[test]
    fn with_both_days_given_either_is_enough_and_with_a_star_both_must_match() {
        let from = datetime!(2026-11-01 00:00 UTC);
        assert_eq!(
            following("0 0 13 * FRI", from, 3),
            [
                datetime!(2026-11-06 00:00 UTC),
                datetime!(2026-11-13 00:00 UTC),
                datetime!(2026-11-20 00:00 UTC),
            ]
        );
        // Odd days that are Mondays.
        assert_eq!(
            following("0 0 */2 * MON", from, 2),
            [
                datetime!(2026-11-09 00:00 UTC),
                datetime!(2026-11-23 00:00 UTC)
            ]
        );
    }

    #[test]
    fn leap_days_are_found_across_a_century_without_one() {
        let from = datetime!(2096-03-01 00:00 UTC);
        let next = datetime!(2104-02-29 00:00 UTC);
        assert_eq!(cron("0 0 29 2 *").after(from), Some(next));
    }

    #[test]
    fn every_minute_of_a_year_agrees_with_the_definition() {
        let cron = cron("13,47 */5 1-7 * 3");
        let mut time = datetime!(2027-01-01 00:00 UTC);
        let mut next = cron.after(time - Duration::minutes(1)).unwrap();
        let end = datetime!(2028-01-01 00:00 UTC);
        while time < end {
            let matches = [13, 47].contains(&time.minute())
                && time.hour() % 5 == 0
                && (time.day() <= 7 || time.weekday() == time::Weekday::Wednesday);
            assert_eq!(matches, time == next, "{time}");
            if matches {
                next = cron.after(time).unwrap();
            }
            time += Duration::minutes(1);
        }
    }

    #[test]
    fn what_is_no_expression_says_why() {
        for (expression, why) in [
            ("", "0 fields"),
            ("* * * *", "4 fields"),
            ("* * * * * *", "6 fields"),
            ("60 * * * *", "minute"),
            ("* 24 * * *", "hour"),
            ("* * 0 * *", "day of month"),
            ("* * * 13 *", "month"),
            ("* * * * 8", "day of week"),
            ("*/0 * * * *", "no step"),
            ("*/x * * * *", "no step"),
            ("+5 * * * *", "minute"),
            ("1,,2 * * * *", "minute"),
            ("9-3 * * * *", "ends before it begins"),
            ("- * * * *", "minute"),
            ("* * * * mond", "day of week"),
            ("0 0 30 2 *", "no day is ever like this"),
            ("0 0 31 4,6,9,11 *", "no day is ever like this"),
            ("@sometimes", "1 fields"),
        ] {
            let error = expression.parse::<Cron>().unwrap_err().to_string();
            assert!(error.contains(why), "{expression}: {error}");
        }
    }
}
