//! Times on the wire: RFC 3339, UTC, always six fraction digits and `Z`.
//!
//! A fixed width keeps answers byte for byte the same when they are replayed, and lets
//! clients compare them as text. Use with `#[serde(with = "timestamp")]`.

use serde::{Deserialize, Deserializer, Serializer};
use time::format_description::BorrowedFormatItem;
use time::format_description::well_known::Rfc3339;
use time::macros::format_description;
use time::{OffsetDateTime, UtcOffset};

const FORMAT: &[BorrowedFormatItem<'_>] =
    format_description!("[year]-[month]-[day]T[hour]:[minute]:[second].[subsecond digits:6]Z");

/// `at` as it goes over the wire.
///
/// # Errors
/// When the year has more than four digits.
pub fn format(at: OffsetDateTime) -> Result<String, time::error::Format> {
    at.to_offset(UtcOffset::UTC).format(FORMAT)
}

/// Writes a time.
///
/// # Errors
/// As [`format()`].
pub fn serialize<S: Serializer>(at: &OffsetDateTime, serializer: S) -> Result<S::Ok, S::Error> {
    let text = format(*at).map_err(serde::ser::Error::custom)?;
    serializer.serialize_str(&text)
}

/// Reads any RFC 3339 time.
///
/// # Errors
/// When the text is not one.
pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<OffsetDateTime, D::Error> {
    let text = String::deserialize(deserializer)?;
    parse(&text).map_err(serde::de::Error::custom)
}

/// Reads any RFC 3339 time, as UTC.
///
/// # Errors
/// When the text is not one, or is one that the calendar does not have in UTC.
pub fn parse(text: &str) -> Result<OffsetDateTime, NoTime> {
    let parsed = OffsetDateTime::parse(text, &Rfc3339).ok();
    parsed
        .and_then(|at| at.checked_to_offset(UtcOffset::UTC))
        .ok_or(NoTime)
}

/// A text that is no time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it is not an RFC 3339 time")]
pub struct NoTime;

/// The same for a time that may be missing. Use with `#[serde(with = "timestamp::option")]`.
pub mod option {
    use serde::{Deserialize, Deserializer, Serializer};
    use time::OffsetDateTime;

    /// Writes a time or null.
    ///
    /// # Errors
    /// As [`format()`](super::format).
    pub fn serialize<S: Serializer>(
        at: &Option<OffsetDateTime>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        match at {
            Some(at) => super::serialize(at, serializer),
            None => serializer.serialize_none(),
        }
    }

    /// Reads a time or null.
    ///
    /// # Errors
    /// When the text is not RFC 3339.
    pub fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<OffsetDateTime>, D::Error> {
        let text = Option::<String>::deserialize(deserializer)?;
        text.map(|text| super::parse(&text))
            .transpose()
            .map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use time::macros::datetime;

    use super::*;

    #[test]
    fn a_time_has_six_fraction_digits_and_a_z_whatever_its_offset() {
        let at = datetime!(2026-11-15 12:00:00.12 +9);
        assert_eq!(format(at).unwrap(), "2026-11-15T03:00:00.120000Z");
    }

    #[test]
    fn a_time_that_utc_does_not_have_is_refused_and_not_a_panic() {
        assert_eq!(parse("9999-12-31T23:59:59-01:00"), Err(NoTime));
        assert_eq!(parse("soon"), Err(NoTime));
        let noon = datetime!(2026-11-15 12:00 UTC);
        assert_eq!(parse("2026-11-15T13:00:00+01:00"), Ok(noon));
    }
}
