//! What a person may do about a saga that needs one. Each is written into its story, with who and why.

use std::time::Duration;

use serde_json::Value;
use sqlx::PgConnection;

use super::define::Kind;
use super::json::Json;
use super::store::Amended;
use super::story::{Direction, End, Entry, Millis, Note, Progress, Story};
use super::{Error, Outline, SagaId, Sagas};
use crate::dlq;

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

    fn check(&self) -> Result<(), Error> {
        for (what, text, limit, rule) in [
            ("who", &self.who, dlq::ACTOR_LIMIT, dlq::ACTOR_RULE),
            ("reason", &self.reason, dlq::REASON_LIMIT, dlq::REASON_RULE),
        ] {
            if !dlq::is_plain(text, limit) {
                return Err(Error::Invalid { what, rule });
            }
        }
        Ok(())
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
        let story = self.held(connection, id, by).await?.0;
        let story = self.noted(resumed(story), "resume", by);
        self.amend(connection, id, &story, None).await
    }

    /// Sends a saga that needs attention forward again, from `step` on: what is before it must be done,
    /// and it and what is behind it must not be. It has all of its time limit again, and a cancellation of
    /// before does not count any more.
    ///
    /// A saga that was on its way back does those steps anew, under new keys: what was refused, or done and
    /// undone, under the old ones stays so. One that nobody knows the outcome of, and that is not undone, is
    /// refused: it might be done twice. One that is stuck on its way forward keeps its keys.
    ///
    /// # Errors
    /// When it is not there, does not need attention, or can't go on from there; when no engine has ever
    /// run its definition here; when the database can't do it.
    pub async fn retry_from(
        &self,
        connection: &mut PgConnection,
        id: SagaId,
        step: &str,
        by: &By,
    ) -> Result<(), Error> {
        let (story, name, version) = self.held(connection, id, by).await?;
        let mut outlines = self.outlines(connection).await?.into_iter();
        let outline = outlines.find(|it| it.definition == name && it.version == version);
        let Some(outline) = outline else {
            return Err(Error::Unknown { name, version });
        };
        let fits = story.fits(&name, version, &outline.fingerprint);
        let story = fits.and_then(|()| sent_back(story, &outline, step));
        let story = story.map_err(|why| Error::Refused { id, why })?;
        let story = self.noted(story, &format!("retry from {step}"), by);
        let afresh = Some(outline.timeout);
        self.amend(connection, id, &story, afresh).await
    }

    /// Takes `step`, or its compensation if the saga is being unwound, as done by hand: `output` is what
    /// an action gave.
    ///
    /// # Errors
    /// When it is not there, does not need attention, or that step is not what it is stuck at; when an
    /// output is given for a compensation, which has none; when the database can't do it.
    pub async fn skip(
        &self,
        connection: &mut PgConnection,
        id: SagaId,
        step: &str,
        output: Option<&Value>,
        by: &By,
    ) -> Result<(), Error> {
        let story = self.held(connection, id, by).await?.0;
        let now = Millis::of(self.clock.now());
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
        let story = self.held(connection, id, by).await?.0;
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
        by: &By,
    ) -> Result<(Story, String, u32), Error> {
        by.check()?;
        let held = self.store.hold(connection, id.as_uuid()).await?;
        let Some(held) = held else {
            let known = self.store.get(connection, id.as_uuid()).await?;
            let known = known.ok_or(Error::NotFound(id))?;
            let why = format!("it is {} and needs nobody", known.0.state);
            return Err(Error::Refused { id, why });
        };
        let story = serde_json::from_str(&held.story).map_err(Error::Story)?;
        let version = u32::try_from(held.version).unwrap_or_default();
        Ok((story, held.definition, version))
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

/// Whether it can go forward from `step` on, and where that stands.
fn place(story: &Story, outline: &Outline, step: &str) -> Result<usize, String> {
    let (from, _) = outline.place(step).ok_or_else(|| {
        let names: Vec<&str> = outline.steps.iter().map(|it| it.name.as_str()).collect();
        let names = names.join(", ");
        format!("it has no step `{step}`: its steps are {names}")
    })?;
    for (ix, shape) in outline.steps.iter().enumerate() {
        let (name, entry) = (&shape.name, story.entry(&shape.name));
        let is_done = entry.is_some_and(|entry| entry.state == Progress::Done);
        if ix < from && !is_done {
            return Err(format!("`{name}`, which is before `{step}`, is not done"));
        }
        if ix >= from && is_done && !matches!(shape.kind, Kind::Signal | Kind::Timer) {
            return Err(format!("`{name}` is done, and not undone"));
        }
        let is_back = story.direction == Direction::Back;
        if ix >= from && is_back && entry.is_some_and(may_be_there) {
            return Err(format!(
                "nobody knows whether `{name}` happened, and it is not undone: resume or skip that first"
            ));
        }
    }
    Ok(from)
}

/// Forward from `step` on.
fn sent_back(mut story: Story, outline: &Outline, step: &str) -> Result<Story, String> {
    let from = place(&story, outline, step)?;
    let kind = |entry: &Entry| outline.place(&entry.name).map(|(_, shape)| shape.kind);
    // What was said stays said, unless that is what it is to wait for again; other waits begin anew.
    let is_heard = |entry: &Entry| {
        let is_done = entry.state == Progress::Done && entry.name != step;
        is_done && kind(entry) == Some(Kind::Signal)
    };
    let is_behind = |entry: &Entry| {
        let place = outline.place(&entry.name);
        place.is_none_or(|(ix, _)| ix >= from) && !is_heard(entry)
    };
    let is_wait = |entry: &Entry| matches!(kind(entry), Some(Kind::Signal | Kind::Timer));
    // On its way back, nothing is there any more of what is behind: under their old keys the others would
    // take the steps for what they have refused, or undone, before. On its way forward an attempt of
    // which nobody knows how it ended must be recognised.
    let is_anew = story.direction == Direction::Back;
    story.round += u32::from(is_anew);
    story
        .steps
        .retain(|entry| !(is_behind(entry) && (is_anew || is_wait(entry))));
    for entry in &mut story.steps {
        entry.undo_tries = 0;
        if is_behind(entry) {
            let is_call = kind(entry) == Some(Kind::Remote) && entry.input.is_some();
            entry.unsure |= entry.state == Progress::Begun && is_call;
            entry.state = Progress::Resting;
            (entry.tries, entry.pause) = (0, 0);
        }
    }
    story.direction = Direction::Forward;
    story.failure = None;
    story.stuck = None;
    Ok(story)
}

/// Whether it may have happened, and was not undone: on the way back its compensation may have been
/// tried. Then it is neither there for sure, so that its key would do, nor gone, so that a new one would.
fn may_be_there(entry: &Entry) -> bool {
    match entry.state {
        Progress::Begun => entry.input.is_some(),
        Progress::Resting | Progress::Failed => entry.unsure,
        Progress::Done | Progress::Undone => false,
    }
}

/// As if `step` had been done, or undone.
fn skipped(
    mut story: Story,
    step: &str,
    output: Option<&Value>,
    now: Millis,
) -> Result<Story, String> {
    let stuck = story.stuck.as_ref().and_then(|stuck| stuck.step.as_deref());
    if stuck != Some(step) {
        let at = stuck.unwrap_or_default();
        return Err(format!("it is not stuck at `{step}`, but at `{at}`"));
    }
    let direction = story.direction;
    let Some(entry) = story.entry_mut(step) else {
        return Err(format!("`{step}` has not begun"));
    };
    match (direction, output) {
        (Direction::Forward, output) => {
            entry.state = Progress::Done;
            entry.output = Some(Json::of(&output).map_err(|error| error.to_string())?);
        }
        (Direction::Back, None) => entry.state = Progress::Undone,
        (Direction::Back, Some(_)) => {
            return Err(format!("`{step}` is being undone: that gives no output"));
        }
    }
    entry.ended_at = Some(now);
    story.stuck = None;
    Ok(story)
}

#[cfg(test)]
mod tests {
    use time::OffsetDateTime;

    use super::super::define::{Role, Shape};
    use super::*;

    #[test]
    fn a_call_that_was_cut_may_have_happened_when_it_is_sent_forward_again() {
        let step = |name: &str| Shape {
            name: name.to_owned(),
            kind: Kind::Remote,
            role: Role::Compensable,
            stage: 0,
        };
        let outline = Outline {
            definition: "group".to_owned(),
            version: 1,
            steps: vec![step("cut"), step("never_called")],
            timeout: None,
            started_at: OffsetDateTime::UNIX_EPOCH,
            fingerprint: "shape".to_owned(),
        };
        let cut = Entry {
            name: "cut".to_owned(),
            state: Progress::Begun,
            input: Some(Json::of(&7).unwrap()),
            output: None,
            error: None,
            tries: 0,
            undo_tries: 0,
            round: 0,
            unsure: false,
            pause: 0,
            begun_at: Millis(1),
            ended_at: None,
        };
        let never_called = Entry {
            name: "never_called".to_owned(),
            input: None,
            ..cut.clone()
        };
        let mut story = Story::new(Json::of(&7).unwrap(), "shape");
        story.steps = vec![cut, never_called];
        story.park("cut", "it was given back ten times in a row");
        let story = sent_back(story, &outline, "cut").unwrap();
        let unsure = |name| story.entry(name).unwrap().unsure;
        assert!(unsure("cut"), "nobody knows how it ended");
        assert!(!unsure("never_called"));
        assert_eq!(story.entry("cut").unwrap().state, Progress::Resting);
    }
}
