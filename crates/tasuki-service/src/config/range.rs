//! Values that have a range: whoever sets another is told the value and the range.

use std::fmt;
use std::ops::RangeInclusive;
use std::time::Duration;

use serde::Deserializer;
use serde::de::Error;

/// `value`, if it is in `range`.
///
/// # Errors
/// When it is not: the error names both.
pub fn within<T: PartialOrd + fmt::Debug, E: Error>(
    value: T,
    range: &RangeInclusive<T>,
) -> Result<T, E> {
    if range.contains(&value) {
        return Ok(value);
    }
    let (least, most) = (range.start(), range.end());
    Err(E::custom(format!(
        "{value:?} is not from {least:?} to {most:?}"
    )))
}

/// Reads a time such as `2s`, which has to be in `range`.
///
/// # Errors
/// When it is no time, or as [`within`].
pub fn time_within<'de, D: Deserializer<'de>>(
    deserializer: D,
    range: &RangeInclusive<Duration>,
) -> Result<Duration, D::Error> {
    within(humantime_serde::deserialize(deserializer)?, range)
}
