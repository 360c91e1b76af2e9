//! Which letters are meant, and which page of them.

use std::fmt;
use std::str::FromStr;

use time::OffsetDateTime;
use uuid::Uuid;

use super::{Error, Letter, LetterId};

/// The most letters on a page.
const PAGE_LIMIT: u32 = 1000;

/// Which letters are meant: those that fit everything that is set. The default means every
/// open letter.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// The table that the row died in.
    pub source: Option<String>,
    /// The queue, or where the row was to go.
    pub queue: Option<String>,
    /// The kind of job, or the type of event.
    pub kind: Option<String>,
    /// A part of the error, in any case.
    pub error: Option<String>,
    /// Died at this time or later.
    pub failed_after: Option<OffsetDateTime>,
    /// Died before this time.
    pub failed_before: Option<OffsetDateTime>,
    /// What has been done about it.
    pub state: State,
    /// These letters and no others.
    pub ids: Option<Vec<LetterId>>,
}

impl Filter {
    /// Every open letter.
    #[must_use]
    pub fn open() -> Self {
        Self::default()
    }

    /// These letters, whatever has been done about them.
    #[must_use]
    pub fn ids(ids: impl IntoIterator<Item = LetterId>) -> Self {
        Self {
            state: State::Any,
            ids: Some(ids.into_iter().collect()),
            ..Self::default()
        }
    }

    /// This letter, whatever has been done about it.
    #[must_use]
    pub fn id(id: LetterId) -> Self {
        Self::ids([id])
    }

    /// PostgreSQL has no text with a NUL in it; looking for one is a mistake, not an error of
    /// the database.
    pub(super) fn check(&self) -> Result<(), Error> {
        let texts = [
            ("source", &self.source),
            ("queue", &self.queue),
            ("kind", &self.kind),
            ("error", &self.error),
        ];
        for (what, text) in texts {
            if text.as_ref().is_some_and(|text| text.contains('\0')) {
                let rule = "without NUL characters";
                return Err(Error::Invalid { what, rule });
            }
        }
        Ok(())
    }
}

/// What has been done about a letter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum State {
    /// Nothing yet.
    #[default]
    Open,
    /// Its row was put back.
    Redriven,
    /// Its row was given up.
    Discarded,
    /// Whatever.
    Any,
}

impl State {
    /// The state in lower case, as the statements and the command line name it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Redriven => "redriven",
            Self::Discarded => "discarded",
            Self::Any => "any",
        }
    }
}

/// A page of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    letters: u32,
    pub(super) after: Option<Cursor>,
}

impl Page {
    /// The first `letters` (1 to 1000).
    #[must_use]
    pub fn first(letters: u32) -> Self {
        Self {
            letters: letters.clamp(1, PAGE_LIMIT),
            after: None,
        }
    }

    /// The page that begins after `cursor`, which [`Listed::next`](super::Listed::next) gave.
    #[must_use]
    pub fn after(mut self, cursor: Cursor) -> Self {
        self.after = Some(cursor);
        self
    }

    pub(super) fn letters(&self) -> usize {
        usize::try_from(self.letters).unwrap_or(usize::MAX)
    }

    /// One more than the page holds.
    pub(super) fn limit(&self) -> i64 {
        i64::from(self.letters) + 1
    }
}

/// Where a page ended. Its text form is made for links: `<microseconds>-<letter>`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cursor {
    pub(super) failed_at: OffsetDateTime,
    pub(super) id: LetterId,
}

/// A text that is no cursor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this is not the cursor of a page: take it from the page before")]
pub struct InvalidCursor;

impl Cursor {
    pub(super) fn at(letter: &Letter) -> Self {
        Self {
            failed_at: letter.failed_at,
            id: letter.id,
        }
    }
}

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // PostgreSQL's times have microseconds, so nothing is lost.
        let micros = self.failed_at.unix_timestamp_nanos() / 1000;
        write!(f, "{micros}-{}", self.id.as_uuid().simple())
    }
}

impl FromStr for Cursor {
    type Err = InvalidCursor;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (micros, id) = text.rsplit_once('-').ok_or(InvalidCursor)?;
        let micros: i64 = micros.parse().ok().ok_or(InvalidCursor)?;
        let failed_at = OffsetDateTime::from_unix_timestamp_nanos(i128::from(micros) * 1000)
            .ok()
            .ok_or(InvalidCursor)?;
        let id: Uuid = id.parse().ok().ok_or(InvalidCursor)?;
        Ok(Self {
            failed_at,
            id: id.into(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_survives_a_link() {
        let cursor = Cursor {
            failed_at: OffsetDateTime::from_unix_timestamp_nanos(1_763_215_200_123_456_000)
                .unwrap(),
            id: Uuid::from_u128(7).into(),
        };
        assert_eq!(cursor.to_string().parse(), Ok(cursor));
    }

    #[test]
    fn what_is_no_cursor_is_refused() {
        let far = format!("{}-{}", i64::MAX, Uuid::nil().simple());
        for text in [
            "",
            "-",
            "1",
            "1-x",
            "x-00000000000000000000000000000000",
            &far,
        ] {
            assert_eq!(text.parse::<Cursor>(), Err(InvalidCursor), "{text}");
        }
    }

    #[test]
    fn a_filter_with_a_nul_is_refused_before_the_database_sees_it() {
        let filter = Filter {
            kind: Some("a\0".into()),
            ..Filter::open()
        };
        assert!(matches!(
            filter.check(),
            Err(Error::Invalid { what: "kind", .. })
        ));
    }
}
