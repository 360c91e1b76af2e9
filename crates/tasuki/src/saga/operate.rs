//! What a person may do about a saga that needs one. Each is written into its story, with who and why.

use std::time::Duration;

use serde_json::Value;
use sqlx::PgConnection;

use super::define::{Declared, Kind};
use super::json::Json;
use super::registry::Registry;
use super::store::Amended;
use super::story::{Direction, End, Entry, Millis, Note, Progress, Story};
use super::{Error, SagaId, Sagas};

/// Who decides, and why.
#[derive(Clone, Debug)]
pub struct By {
    who: String,
    reason: String,
}

impl By {
    /// `who` decides, because of `reason`.
    #[must_use]
    pub fn new(who: &str, reason: &str) -> Self {
        Self {
            who: who.to_owned(),
            reason: reason.to_owned(),
        }
    }
}

/// How a person ends a saga.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Close {
    /// What was left was done by hand.
    Completed,
    /// What was left was undone by hand.
    Compensated,
}

impl Sagas {
    /// Lets a saga that needs attention try again what it could not do, with all its attempts. The time
    /// that it was parked is not taken off its time limit.
    ///
    /// # Errors
    /// When it is not there or does not need attention; when the database can't do it.
    pub async fn resume(
        &self,
        connection: &mut PgConnection,
        id: SagaId,
        by: &By,
    ) -> Result<(), Error> {
        let story = self.held(connection, id).await?.0;
        let story = self.noted(resumed(story), "resume", by);
        self.amend(connection, id, &story, None).await
    }

    /// Sends a saga that needs attention forward again, from `step` on: what is before it must be done,
    /// and it and what is behind it must not be. Steps that had been undone get new keys. It has all of
    /// its time limit again, and a cancellation of before does not count any more.
    ///
    /// # Errors
    /// When it is not there, does not need attention, or can't go on from there; when its definition is
    /// not in `registry`; when the database can't do it.
    pub async fn retry_from(
        &self,
        connection: &mut PgConnection,
        registry: &Registry,
        id: SagaId,
        step: &str,
        by: &By,
    ) -> Result<(), Error> {
        let (story, definition, version) = self.held(connection, id).await?;
        let declared = registry.get(&definition, version);
        let declared = declared.ok_or_else(|| Error::Unknown {
            name: definition,
            version: u32::try_from(version).unwrap_or_default(),
        })?;
        let fits = story.fits(declared);
        let story = fits.and_then(|()| sent_back(story, declared, step));
        let story = story.map_err(|why| Error::Refused { id, why })?;
        let story = self.noted(story, &format!("retry from {step}"), by);
        let afresh = Some(declared.timeout);
        self.amend(connection, id, &story, afresh).await
    }

    /// Takes `step`, or its compensation if the saga is being unwound, as done by hand: `output` is what
    /// an action gave.
    ///
    /// # Errors
    /// When it is not there, does not need attention, or that step is not what it is stuck at; when the
    /// database can't do it.
    pub async fn skip(
        &self,
        connection: &mut PgConnection,
        id: SagaId,
        step: &str,
        output: Option<&Value>,
        by: &By,
    ) -> Result<(), Error> {
        let story = self.held(connection, id).await?.0;
        let now = Millis::of(self.clock.now());
        let output = Json::of(&output).map_err(Error::Input)?;
        let story = skipped(story, step, output, now).map_err(|why| Error::Refused { id, why })?;
        let story = self.noted(story, &format!("skip {step}"), by);
        self.amend(connection, id, &story, None).await
    }

    /// Ends a saga that needs attention: what was left was done, or undone, by hand.
    ///
    /// # Errors
    /// When it is not there or does not need attention; when the database can't do it.
    pub async fn close(
        &self,
        connection: &mut PgConnection,
        id: SagaId,
        how: Close,
        by: &By,
    ) -> Result<(), Error> {
        let story = self.held(connection, id).await?.0;
        let end = match how {
            Close::Completed => End::Completed,
            Close::Compensated => End::Compensated,
        };
        let what = format!("close as {}", end.as_str());
        let story = self.noted(story, &what, by);
        let story = serde_json::to_string(&story).map_err(Error::Input)?;
        self.store
            .close(connection, id.as_uuid(), end.as_str(), &story)
            .await?;
        Ok(())
    }

