//! A row of the library's own log.

use sqlx::FromRow;
use time::OffsetDateTime;

/// What is appended to the library's own log ([`Log::new`](super::Log::new)).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub(super) kind: String,
    pub(super) key: Option<String>,
    pub(super) payload: Vec<u8>,
    pub(super) traceparent: Option<String>,
}

impl Entry {
    /// An entry of this kind.
    #[must_use]
    pub fn new(kind: impl Into<String>, payload: impl Into<Vec<u8>>) -> Self {
        Self {
            kind: kind.into(),
            key: None,
            payload: payload.into(),
            traceparent: None,
        }
    }

    /// What it is about.
    #[must_use]
    pub fn key(mut self, key: impl Into<String>) -> Self {
        self.key = Some(key.into());
        self
    }

    /// The trace that it belongs to.
    #[must_use]
    pub fn traceparent(mut self, traceparent: impl Into<String>) -> Self {
        self.traceparent = Some(traceparent.into());
        self
    }

    /// PostgreSQL has no text with a NUL in it.
    pub(super) fn is_sound(&self) -> bool {
        let texts = [
            Some(&self.kind),
            self.key.as_ref(),
            self.traceparent.as_ref(),
        ];
        !texts.into_iter().flatten().any(|text| text.contains('\0'))
    }
}

/// An entry as it is read.
#[derive(Clone, Debug, PartialEq, Eq, FromRow)]
#[non_exhaustive]
pub struct Read {
    /// What kind of entry it is.
    pub kind: String,
    /// What it is about.
    pub key: Option<String>,
    /// What it says.
    pub payload: Vec<u8>,
    /// The trace that it belongs to.
    pub traceparent: Option<String>,
    /// When its transaction began, by the database's clock.
    pub appended_at: OffsetDateTime,
}
