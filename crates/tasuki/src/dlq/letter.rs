//! What is told about letters.

use std::time::Duration;

use sqlx::FromRow;
use time::OffsetDateTime;
use uuid::Uuid;

use super::{Cursor, State};

crate::typed_ids! {
    /// One dead letter: one death of one row.
    LetterId;
}

/// One death of one row.
#[derive(Clone, Debug, PartialEq, Eq, FromRow)]
#[non_exhaustive]
pub struct Letter {
    /// Names the letter.
    #[sqlx(rename = "letter_id")]
    pub id: LetterId,
    /// The table that the row died in.
    pub source: String,
    /// Its key there.
    pub source_id: Uuid,
    /// The queue, or where the row was to go.
    pub queue: String,
    /// The kind of job, or the type of event.
    pub kind: String,
    /// The payload; in a list, the beginning of it.
    pub payload: Vec<u8>,
    /// How long the whole payload is, in bytes.
    #[sqlx(try_from = "i32")]
    pub payload_size: u32,
    /// What it died of.
    pub error: String,
    /// How often it was tried.
    #[sqlx(rename = "attempt_count", try_from = "i32")]
    pub attempts: u32,
    /// The trace that it belongs to.
    pub traceparent: Option<String>,
    /// When it died.
    pub failed_at: OffsetDateTime,
    /// When its row was put back.
    pub redriven_at: Option<OffsetDateTime>,
    /// When its row was given up.
    pub discarded_at: Option<OffsetDateTime>,
}

impl Letter {
    /// What has been done about it: open, redriven or discarded.
    #[must_use]
    pub fn state(&self) -> State {
        if self.discarded_at.is_some() {
            State::Discarded
        } else if self.redriven_at.is_some() {
            State::Redriven
        } else {
            State::Open
        }
    }
}

/// A page of letters.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Listed {
    /// The letters, the latest death first.
    pub letters: Vec<Letter>,
    /// Where the next page begins, if there is one.
    pub next: Option<Cursor>,
}

/// A letter and what has been done about its row.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Story {
    /// The letter, with its whole payload.
    pub letter: Letter,
    /// What people did about the row, also after earlier deaths of it; the first act first.
    pub trail: Vec<Audit>,
}

/// One act of one person on one letter.
#[derive(Clone, Debug, PartialEq, Eq, FromRow)]
#[non_exhaustive]
pub struct Audit {
    /// The letter.
    #[sqlx(rename = "letter_id")]
    pub letter: LetterId,
    /// What was done.
    #[sqlx(try_from = "String")]
    pub action: Action,
    /// By whom.
    pub actor: String,
    /// Why.
    pub reason: Option<String>,
    /// When.
    pub acted_at: OffsetDateTime,
}

/// What can be done about a letter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Action {
    /// Its row was put back.
    Redrive,
    /// Its row was given up.
    Discard,
}

impl Action {
    /// The action as it is stored.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Redrive => "REDRIVE",
            Self::Discard => "DISCARD",
        }
    }
}

impl TryFrom<String> for Action {
    type Error = UnknownAction;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        [Self::Redrive, Self::Discard]
            .into_iter()
            .find(|action| action.as_str() == text)
            .ok_or(UnknownAction(text))
    }
}

/// An action that a later release has written.
#[derive(Debug, thiserror::Error)]
#[error("`{0}` is not an action on a dead letter that this release knows")]
pub struct UnknownAction(String);

/// What a filter means, before anybody acts on it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Preview {
    /// The database's time of this answer. With it in
    /// [`failed_before`](super::Filter::failed_before), what dies from now on is left alone.
    pub as_of: OffsetDateTime,
    /// How many letters there are.
    pub count: u64,
    /// How many of them are open and can't be redriven: their row is not `FAILED` any more, or
    /// their source is not known here.
    pub stuck: u64,
    /// What they are, most letters first; the first hundred kinds.
    pub groups: Vec<Group>,
    /// The latest few.
    pub sample: Vec<Letter>,
}

/// Letters of one kind.
#[derive(Clone, Debug, PartialEq, Eq, FromRow)]
#[non_exhaustive]
pub struct Group {
    /// The table that the rows died in.
    pub source: String,
    /// The queue, or where the rows were to go.
    pub queue: String,
    /// The kind of job, or the type of event.
    pub kind: String,
    /// How many letters.
    #[sqlx(try_from = "i64")]
    pub letters: u64,
    /// The first death.
    pub first_at: OffsetDateTime,
    /// The last one.
    pub last_at: OffsetDateTime,
}

/// The open letters of one source.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Open {
    /// The table that the rows died in.
    pub source: String,
    /// How many; 10,000 means that many or more.
    pub letters: u64,
    /// How long ago the oldest of them died, by the database's clock.
    pub oldest: Duration,
}
