//! One saga, from where it stands to where this process must let it go.
//!
//! The driver holds the story in memory and the claim in the database. Every step forward is a move
//! in the journal; what is called elsewhere was written down before, and its answer is before anything
//! else happens. Wherever the process dies, what is written is enough to go on from.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::{Instant, sleep};

use super::define::{Declared, Part, Run};
use super::engine::Inner;
use super::failure::Failed;
use super::fault::What;
use super::journal::{CANCEL, LocalStep, Moved, Then};
use super::json::Json;
use super::plan::Next;
use super::step::{At, Phase};
use super::store::{Birth, Heard, Hold, Place};
use super::story::{Direction, Millis, Story};
use super::trouble::Trouble;
use super::{Error, SagaId};
use crate::testing::crash_point;

/// The pauses before a move that could not be written is tried again.
const TRIES: [Duration; 4] = [
    Duration::from_millis(20),
    Duration::from_millis(100),
    Duration::from_millis(500),
    Duration::from_secs(2),
];

/// A saga in the hands of this process.
pub(super) struct Live {
    pub(super) place: Place,
    pub(super) declared: Arc<Declared>,
    pub(super) story: Story,
    /// Not in the database yet.
    pub(super) birth: Option<Birth>,
    pub(super) traceparent: Option<String>,
    pub(super) heard: Vec<Heard>,
    pub(super) deadline: Option<Instant>,
    /// The pauses in the story are counted from here.
    pub(super) aged: Instant,
    /// How long to wait before the next attempt.
    pub(super) pause: Option<Duration>,
    /// The story has changed since it was written.
    pub(super) dirty: bool,
    /// How often it was given back in a row, without a move in between.
    pub(super) given_back: u32,
    /// There is no room for it here: it is written down for whoever has.
    pub(super) crowded: bool,
    /// Told when it is in the database, or can't be.
    pub(super) begun: Option<oneshot::Sender<Result<(), Error>>>,
}

/// Why this process lets a saga go.
#[derive(Debug)]
pub(super) enum Left {
    /// It has ended, or needs a person.
    Ended,
    /// It waits, and is nobody's.
    Resting,
    /// Somebody else has it.
    Lost,
    /// It was in the database before, by a first try whose answer got lost.
    Born,
    /// Its process is dead, says a check.
    Dead,
    /// We can't go on with it: others may.
    GivenUp(Option<Trouble>),
}

impl Live {
    pub(super) fn at(&self, part: &Part, phase: Phase) -> At {
        let entry = self.story.entry(part.name);
        let failed = entry.map_or(0, |entry| match phase {
            Phase::Act => entry.tries,
            Phase::Undo => entry.undo_tries,
        });
        At {
            saga: SagaId::from(self.place.id),
            step: part.name.to_owned(),
            phase,
            attempt: failed + 1,
            round: entry.map_or(self.story.round, |entry| entry.round),
            traceparent: self.traceparent.clone(),
        }
    }

