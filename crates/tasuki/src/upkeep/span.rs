//! Ranges of time, and which of them have no partition yet. Pure.

use std::time::Duration;

use time::OffsetDateTime;
use uuid::Uuid;

/// The range of one partition: from, included, to, excluded. `None` is without end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) from: Option<OffsetDateTime>,
    pub(super) to: Option<OffsetDateTime>,
}

impl Span {
    /// Whether it holds moments on both sides of `at`.
    pub(super) fn reaches_over(&self, at: OffsetDateTime) -> bool {
        self.from.is_none_or(|from| from < at) && self.to.is_none_or(|to| at < to)
    }

    fn covers(&self, at: OffsetDateTime) -> bool {
        self.from.is_none_or(|from| from <= at) && self.to.is_none_or(|to| at < to)
    }
}

/// How much time one partition holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Width {
    /// Ranges begin at multiples of this since 1970: midnight UTC for days.
    Fixed(Duration),
    /// A month of the calendar, in UTC.
    Month,
}

impl Width {
    /// As long as any partition is.
    pub(super) const fn longest(self) -> Duration {
        match self {
            Self::Fixed(width) => width,
            Self::Month => Duration::from_secs(31 * 24 * 60 * 60),
        }
    }

    /// The last beginning of a range at or before `at`.
    fn floor(self, at: OffsetDateTime) -> OffsetDateTime {
        match self {
            Self::Fixed(width) => {
                let seconds = at.unix_timestamp();
                let width = i64::try_from(width.as_secs()).unwrap_or(i64::MAX).max(1);
                let start = seconds - seconds.rem_euclid(width);
                OffsetDateTime::from_unix_timestamp(start).unwrap_or(OffsetDateTime::UNIX_EPOCH)
            }
            Self::Month => {
                let at = at.to_offset(time::UtcOffset::UTC);
                let first = at.replace_day(1).unwrap_or(at);
                first.replace_time(time::Time::MIDNIGHT)
            }
        }
    }

    /// The end of the range that begins at `start`.
    fn end(self, start: OffsetDateTime) -> OffsetDateTime {
        let end = start.saturating_add(span_of(self.longest()));
        match self {
            Self::Fixed(_) => end,
            // A month and up to three days after its first: the first of the next one.
            Self::Month => self.floor(end),
        }
    }
}

/// A range that a partition is to be made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Missing {
    pub(super) from: OffsetDateTime,
    pub(super) to: OffsetDateTime,
}

/// The first range at or after `cursor` and before `until` that none of `spans` covers.
///
/// Where partitions of another width are in the way, the range is cut to what is free.
pub(super) fn first_missing(
    spans: &[Span],
    cursor: OffsetDateTime,
    until: OffsetDateTime,
    width: Width,
) -> Option<Missing> {
    let mut start = width.floor(cursor);
    let mut at = cursor;
    while at < until {
        // The last partition that ends at or before here; what it holds is not free.
        let before = spans.iter().filter_map(|span| span.to);
        let free_from = before
            .filter(|to| *to <= at)
            .fold(start, OffsetDateTime::max);
        if let Some(covering) = spans.iter().find(|span| span.covers(at)) {
            at = covering.to?;
            start = width.floor(at);
            continue;
        }
        let after = spans.iter().filter_map(|span| span.from);
        let free_to = after
            .filter(|from| *from > at)
            .fold(width.end(start), OffsetDateTime::min);
        return Some(Missing {
            from: free_from,
            to: free_to,
        });
    }
    None
}

/// Up to when every moment from `now` on has a partition.
pub(super) fn covered_until(spans: &[Span], now: OffsetDateTime) -> OffsetDateTime {
    let mut at = now;
    while let Some(covering) = spans.iter().find(|span| span.covers(at)) {
        match covering.to {
            Some(to) => at = to,
            None => break,
        }
    }
    at
}

/// `duration` as the calendar adds it.
pub(super) fn span_of(duration: Duration) -> time::Duration {
    time::Duration::try_from(duration).unwrap_or(time::Duration::MAX)
}

/// What distinguishes the partition that begins at `from` in the name of its table.
pub(super) fn suffix(from: OffsetDateTime) -> String {
    let (year, month, day) = from.to_calendar_date();
    let (hour, minute, _) = from.to_hms();
    let month = u8::from(month);
    format!("_p{year:04}{month:02}{day:02}{hour:02}{minute:02}")
}

/// The smallest `UUIDv7` of the millisecond `at`, and a little below: version and random bits
/// are zero, so that it is a bound that no id equals.
pub(super) fn uuid_from(at: OffsetDateTime) -> Uuid {
    let millis = at.unix_timestamp_nanos() / 1_000_000;
    let millis = u64::try_from(millis).unwrap_or(0) & 0xFFFF_FFFF_FFFF;
    Uuid::from_u128(u128::from(millis) << 80)
}

/// The time inside a bound made by [`uuid_from`]; the end of the calendar for what is beyond.
pub(super) fn time_of(bound: Uuid) -> OffsetDateTime {
    let millis = i128::try_from(bound.as_u128() >> 80).unwrap_or(i128::MAX);
    OffsetDateTime::from_unix_timestamp_nanos(millis.saturating_mul(1_000_000))
        .unwrap_or(time::PrimitiveDateTime::MAX.assume_utc())
}

