//! What to keep up, and for how long.

use std::time::Duration;

use super::Error;
use super::span::Width;

const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(60 * 60);
const DAY: Duration = Duration::from_secs(24 * 60 * 60);
/// "For ever", in terms that a database's calendar can still subtract.
const LONGEST: Duration = Duration::from_secs(1000 * 365 * 24 * 60 * 60);
/// What `_p202611151400` leaves of the 63 bytes of an identifier, and a little more.
const NAME_LIMIT: usize = 48;

/// What partitions of a table are ranges of.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum By {
    /// The time in this `timestamptz` column.
    Time(String),
    /// The time inside the `UUIDv7` values of one column.
    UuidV7 {
        /// The column of ids.
        id: String,
        /// The `timestamptz` column that says how old a row really is: an id comes from another
        /// clock, may be of another make, and may be recorded long after it was made.
        at: String,
    },
}

/// A table partitioned by range, with a DEFAULT partition.
///
/// By default partitions are a day wide, kept for 30 days, and made 3 widths ahead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Partitioned {
    pub(super) table: String,
    pub(super) by: By,
    pub(super) width: Width,
    pub(super) keep: Duration,
    pub(super) ahead: u32,
    /// The sequenced log that its rows are, if they are one.
    pub(super) log: Option<String>,
}

impl Partitioned {
    /// `table`, partitioned by ranges of the `timestamptz` in `column`.
    #[must_use]
    pub fn by_time(table: impl Into<String>, column: impl Into<String>) -> Self {
        Self::new(table.into(), By::Time(column.into()))
    }

    /// `table`, partitioned by ranges of the `UUIDv7` in `id`; the `timestamptz` in `at` says how
    /// old a row is.
    #[must_use]
    pub fn by_uuid_v7(
        table: impl Into<String>,
        id: impl Into<String>,
        at: impl Into<String>,
    ) -> Self {
        let (id, at) = (id.into(), at.into());
        Self::new(table.into(), By::UuidV7 { id, at })
    }

    fn new(table: String, by: By) -> Self {
        Self {
            table,
            by,
            width: Width::Fixed(DAY),
            keep: 30 * DAY,
            ahead: 3,
            log: None,
        }
    }

    /// How much time one partition holds, in whole minutes. Wider ones are fewer, and keep the
    /// oldest rows up to one width longer. Existing partitions stay as they are.
    #[must_use]
    pub const fn width(mut self, width: Duration) -> Self {
        self.width = Width::Fixed(width);
        self
    }

    /// One partition for each month of the calendar, in UTC.
    #[must_use]
    pub const fn monthly(mut self) -> Self {
        self.width = Width::Month;
        self
    }

    /// How long rows are kept.
    #[must_use]
    pub fn keep(mut self, keep: Duration) -> Self {
        self.keep = keep.min(LONGEST);
        self
    }

    /// How many widths ahead partitions are made; never less than a day.
    #[must_use]
    pub const fn ahead(mut self, widths: u32) -> Self {
        self.ahead = widths;
        self
    }

    /// Its rows are those of a sequenced log: the highest number that goes is written down with its
    /// row's end, so that a reader knows what is not there any more.
    pub(crate) fn sequenced(mut self, log: &str) -> Self {
        self.log = Some(log.to_owned());
        self
    }

    /// How far from now the last partition must reach.
    pub(super) fn horizon(&self) -> Duration {
        let width = self.width.longest();
        width.saturating_mul(self.ahead).clamp(DAY, LONGEST)
    }

    /// The column that a row is in a partition by.
    pub(super) fn key(&self) -> &str {
        match &self.by {
            By::Time(column) => column,
            By::UuidV7 { id, .. } => id,
        }
    }

    /// The column that says how old a row is.
    pub(super) fn at(&self) -> &str {
        match &self.by {
            By::Time(column) => column,
            By::UuidV7 { at, .. } => at,
        }
    }

    pub(super) fn check(&self) -> Result<(), Error> {
        check_names([&*self.table, self.key(), self.at()])?;
        let Width::Fixed(width) = self.width else {
            return Ok(());
        };
        let whole = width.subsec_nanos() == 0 && width.as_secs().is_multiple_of(60);
        if whole && width >= MINUTE && width <= LONGEST {
            return Ok(());
        }
        Err(Error::Width {
            table: self.table.clone(),
            width,
        })
    }
}

/// A table whose old rows are deleted one by one, in small batches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expiring {
    pub(super) table: String,
    pub(super) column: String,
    pub(super) keep: Duration,
    pub(super) only: Option<&'static str>,
}