    /// Takes the time that has passed off the pauses in the story.
    pub(super) fn age(&mut self) {
        let passed = u64::try_from(self.aged.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.story.age(passed);
        self.aged += Duration::from_millis(passed);
    }

    /// Of what was said to it, what its story knows.
    pub(super) fn has_heard(&self) -> Vec<String> {
        let heard = self.heard.iter().filter(|heard| match &*heard.name {
            CANCEL => self.story.direction == Direction::Back,
            name => self.story.output(name).is_some(),
        });
        heard.map(|heard| heard.name.clone()).collect()
    }

    /// Turns back if somebody has asked for it, or if it has taken too long.
    pub(super) fn look_around(&mut self) {
        if !self.story.may_turn_back(&self.declared) {
            return;
        }
        let cancel = self.heard.iter().find(|heard| heard.name == CANCEL);
        if let Some(cancel) = cancel {
            let said = cancel.payload.value();
            let text = |key: &str| said.get(key).and_then(|it| it.as_str()).unwrap_or_default();
            let reason = format!("cancelled by {}: {}", text("by"), text("reason"));
            self.story.turn_back(None, reason);
            self.dirty = true;
        } else if self.deadline.is_some_and(|at| at <= Instant::now()) {
            let limit = self.declared.timeout.unwrap_or_default();
            let reason = format!("not at its pivot after {limit:?}");
            self.story.turn_back(None, reason);
            self.dirty = true;
        }
    }

    /// The input of a step: the one that was written down, or what the definition makes of the story.
    pub(super) fn input(&self, part: &Part) -> Result<Json, Failed> {
        let known = self.story.entry(part.name);
        if let Some(input) = known.and_then(|entry| entry.input.clone()) {
            return Ok(input);
        }
        let id = SagaId::from(self.place.id);
        match &part.run {
            Run::Local(act, _) => act.input(id, &self.story),
            Run::Remote(act, _) => act.input(id, &self.story),
            Run::Signal(_) | Run::Timer(_) => Err(Failed::broken("a wait has no input")),
        }
    }

    /// An attempt that failed before it began.
    pub(super) fn fails(&mut self, part: &Part, failed: Failed, now: Millis) {
        self.story.begin(part, None, now);
        self.story.acted(part, Err(failed), now);
        self.dirty = true;
    }
}

impl Inner {
    /// Goes on until the saga ends, waits, or is another's.
    pub(super) async fn go(&self, live: &mut Live) -> Left {
        loop {
            if self.stopping.is_cancelled() {
                let last = match live.dirty {
                    true => self.record(live, Then::Go).await,
                    false => Ok(()),
                };
                return last.err().unwrap_or(Left::GivenUp(None));
            }
            if let Err(left) = self.step(live).await {
                return left;
            }
        }
    }

    async fn step(&self, live: &mut Live) -> Result<(), Left> {
        if live.crowded {
            return self.record(live, Then::Rest(Duration::ZERO)).await;
        }
        live.age();
        live.look_around();
        let declared = Arc::clone(&live.declared);
        let part = |ix: usize| declared.at(ix).ok_or(Left::GivenUp(None));
        match live.story.next(&declared) {
            Next::End(_) | Next::Stuck => self.record(live, Then::Go).await,
            // What has happened is durable before anything else begins.
            Next::Local(_) | Next::Undo(_) if live.dirty => self.record(live, Then::Go).await,
            Next::Local(ix) => self.local(live, ix, part(ix)?, Phase::Act).await,
            Next::Undo(ix) => match &part(ix)?.run {
                Run::Remote(..) => self.undo(live, part(ix)?).await,
                _ => self.local(live, ix, part(ix)?, Phase::Undo).await,
            },
            Next::Remote(ixs) => self.call(live, &ixs).await,
            Next::Wait(ix) => self.wait(live, part(ix)?).await,
        }
    }

    /// Runs a local step in the transaction of its record.
    async fn local(
        &self,
        live: &mut Live,
        ix: usize,
        part: &Part,
        phase: Phase,
    ) -> Result<(), Left> {
        self.rest(live).await?;
        let input = match live.input(part) {
            Ok(input) => input,
            Err(failed) => {
                live.fails(part, failed, self.now());
                return Ok(());
            }
        };
        self.survives(part, phase, What::DieBegun)?;
        let at = live.at(part, phase);
        let step = LocalStep { ix, input, at };
        let made = self.make(live, Some(step), Then::Go).await;
        self.survives(part, phase, What::DieMoved)?;
        made
    }

    /// Whether the process lives on, as far as a check is concerned.
    pub(super) fn survives(&self, part: &Part, phase: Phase, what: What) -> Result<(), Left> {
        match self.settings.faults.take(part.name, phase, what) {
            true => Err(Left::Dead),
            false => Ok(()),
        }
    }

    /// Whether the process lives on when what it has learned is written down, as far as a check is
    /// concerned. Without one that is written together with what comes next.
    pub(super) async fn survives_writing(
        &self,
        live: &mut Live,
        part: &Part,
        phase: Phase,
    ) -> Result<(), Left> {
        if !self.settings.faults.take(part.name, phase, What::DieMoved) {
            return Ok(());
        }
        let _written = self.record(live, Then::Go).await;
        Err(Left::Dead)
    }