#[cfg(test)]
mod tests {
    use time::macros::datetime;

    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);
    const HOURLY: Width = Width::Fixed(HOUR);
    const NOW: OffsetDateTime = datetime!(2026-11-15 14:25 UTC);

    fn span(from: OffsetDateTime, to: OffsetDateTime) -> Span {
        Span {
            from: Some(from),
            to: Some(to),
        }
    }

    /// Makes what is missing until nothing is, and says what was made.
    fn fill(spans: &mut Vec<Span>, until: OffsetDateTime, width: Width) -> Vec<Missing> {
        let mut made = Vec::new();
        while let Some(missing) = first_missing(spans, NOW, until, width) {
            assert!(
                made.len() < 1000 && missing.from < missing.to,
                "{missing:?}"
            );
            made.push(missing);
            spans.push(span(missing.from, missing.to));
        }
        made
    }

    #[test]
    fn partitions_begin_at_whole_widths_and_leave_no_gap() {
        let made = fill(&mut Vec::new(), NOW + 3 * HOUR, HOURLY);
        assert_eq!(made.len(), 4);
        assert_eq!(made[0].from, datetime!(2026-11-15 14:00 UTC));
        assert!(made.windows(2).all(|pair| pair[0].to == pair[1].from));
        assert_eq!(made[3].to, datetime!(2026-11-15 18:00 UTC));

        let day = fill(&mut Vec::new(), NOW, Width::Fixed(24 * HOUR));
        assert!(day.is_empty(), "nothing is wanted beyond now");
    }

    #[test]
    fn months_are_those_of_the_calendar() {
        let made = fill(
            &mut Vec::new(),
            datetime!(2027-04-01 0:00 UTC),
            Width::Month,
        );
        let firsts: Vec<_> = made.iter().map(|month| suffix(month.from)).collect();
        let wanted = ["202611", "202612", "202701", "202702", "202703"];
        assert_eq!(firsts, wanted.map(|month| format!("_p{month}010000")));
        assert!(made.windows(2).all(|pair| pair[0].to == pair[1].from));
        assert_eq!(made[4].to, datetime!(2027-04-01 0:00 UTC));
    }

    #[test]
    fn partitions_of_another_width_are_filled_around() {
        let mut spans = vec![
            span(
                datetime!(2026-11-14 00:00 UTC),
                datetime!(2026-11-15 14:10 UTC),
            ),
            span(
                datetime!(2026-11-15 15:30 UTC),
                datetime!(2026-11-15 16:45 UTC),
            ),
        ];
        let made = fill(&mut spans, NOW + 3 * HOUR, HOURLY);
        let ranges: Vec<_> = made.iter().map(|range| (range.from, range.to)).collect();
        assert_eq!(
            ranges,
            [
                (
                    datetime!(2026-11-15 14:10 UTC),
                    datetime!(2026-11-15 15:00 UTC)
                ),
                (
                    datetime!(2026-11-15 15:00 UTC),
                    datetime!(2026-11-15 15:30 UTC)
                ),
                (
                    datetime!(2026-11-15 16:45 UTC),
                    datetime!(2026-11-15 17:00 UTC)
                ),
                (
                    datetime!(2026-11-15 17:00 UTC),
                    datetime!(2026-11-15 18:00 UTC)
                ),
            ]
        );
        assert_eq!(covered_until(&spans, NOW), datetime!(2026-11-15 18:00 UTC));
    }

    #[test]
    fn what_has_no_end_leaves_nothing_to_make() {
        let all = Span {
            from: None,
            to: None,
        };
        assert_eq!(first_missing(&[all], NOW, NOW + HOUR, HOURLY), None);
        assert_eq!(covered_until(&[all], NOW), NOW);
    }

    #[test]
    fn ranges_of_random_partitions_never_overlap_and_cover_all() {
        let mut random = fastrand::Rng::with_seed(3);
        for _ in 0..100 {
            let mut spans = Vec::new();
            let mut at = NOW - 4 * HOUR;
            while at < NOW + 9 * HOUR {
                let to = at + Duration::from_secs(60 * random.u64(1..200));
                if random.bool() {
                    spans.push(span(at, to));
                }
                at = to;
            }
            let width = match random.u64(0..300) {
                0 => Width::Month,
                minutes => Width::Fixed(Duration::from_secs(60 * minutes)),
            };
            let until = NOW + 6 * HOUR;
            fill(&mut spans, until, width);
            assert!(covered_until(&spans, NOW) >= until);
            spans.sort_by_key(|span| span.from);
            assert!(spans.windows(2).all(|pair| pair[0].to <= pair[1].from));
        }
    }

    #[test]
    fn names_say_the_minute() {
        assert_eq!(suffix(NOW), "_p202611151425");
    }

    #[test]
    fn bounds_of_ids_are_bounds_of_their_time() {
        let bound = uuid_from(NOW);
        assert_eq!(time_of(bound), NOW);
        let id_at = |time: OffsetDateTime, random| {
            let millis = u64::try_from(time.unix_timestamp_nanos() / 1_000_000).unwrap();
            uuid::Builder::from_unix_timestamp_millis(millis, &[random; 10]).into_uuid()
        };
        assert!(id_at(NOW, 0) > bound);
        assert!(id_at(NOW - Duration::from_millis(1), 255) < bound);
        assert_eq!(time_of(Uuid::max()).year(), 9999);
    }
}
