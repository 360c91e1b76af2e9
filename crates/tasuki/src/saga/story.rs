//! The story of a saga: everything that is known of it, as one value that is stored as one.
//!
//! What it says is decided in `plan`; here is how it is kept.

use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize};
use time::OffsetDateTime;

use super::json::Json;

/// The story, from its input to its end.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Story {
    pub(super) input: Json,
    /// The fingerprint of the definition that it began with.
    pub(super) shape: String,
    /// Those that have begun, in the order in which they did.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) steps: Vec<Entry>,
    #[serde(default, skip_serializing_if = "Direction::is_forward")]
    pub(super) direction: Direction,
    /// Why it turned back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) failure: Option<Failure>,
    /// Why it needs a person.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) stuck: Option<Failure>,
    /// How often a person has sent it back to steps that had been undone.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(super) round: u32,
    /// What people did, and why.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) notes: Vec<Note>,
    /// How it ended. In the row's state, and so not stored here.
    #[serde(skip)]
    pub(super) end: Option<End>,
}

/// Which way it goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Direction {
    #[default]
    Forward,
    Back,
}

/// How it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Completed,
    Compensated,
}

/// What went wrong, and where.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Failure {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) step: Option<String>,
    pub(super) reason: String,
}

/// What a person did.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Note {
    pub(super) what: String,
    pub(super) by: String,
    pub(super) reason: String,
    pub(super) at: Millis,
}

/// One step that has begun.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Entry {
    pub(super) name: String,
    pub(super) state: Progress,
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "something"
    )]
    pub(super) input: Option<Json>,
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "something"
    )]
    pub(super) output: Option<Json>,
    /// What went wrong last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) error: Option<String>,
    /// Attempts that failed.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(super) tries: u32,
    /// Attempts to undo it that failed.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(super) undo_tries: u32,
    /// The round of the story in which it began: part of its keys, also when a later round undoes it.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(super) round: u32,
    /// Of an earlier attempt nobody knows how it ended.
    #[serde(default, skip_serializing_if = "is_false")]
    pub(super) unsure: bool,
    /// Milliseconds, from when this was written, until it is tried again or its wait is over.
    #[serde(default, skip_serializing_if = "is_nothing")]
    pub(super) pause: u64,
    pub(super) begun_at: Millis,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) ended_at: Option<Millis>,
}

/// How far a step has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Progress {
    /// It is to be done: its call may be on its way.
    Begun,
    /// An attempt has failed, and another is to come.
    Resting,
    Done,
    /// Given up.
    Failed,
    Undone,
}

/// Milliseconds since 1970, by the clock of the process that wrote them: for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(super) struct Millis(pub(super) i64);

impl Millis {
    pub(super) fn of(time: OffsetDateTime) -> Self {
        let millis = time.unix_timestamp_nanos() / 1_000_000;
        Self(i64::try_from(millis).unwrap_or(i64::MAX))
    }

    pub(super) fn time(self) -> OffsetDateTime {
        let nanos = i128::from(self.0) * 1_000_000;
        OffsetDateTime::from_unix_timestamp_nanos(nanos).unwrap_or(OffsetDateTime::UNIX_EPOCH)
    }
}

/// A pause as it is kept; never shorter than it is.
pub(super) fn whole_millis(pause: Duration) -> u64 {
    u64::try_from(pause.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

impl Direction {
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks by reference")]
    fn is_forward(&self) -> bool {
        *self == Self::Forward
    }
}

impl End {
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Completed => "COMPLETED",
            Self::Compensated => "COMPENSATED",
        }
    }
}

impl Story {
    pub(super) fn new(input: Json, shape: &str) -> Self {
        Self {
            input,
            shape: shape.to_owned(),
            steps: Vec::new(),
            direction: Direction::Forward,
            failure: None,
            stuck: None,
            round: 0,
            notes: Vec::new(),
            end: None,
        }
    }

    pub(super) fn entry(&self, name: &str) -> Option<&Entry> {
        self.steps.iter().find(|entry| entry.name == name)
    }

    pub(super) fn entry_mut(&mut self, name: &str) -> Option<&mut Entry> {
        self.steps.iter_mut().find(|entry| entry.name == name)
    }

    /// How long a step still waits.
    pub(super) fn pause(&self, name: &str) -> Duration {
        let pause = self.entry(name).map_or(0, |entry| entry.pause);
        Duration::from_millis(pause)
    }

    /// So many milliseconds have passed.
    pub(super) fn age(&mut self, millis: u64) {
        for entry in &mut self.steps {
            entry.pause = entry.pause.saturating_sub(millis);
        }
    }

    pub(super) fn output(&self, name: &str) -> Option<&Json> {
        self.entry(name)
            .filter(|entry| entry.state == Progress::Done)
            .and_then(|entry| entry.output.as_ref())
    }

    /// What the row calls it.
    pub(super) fn state(&self) -> &'static str {
        match (self.end, &self.stuck, self.direction) {
            (Some(end), _, _) => end.as_str(),
            (None, Some(_), _) => "NEEDS_ATTENTION",
            (None, None, Direction::Back) => "COMPENSATING",
            (None, None, Direction::Forward) => "STARTED",
        }
    }

    /// The step that it has come to, or is undoing.
    pub(super) fn step(&self) -> Option<&str> {
        let current = match self.direction {
            Direction::Forward => self.steps.last(),
            Direction::Back => self
                .steps
                .iter()
                .rev()
                .find(|entry| !matches!(entry.state, Progress::Undone | Progress::Failed)),
        };
        current.map(|entry| entry.name.as_str())
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks by reference")]
fn is_zero(number: &u32) -> bool {
    *number == 0
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks by reference")]
fn is_nothing(millis: &u64) -> bool {
    *millis == 0
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks by reference")]
fn is_false(flag: &bool) -> bool {
    !*flag
}

/// A `null` that is there is an output, too: that of a step which gives nothing.
fn something<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Json>, D::Error> {
    Json::deserialize(deserializer).map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_was_given_is_told_from_what_was_not_given() {
        let mut story = Story::new(Json::of(&()).unwrap(), "shape");
        story.steps.push(Entry {
            name: "a".to_owned(),
            state: Progress::Done,
            input: Some(Json::of(&()).unwrap()),
            output: Some(Json::of(&()).unwrap()),
            error: None,
            tries: 0,
            undo_tries: 0,
            round: 0,
            unsure: false,
            pause: 0,
            begun_at: Millis(1),
            ended_at: None,
        });
        story.steps.push(Entry {
            input: None,
            output: None,
            ..story.steps[0].clone()
        });
        let stored = serde_json::to_string(&story).unwrap();
        let read: Story = serde_json::from_str(&stored).unwrap();
        assert_eq!(read, story);
        assert!(read.steps[0].output.is_some() && read.steps[1].output.is_none());
    }
}