    /// Waits for a signal or a time, which is nobody's work.
    async fn wait(&self, live: &mut Live, part: &Part) -> Result<(), Left> {
        self.survives(part, Phase::Act, What::DieBegun)?;
        let limit = part.patience().ok_or(Left::GivenUp(None))?;
        let is_timer = matches!(part.run, Run::Timer(_));
        let heard = live.heard.iter().find(|heard| heard.name == part.name);
        let payload = heard.map(|heard| heard.payload.clone());
        if live.story.entry(part.name).is_none() {
            live.story.begin(part, None, self.now());
        }
        // Whoever claims it may do so for another reason than that its time is over.
        let left = live.story.pause(part.name);
        match payload {
            _ if self
                .settings
                .faults
                .take(part.name, Phase::Act, What::Abort) =>
            {
                let late = Failed::broken("did not come, says a check");
                live.story.acted(part, Err(late), self.now());
            }
            Some(payload) if !is_timer => live.story.heard(part, payload, self.now()),
            _ if left.is_zero() => match Json::of(&()) {
                Ok(nothing) if is_timer => live.story.heard(part, nothing, self.now()),
                _ => {
                    let late = Failed::broken(format!("did not come within {limit:?}"));
                    live.story.acted(part, Err(late), self.now());
                }
            },
            _ => return self.record(live, Then::Rest(left)).await,
        }
        live.dirty = true;
        self.survives(part, Phase::Act, What::DieActed)?;
        self.survives_writing(live, part, Phase::Act).await
    }

    /// Waits for the next attempt, here if it is soon.
    pub(super) async fn rest(&self, live: &mut Live) -> Result<(), Left> {
        let Some(pause) = live.pause.take() else {
            return Ok(());
        };
        tokio::select! {
            () = sleep(pause) => Ok(()),
            () = self.stopping.cancelled() => Err(Left::GivenUp(None)),
        }
    }

    /// Writes the story as it is.
    pub(super) async fn record(&self, live: &mut Live, then: Then) -> Result<(), Left> {
        self.make(live, None, then).await
    }

    /// Makes a move.
    async fn make(&self, live: &mut Live, step: Option<LocalStep>, then: Then) -> Result<(), Left> {
        live.age();
        let made = self.submit(live, step, then).await;
        let moved = made.map_err(|trouble| match trouble {
            Trouble::Stale if live.birth.is_some() => Left::Born,
            Trouble::Stale => Left::Lost,
            Trouble::Dead => Left::Dead,
            trouble => Left::GivenUp(Some(trouble)),
        })?;
        crash_point("saga.moved");
        live.story = moved.story;
        live.place.moves += 1;
        live.birth = None;
        live.dirty = false;
        live.given_back = 0;
        live.heard = moved.heard;
        if let Some(begun) = live.begun.take() {
            // Whoever has gone does not need to know.
            begun.send(Ok(())).unwrap_or_default();
        }
        match moved.hold {
            Hold::Keep => {
                self.touch(live.place);
                live.pause = moved.pause.or(live.pause);
                Ok(())
            }
            Hold::Wait(Some(pause)) => {
                if pause.is_zero() {
                    self.wake.wake();
                }
                Err(Left::Resting)
            }
            Hold::Wait(None) | Hold::End => Err(Left::Ended),
        }
    }

    /// Has a move made. What was learned elsewhere is worth a few tries: who lost it would have to ask
    /// again. A birth has one: if only its answer got lost, the saga may have been ended by others
    /// meanwhile, and a second birth would run all of it again.
    async fn submit(
        &self,
        live: &Live,
        step: Option<LocalStep>,
        then: Then,
    ) -> Result<Box<Moved>, Trouble> {
        let learned = live.dirty && live.birth.is_none();
        for pause in TRIES {
            let made = self.try_to(live, step.as_ref(), then).await;
            match made {
                Err(Trouble::Failed(_)) if learned => sleep(pause).await,
                made => return made,
            }
        }
        self.try_to(live, step.as_ref(), then).await
    }
}
