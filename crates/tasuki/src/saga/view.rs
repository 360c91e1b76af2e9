//! A saga as people see it.

use std::fmt;

use serde_json::Value;
use sqlx::postgres::PgRow;
use sqlx::{FromRow, Row};
use time::OffsetDateTime;
use uuid::Uuid;

use super::SagaId;
use super::step::{Phase, key};
use super::story::{Entry, Progress, Story};

/// What people call the state of a saga.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum State {
    /// It is there, and no step has begun.
    Started,
    /// It has come to this step.
    Step(String),
    /// Every step is done.
    Completed,
    /// It is being unwound.
    Compensating,
    /// What was done is undone.
    Compensated,
    /// It can't go on by itself.
    NeedsAttention,
}

impl State {
    /// The word for it: `STARTED`, the step's name, `COMPLETED`, `COMPENSATING`, `COMPENSATED` or
    /// `NEEDS_ATTENTION`.
    #[must_use]
    pub fn as_str(&self) -> &str {
        match self {
            Self::Started => "STARTED",
            Self::Step(step) => step,
            Self::Completed => "COMPLETED",
            Self::Compensating => "COMPENSATING",
            Self::Compensated => "COMPENSATED",
            Self::NeedsAttention => "NEEDS_ATTENTION",
        }
    }

    /// Whether nothing more will happen by itself.
    #[must_use]
    pub const fn is_final(&self) -> bool {
        matches!(
            self,
            Self::Completed | Self::Compensated | Self::NeedsAttention
        )
    }

    fn stored(state: &str, step: Option<&str>) -> Self {
        match (state, step) {
            ("COMPLETED", _) => Self::Completed,
            ("COMPENSATING", _) => Self::Compensating,
            ("COMPENSATED", _) => Self::Compensated,
            ("NEEDS_ATTENTION", _) => Self::NeedsAttention,
            (_, Some(step)) => Self::Step(step.to_owned()),
            (_, None) => Self::Started,
        }
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A saga that has ended, or needs a person.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Ended {
    /// The saga.
    pub id: SagaId,
    /// How it ended.
    pub state: State,
    /// Why it was unwound, or needs a person.
    pub reason: Option<String>,
}

impl Ended {
    pub(super) fn of(id: Uuid, story: &Story) -> Self {
        Self {
            id: SagaId::from(id),
            state: State::stored(story.state(), story.step()),
            reason: reason(story),
        }
    }
}

fn reason(story: &Story) -> Option<String> {
    let why = story.stuck.as_ref().or(story.failure.as_ref());
    why.map(|why| why.reason.clone())
}

/// One saga with its whole story.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct View {
    /// The saga.
    pub id: SagaId,
    /// The name of its definition.
    pub definition: String,
    /// The version of that.
    pub version: u32,
    /// How it is.
    pub state: State,
    /// What it was started with.
    pub input: Value,
    /// The step that aborted it, and why; without a step: it was cancelled, or took too long.
    pub failure: Option<(Option<String>, String)>,
    /// The step, or its compensation, that can't go on, and why.
    pub stuck: Option<(Option<String>, String)>,
    /// The steps that have begun, in that order.
    pub steps: Vec<StepView>,
    /// What people did about it.
    pub notes: Vec<NoteView>,
    /// When it was started, by the database's clock, like the next four.
    pub created_at: OffsetDateTime,
    /// When it last moved.
    pub updated_at: OffsetDateTime,
    /// When it ended.
    pub finished_at: Option<OffsetDateTime>,
    /// When it is unwound if its pivot is not done.
    pub deadline_at: Option<OffsetDateTime>,
    /// Until when it waits.
    pub due_at: Option<OffsetDateTime>,
    /// The process that has it, or had it last.
    pub locked_by: Option<String>,
    /// The trace of whoever started it.
    pub traceparent: Option<String>,
}

impl View {
    /// How it ended, if it has or needs a person.
    #[must_use]
    pub fn ended(&self) -> Option<Ended> {
        self.state.is_final().then(|| Ended {
            id: self.id,
            state: self.state.clone(),
            reason: self
                .stuck
                .as_ref()
                .or(self.failure.as_ref())
                .map(|(_, reason)| reason.clone()),
        })
    }

    /// A step that has begun.
    #[must_use]
    pub fn step(&self, name: &str) -> Option<&StepView> {
        self.steps.iter().find(|step| step.name == name)
    }
}

/// How far a step has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StepState {
    /// It runs, waits, or may have been cut off.
    Begun,
    /// An attempt failed, and another is to come.
    Retrying,
    /// Done.
    Done,
    /// Given up.
    Failed,
    /// Undone.
    Undone,
}

impl StepState {
    /// The word for it, in capitals.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Begun => "BEGUN",
            Self::Retrying => "RETRYING",
            Self::Done => "DONE",
            Self::Failed => "FAILED",
            Self::Undone => "UNDONE",
        }
    }
}

/// A step that has begun.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct StepView {
    /// Its name.
    pub name: String,
    /// How far it has come.
    pub state: StepState,
    /// By what others know its action: [`At::action_key`](super::At::action_key).
    pub key: String,
    /// What went in.
    pub input: Option<Value>,
    /// What came out.
    pub output: Option<Value>,
    /// What went wrong last, with the action or its compensation.
    pub error: Option<String>,
    /// Attempts that failed.
    pub failed_attempts: u32,
    /// Attempts to undo it that failed.
    pub failed_undos: u32,
    /// Nobody knows how one of its attempts ended.
    pub unsure: bool,
    /// When it began, by the clock of the process that ran it.
    pub begun_at: OffsetDateTime,
    /// When it was done, given up or undone, by such a clock.
    pub ended_at: Option<OffsetDateTime>,
}

