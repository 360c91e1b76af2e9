//! A definition as it is written down by the engines that run it: for people, whose processes have none
//! of its code.

use std::time::Duration;

use sqlx::postgres::PgRow;
use sqlx::{FromRow, Row};
use time::OffsetDateTime;

use super::define::Shape;

/// A definition that an engine runs, or has run, in this schema.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Outline {
    /// Its name.
    pub definition: String,
    /// Its version.
    pub version: u32,
    /// Its steps, in their order: also those that a saga has still before it.
    pub steps: Vec<Shape>,
    /// How long a saga may take until its pivot.
    pub timeout: Option<Duration>,
    /// When an engine that runs it was last started.
    pub started_at: OffsetDateTime,
    pub(super) fingerprint: String,
}

impl Outline {
    /// Where a step stands.
    pub(super) fn place(&self, name: &str) -> Option<(usize, &Shape)> {
        let mut steps = self.steps.iter().enumerate();
        steps.find(|(_, shape)| shape.name == name)
    }
}

impl FromRow<'_, PgRow> for Outline {
    fn from_row(row: &PgRow) -> sqlx::Result<Self> {
        let (version, steps): (i32, &str) = (row.try_get("version")?, row.try_get("steps")?);
        let timeout: Option<f64> = row.try_get("timeout_seconds")?;
        let timeout = timeout.map(Duration::try_from_secs_f64).transpose();
        Ok(Self {
            definition: row.try_get("definition")?,
            version: u32::try_from(version).unwrap_or_default(),
            steps: serde_json::from_str(steps)
                .map_err(|error| sqlx::Error::Decode(error.into()))?,
            timeout: timeout.map_err(|error| sqlx::Error::Decode(error.into()))?,
            started_at: row.try_get("started_at")?,
            fingerprint: row.try_get("fingerprint")?,
        })
    }
}