    async fn held(
        &self,
        connection: &mut PgConnection,
        id: SagaId,
    ) -> Result<(Story, String, i32), Error> {
        let held = self.store.hold(connection, id.as_uuid()).await?;
        let Some(held) = held else {
            let known = self.store.get(connection, id.as_uuid()).await?;
            let known = known.ok_or(Error::NotFound(id))?;
            let why = format!("it is {} and needs nobody", known.0.state);
            return Err(Error::Refused { id, why });
        };
        let story = serde_json::from_str(&held.story).map_err(Error::Story)?;
        Ok((story, held.definition, held.version))
    }

    fn noted(&self, mut story: Story, what: &str, by: &By) -> Story {
        story.notes.push(Note {
            what: what.to_owned(),
            by: by.who.clone(),
            reason: by.reason.clone(),
            at: Millis::of(self.clock.now()),
        });
        story
    }

    async fn amend(
        &self,
        connection: &mut PgConnection,
        id: SagaId,
        story: &Story,
        afresh: Option<Option<Duration>>,
    ) -> Result<(), Error> {
        let amended = Amended {
            id: id.as_uuid(),
            state: story.state(),
            step: story.step(),
            story: serde_json::to_string(story).map_err(Error::Input)?,
            afresh,
        };
        Ok(self.store.amend(connection, &amended).await?)
    }
}

/// With all its attempts again.
fn resumed(mut story: Story) -> Story {
    let stuck = story.stuck.take().and_then(|stuck| stuck.step);
    let at = |entry: &Entry| Some(entry.name.as_str()) == stuck.as_deref();
    // A wait that was too long begins anew.
    story
        .steps
        .retain(|entry| !(at(entry) && entry.input.is_none() && entry.state != Progress::Done));
    if let Some(entry) = story.steps.iter_mut().find(|entry| at(entry)) {
        entry.tries = 0;
        entry.undo_tries = 0;
    }
    story
}

/// Forward from `step` on.
fn sent_back(mut story: Story, declared: &Declared, step: &str) -> Result<Story, String> {
    let (from, _) = declared
        .part(step)
        .ok_or_else(|| format!("it has no step `{step}`"))?;
    for (ix, part) in declared.parts() {
        let state = story.entry(part.name).map(|entry| entry.state);
        let is_done = state == Some(Progress::Done);
        if ix < from && !is_done {
            return Err(format!("`{}`, which is before it, is not done", part.name));
        }
        if ix >= from && is_done && !matches!(part.kind(), Kind::Signal | Kind::Timer) {
            return Err(format!("`{}` is done, and not undone", part.name));
        }
    }
    let kind = |entry: &Entry| declared.part(&entry.name).map(|(_, part)| part.kind());
    // What was said stays said, unless that is what it is to wait for again; other waits begin anew.
    let is_heard = |entry: &Entry| {
        let is_done = entry.state == Progress::Done && entry.name != step;
        is_done && kind(entry) == Some(Kind::Signal)
    };
    let is_behind = |entry: &Entry| {
        let place = declared.part(&entry.name);
        place.is_none_or(|(ix, _)| ix >= from) && !is_heard(entry)
    };
    let is_wait = |entry: &Entry| matches!(kind(entry), Some(Kind::Signal | Kind::Timer));
    let undone = |entry: &Entry| entry.state == Progress::Undone || entry.undo_tries > 0;
    if story
        .steps
        .iter()
        .any(|entry| is_behind(entry) && undone(entry))
    {
        story.round += 1;
        story.steps.retain(|entry| !is_behind(entry));
    } else {
        story
            .steps
            .retain(|entry| !(is_behind(entry) && is_wait(entry)));
        // Its key stays: an attempt of which nobody knows how it ended must be recognised.
        for entry in story.steps.iter_mut().filter(|entry| is_behind(entry)) {
            entry.state = Progress::Resting;
            (entry.tries, entry.pause) = (0, 0);
        }
    }
    story.direction = Direction::Forward;
    story.failure = None;
    story.stuck = None;
    Ok(story)
}

/// As if `step` had been done, or undone.
fn skipped(mut story: Story, step: &str, output: Json, now: Millis) -> Result<Story, String> {
    let stuck = story.stuck.as_ref().and_then(|stuck| stuck.step.as_deref());
    if stuck != Some(step) {
        return Err(format!("it is not stuck at `{step}`"));
    }
    let direction = story.direction;
    let Some(entry) = story.entry_mut(step) else {
        return Err(format!("`{step}` has not begun"));
    };
    match direction {
        Direction::Forward => {
            entry.state = Progress::Done;
            entry.output = Some(output);
        }
        Direction::Back => entry.state = Progress::Undone,
    }
    entry.ended_at = Some(now);
    story.stuck = None;
    Ok(story)
}