/// What a person did about a saga.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NoteView {
    /// What: `resume`, `retry from charge`, …
    pub what: String,
    /// Who.
    pub by: String,
    /// Why.
    pub reason: String,
    /// When, by the clock of that process.
    pub at: OffsetDateTime,
}

/// A saga in a list.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Summary {
    /// The saga.
    pub id: SagaId,
    /// The name of its definition.
    pub definition: String,
    /// The version of that.
    pub version: u32,
    /// How it is.
    pub state: State,
    /// Why it was unwound, or needs a person.
    pub reason: Option<String>,
    /// When it was started.
    pub created_at: OffsetDateTime,
    /// When it last moved.
    pub updated_at: OffsetDateTime,
    /// When it ended.
    pub finished_at: Option<OffsetDateTime>,
}

/// Which sagas to list, newest first; at most 100 unless told otherwise.
#[derive(Clone, Debug)]
pub struct Filter {
    pub(super) state: Option<String>,
    pub(super) definition: Option<String>,
    pub(super) before: Option<Uuid>,
    pub(super) limit: u32,
}

impl Default for Filter {
    fn default() -> Self {
        Self {
            state: None,
            definition: None,
            before: None,
            limit: 100,
        }
    }
}

impl Filter {
    /// All of them.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Only those in this state, which may be the name of a step.
    #[must_use]
    pub fn state(mut self, state: &str) -> Self {
        self.state = Some(state.to_owned());
        self
    }

    /// Only those of this definition.
    #[must_use]
    pub fn definition(mut self, name: &str) -> Self {
        self.definition = Some(name.to_owned());
        self
    }

    /// Only those that are older than this one: the next page.
    #[must_use]
    pub fn before(mut self, id: SagaId) -> Self {
        self.before = Some(id.as_uuid());
        self
    }

    /// At most this many.
    #[must_use]
    pub fn limit(mut self, sagas: u32) -> Self {
        self.limit = sagas;
        self
    }
}

/// A row, as it is read.
pub(super) struct Told(pub(super) View);

impl FromRow<'_, PgRow> for Told {
    fn from_row(row: &PgRow) -> sqlx::Result<Self> {
        let story: &str = row.try_get("story")?;
        let story: Story =
            serde_json::from_str(story).map_err(|error| sqlx::Error::Decode(error.into()))?;
        let id = row.try_get("saga_id")?;
        let pair = |why: &super::story::Failure| (why.step.clone(), why.reason.clone());
        Ok(Self(View {
            id,
            definition: row.try_get("definition")?,
            version: version(row)?,
            state: State::stored(row.try_get("state")?, row.try_get("step")?),
            input: story.input.value(),
            failure: story.failure.as_ref().map(pair),
            stuck: story.stuck.as_ref().map(pair),
            steps: story.steps.iter().map(|entry| step(id, entry)).collect(),
            notes: story.notes.iter().map(note).collect(),
            created_at: row.try_get("created_at")?,
            updated_at: row.try_get("updated_at")?,
            finished_at: row.try_get("finished_at")?,
            deadline_at: row.try_get("deadline_at")?,
            due_at: row.try_get("due_at")?,
            locked_by: row.try_get("locked_by")?,
            traceparent: row.try_get("traceparent")?,
        }))
    }
}

impl FromRow<'_, PgRow> for Summary {
    fn from_row(row: &PgRow) -> sqlx::Result<Self> {
        Ok(Self {
            id: row.try_get("saga_id")?,
            definition: row.try_get("definition")?,
            version: version(row)?,
            state: State::stored(row.try_get("state")?, row.try_get("step")?),
            reason: row.try_get("reason")?,
            created_at: row.try_get("created_at")?,
            updated_at: row.try_get("updated_at")?,
            finished_at: row.try_get("finished_at")?,
        })
    }
}

fn version(row: &PgRow) -> sqlx::Result<u32> {
    let version: i32 = row.try_get("version")?;
    Ok(u32::try_from(version).unwrap_or_default())
}

fn step(id: SagaId, entry: &Entry) -> StepView {
    StepView {
        key: key(id, &entry.name, Phase::Act, entry.round),
        name: entry.name.clone(),
        state: match entry.state {
            Progress::Begun => StepState::Begun,
            Progress::Resting => StepState::Retrying,
            Progress::Done => StepState::Done,
            Progress::Failed => StepState::Failed,
            Progress::Undone => StepState::Undone,
        },
        input: entry.input.as_ref().map(super::json::Json::value),
        output: entry.output.as_ref().map(super::json::Json::value),
        error: entry.error.clone(),
        failed_attempts: entry.tries,
        failed_undos: entry.undo_tries,
        unsure: entry.unsure,
        begun_at: entry.begun_at.time(),
        ended_at: entry.ended_at.map(super::story::Millis::time),
    }
}

fn note(note: &super::story::Note) -> NoteView {
    NoteView {
        what: note.what.clone(),
        by: note.by.clone(),
        reason: note.reason.clone(),
        at: note.at.time(),
    }
}