impl Expiring {
    /// `table`, whose rows go when the `timestamptz` in `column` has passed. An index on that
    /// column finds them.
    #[must_use]
    pub fn new(table: impl Into<String>, column: impl Into<String>) -> Self {
        Self {
            table: table.into(),
            column: column.into(),
            keep: Duration::ZERO,
            only: None,
        }
    }

    /// Keeps rows for this long after that time.
    #[must_use]
    pub fn keep(mut self, keep: Duration) -> Self {
        self.keep = keep.min(LONGEST);
        self
    }

    /// Only rows for which this SQL condition holds too. In it, `$1` is the time that
    /// everything older than it goes.
    #[must_use]
    pub const fn only(mut self, condition: &'static str) -> Self {
        self.only = Some(condition);
        self
    }

    pub(super) fn check(&self) -> Result<(), Error> {
        check_names([&*self.table, &*self.column])
    }
}

fn check_names<'a>(names: impl IntoIterator<Item = &'a str>) -> Result<(), Error> {
    for name in names {
        let plain = name
            .bytes()
            .all(|b| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'_'));
        let starts_well = name.bytes().next().is_some_and(|b| !b.is_ascii_digit());
        if !(plain && starts_well && name.len() <= NAME_LIMIT) {
            return Err(Error::Name(name.to_owned()));
        }
    }
    Ok(())
}

/// The library's own partitioned tables.
pub(super) fn library_partitioned() -> [Partitioned; 7] {
    [
        Partitioned::by_time("outbox_published", "published_at")
            .width(HOUR)
            .keep(DAY),
        Partitioned::by_time("jobs_done", "finished_at").keep(7 * DAY),
        Partitioned::by_uuid_v7("processed_events", "event_id", "processed_at"),
        Partitioned::by_time("stories", "recorded_at"),
        // An action whose row is gone could not be undone any more: its saga would be told that it
        // never was. So they are kept for longer than a saga may wait for anything.
        Partitioned::by_uuid_v7("barriers", "saga_id", "changed_at")
            .monthly()
            .keep(400 * DAY),
        Partitioned::by_time("sagas_done", "finished_at"),
        Partitioned::by_time("seqlog_entries", "numbered_at").sequenced("seqlog_entries"),
    ]
}

/// The library's own tables that are swept by row.
pub(super) fn library_expiring() -> [Expiring; 5] {
    [
        Expiring::new("idempotency_keys", "expires_at"),
        Expiring::new("job_uniques", "unique_until"),
        // What was said to a saga goes with it; this is what came as it ended.
        Expiring::new("saga_signals", "sent_at").keep(365 * DAY),
        // Thirty days after it was closed, whenever it had failed. The first condition is the
        // index's own.
        Expiring::new("dead_letters", "failed_at")
            .keep(30 * DAY)
            .only(
                "(redriven_at IS NOT NULL OR discarded_at IS NOT NULL)
                 AND GREATEST(redriven_at, discarded_at) < $1",
            ),
        // Who was written off may come back and must be told how it ended.
        Expiring::new("twopc_finished", "finished_at")
            .keep(30 * DAY)
            .only("NOT written_off"),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rules_of_the_library_pass_their_own_check() {
        for rule in library_partitioned() {
            rule.check().unwrap();
            assert!(rule.horizon() >= DAY && rule.horizon() >= 3 * rule.width.longest());
        }
        for rule in library_expiring() {
            rule.check().unwrap();
        }
    }

    #[test]
    fn names_that_could_leave_their_place_are_refused() {
        let long = "x".repeat(49);
        for name in ["", "1a", "A", "a b", "a\"b", "a;b", "a.b", &long] {
            let by_time = Partitioned::by_time(name, "at").check();
            assert!(matches!(by_time, Err(Error::Name(_))), "{name}");
            let by_id = Partitioned::by_uuid_v7("audit", "id", name).check();
            assert!(matches!(by_id, Err(Error::Name(_))), "{name}");
            let rows = Expiring::new("keys", name).check();
            assert!(matches!(rows, Err(Error::Name(_))), "{name}");
        }
    }

    #[test]
    fn widths_are_whole_minutes() {
        for width in [
            Duration::ZERO,
            Duration::from_secs(59),
            Duration::from_secs(90),
            Duration::new(60, 1),
            Duration::MAX,
        ] {
            let rule = Partitioned::by_time("audit", "at").width(width);
            assert!(
                matches!(rule.check(), Err(Error::Width { .. })),
                "{width:?}"
            );
        }
    }
}
