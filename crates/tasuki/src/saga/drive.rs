//! One saga, from where it stands to where this process must let it go.
//!
//! The driver holds the story in memory and the claim in the database. Every step forward is a move
//! in the journal; what is called elsewhere was written down before, and its answer is before anything
//! else happens. Wherever the process dies, what is written is enough to go on from.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep, timeout};

use super::define::{Declared, Part, Run};
use super::engine::Inner;
use super::erased::{Acted, Undone};
use super::failure::Failed;
use super::fault::What;
use super::journal::{self, CANCEL, LocalStep, Made, Move, SHORT, Then};
use super::json::Json;
use super::plan::Next;
use super::step::{At, Phase};
use super::store::{Birth, Heard, Hold, Place};
use super::story::{Direction, Millis, Progress, Story};
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
    /// Whatever it waited for has come, or the time is over.
    pub(super) due: bool,
    /// How long to wait before the next attempt.
    pub(super) pause: Option<Duration>,
    /// The story has changed since it was written.
    pub(super) dirty: bool,
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
    /// Its process is dead, says a check.
    Dead,
    /// We can't go on with it: others may.
    GivenUp(Option<journal::Trouble>),
}

impl Live {
    fn at(&self, part: &Part, phase: Phase) -> At {
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
            round: self.story.round,
            traceparent: self.traceparent.clone(),
        }
    }

    /// Turns back if somebody has asked for it, or if it has taken too long.
    fn look_around(&mut self) {
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
    fn input(&self, part: &Part) -> Result<Json, Failed> {
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

    /// What was about to be called was not.
    fn withdraw(&mut self, ixs: &[usize]) {
        let declared = Arc::clone(&self.declared);
        for part in ixs.iter().filter_map(|ix| declared.at(*ix)) {
            if let Some(entry) = self.story.entry_mut(part.name) {
                entry.state = Progress::Failed;
            }
        }
    }

    /// An attempt that failed before it began.
    fn fails(&mut self, part: &Part, failed: Failed, now: Millis) {
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
        let at = live.at(part, phase);
        let step = LocalStep { ix, input, at };
        self.survives(part, phase, What::DieActed)?;
        let made = self.make(live, Some(step), Then::Go).await;
        self.survives(part, phase, What::DieMoved)?;
        made
    }

    /// Whether the process lives on, as far as a check is concerned.
    fn survives(&self, part: &Part, phase: Phase, what: What) -> Result<(), Left> {
        match self.settings.faults.take(part.name, phase, what) {
            true => Err(Left::Dead),
            false => Ok(()),
        }
    }

    /// Calls steps elsewhere, side by side, and writes down what each of them gave.
    async fn call(&self, live: &mut Live, ixs: &[usize]) -> Result<(), Left> {
        if let Some(pause) = live.pause.take_if(|pause| *pause > SHORT) {
            return self.record(live, Then::Rest(pause)).await;
        }
        if !self.intend(live, ixs) {
            return Ok(());
        }
        if live.dirty {
            self.record(live, Then::Go).await?;
        }
        crash_point("saga.begun");
        for part in ixs.iter().filter_map(|ix| live.declared.at(*ix)) {
            self.survives(part, Phase::Act, What::DieBegun)?;
        }
        self.rest(live).await?;
        live.look_around();
        if live.dirty {
            live.withdraw(ixs);
            return Ok(());
        }
        let mut calls: FuturesUnordered<_> = ixs
            .iter()
            .filter_map(|ix| {
                let part = live.declared.at(*ix)?;
                let input = live.story.entry(part.name)?.input.clone()?;
                let (at, declared) = (live.at(part, Phase::Act), Arc::clone(&live.declared));
                Some(self.called(declared, *ix, input, at))
            })
            .collect();
        while let Some((ix, acted)) = calls.next().await {
            crash_point("saga.called");
            let declared = Arc::clone(&live.declared);
            if let Some(part) = declared.at(ix) {
                self.survives(part, Phase::Act, What::DieActed)?;
                let pause = live.story.acted(part, acted, self.now());
                live.pause = match (live.pause, pause) {
                    (Some(one), Some(other)) => Some(one.min(other)),
                    (one, other) => one.or(other),
                };
                live.dirty = true;
            }
            if !calls.is_empty() {
                self.record(live, Then::Go).await?;
            }
        }
        if live.story.direction == Direction::Back {
            live.pause = None;
        }
        Ok(())
    }

    /// One call of a step elsewhere.
    async fn called(
        &self,
        declared: Arc<Declared>,
        ix: usize,
        input: Json,
        at: At,
    ) -> (usize, Acted) {
        let Some((part, Run::Remote(act, _))) = declared.at(ix).map(|part| (part, &part.run))
        else {
            return (ix, Err(Failed::broken("there is no such step")));
        };
        let broken = |what| self.settings.faults.take(part.name, Phase::Act, what);
        if broken(What::Abort) || at.attempt() > 1 && broken(What::AbortLater) {
            return (ix, Err(Failed::broken("aborted by a check")));
        }
        let mut acted = contained(part.timeout, act.act(&input, &at)).await;
        if broken(What::Twice) {
            acted = contained(part.timeout, act.act(&input, &at)).await;
        }
        if broken(What::Unknown) {
            acted = Err(Failed::unsure("unheard, says a check"));
        }
        (ix, acted.and_then(|acted| acted))
    }

    /// Writes into the story what is about to be called. `false`: nothing can be.
    fn intend(&self, live: &mut Live, ixs: &[usize]) -> bool {
        let declared = Arc::clone(&live.declared);
        for part in ixs.iter().filter_map(|ix| declared.at(*ix)) {
            let known = live.story.entry(part.name);
            if known.is_some_and(|entry| entry.state == Progress::Begun) {
                continue;
            }
            match live.input(part) {
                Ok(input) => live.story.begin(part, Some(input), self.now()),
                Err(failed) => {
                    live.fails(part, failed, self.now());
                    return false;
                }
            }
            live.dirty = true;
        }
        true
    }

    /// Has a step elsewhere undone.
    async fn undo(&self, live: &mut Live, part: &Part) -> Result<(), Left> {
        self.rest(live).await?;
        let Run::Remote(_, Some(undo)) = &part.run else {
            return Err(Left::GivenUp(None));
        };
        let at = live.at(part, Phase::Undo);
        let entry = live.story.entry(part.name);
        let input = entry.and_then(|entry| entry.input.clone());
        let output = entry.and_then(|entry| entry.output.clone());
        // Without an input it was never called.
        let mut undone: Undone = Ok(());
        if let Some(input) = &input {
            let calls = match self
                .settings
                .faults
                .take(part.name, Phase::Undo, What::Twice)
            {
                true => 2,
                false => 1,
            };
            for _ in 0..calls {
                let undoing = undo.undo(input, output.as_ref(), &at);
                undone = contained(part.timeout, undoing)
                    .await
                    .and_then(|undone| undone);
            }
        }
        crash_point("saga.undone");
        self.survives(part, Phase::Undo, What::DieActed)?;
        live.pause = live.story.undone(part, undone, self.now());
        live.dirty = true;
        if let Some(pause) = live.pause.take_if(|pause| *pause > SHORT) {
            return self.record(live, Then::Rest(pause)).await;
        }
        Ok(())
    }

    /// Waits for a signal or a time, which is nobody's work.
    async fn wait(&self, live: &mut Live, part: &Part) -> Result<(), Left> {
        let limit = match &part.run {
            Run::Signal(limit) | Run::Timer(limit) => *limit,
            Run::Local(..) | Run::Remote(..) => return Err(Left::GivenUp(None)),
        };
        let is_timer = matches!(part.run, Run::Timer(_));
        let heard = live.heard.iter().find(|heard| heard.name == part.name);
        let payload = heard.map(|heard| heard.payload.clone());
        let waits = live.story.entry(part.name).is_some();
        if !waits {
            live.story.begin(part, None, self.now());
            live.dirty = true;
        }
        match payload {
            Some(payload) if !is_timer => live.story.heard(part, payload, self.now()),
            _ if waits && std::mem::take(&mut live.due) => match Json::of(&()) {
                Ok(nothing) if is_timer => live.story.heard(part, nothing, self.now()),
                _ => {
                    let late = Failed::broken(format!("did not come within {limit:?}"));
                    live.story.acted(part, Err(late), self.now());
                }
            },
            _ => return self.record(live, Then::Rest(limit)).await,
        }
        live.dirty = true;
        Ok(())
    }

    /// Waits for the next attempt, here if it is soon.
    async fn rest(&self, live: &mut Live) -> Result<(), Left> {
        let Some(pause) = live.pause.take() else {
            return Ok(());
        };
        tokio::select! {
            () = sleep(pause) => Ok(()),
            () = self.stopping.cancelled() => Err(Left::GivenUp(None)),
        }
    }

    /// Writes the story as it is.
    async fn record(&self, live: &mut Live, then: Then) -> Result<(), Left> {
        self.make(live, None, then).await
    }

    /// Makes a move.
    async fn make(&self, live: &mut Live, step: Option<LocalStep>, then: Then) -> Result<(), Left> {
        let made = self.submit(live, step, then).await;
        let moved = made.map_err(|trouble| match trouble {
            // The first try of this very birth went well, and its answer got lost.
            journal::Trouble::Stale if live.birth.is_some() => Left::GivenUp(None),
            journal::Trouble::Stale => Left::Lost,
            trouble => Left::GivenUp(Some(trouble)),
        })?;
        crash_point("saga.moved");
        live.story = moved.story;
        live.place.moves += 1;
        live.birth = None;
        live.dirty = false;
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
            Hold::Wait(Some(_)) => Err(Left::Resting),
            Hold::Wait(None) | Hold::End => Err(Left::Ended),
        }
    }

    /// Has a move made. What was learned elsewhere is worth a few tries: who lost it would have to ask
    /// again.
    async fn submit(
        &self,
        live: &Live,
        step: Option<LocalStep>,
        then: Then,
    ) -> Result<Box<journal::Moved>, journal::Trouble> {
        for pause in TRIES {
            let made = self.try_to(live, step.as_ref(), then).await;
            match made {
                Err(journal::Trouble::Failed(_)) if live.dirty => sleep(pause).await,
                made => return made,
            }
        }
        self.try_to(live, step.as_ref(), then).await
    }

    /// Has a move made, with others or alone.
    async fn try_to(
        &self,
        live: &Live,
        step: Option<&LocalStep>,
        then: Then,
    ) -> Result<Box<journal::Moved>, journal::Trouble> {
        let one = || Move {
            place: live.place,
            declared: Arc::clone(&live.declared),
            birth: live.birth.clone(),
            story: live.story.clone(),
            step: step.map(LocalStep::again),
            then,
        };
        let made = self.batcher.submit(one()).await;
        match made.map_err(journal::Trouble::from)? {
            Made::Moved(moved) => Ok(moved),
            Made::Alone => {
                let place = self.alone.acquire().await;
                let _place = place.map_err(|_closed| journal::Trouble::Stopped)?;
                match self.journal.alone(&one()).await? {
                    Made::Moved(moved) => Ok(moved),
                    Made::Alone => Err(journal::Trouble::Stale),
                }
            }
        }
    }
}

/// Within its time, and without its panic.
async fn contained<T>(limit: Duration, work: impl Future<Output = T>) -> Result<T, Failed> {
    use futures_util::FutureExt;
    let work = std::panic::AssertUnwindSafe(work).catch_unwind();
    match timeout(limit, work).await {
        Ok(Ok(done)) => Ok(done),
        Ok(Err(panic)) => {
            let why = crate::worker::panic_message(&*panic);
            Err(Failed::unsure(format!("panicked: {why}")))
        }
        Err(_elapsed) => Err(Failed::unsure(format!("timed out after {limit:?}"))),
    }
}
