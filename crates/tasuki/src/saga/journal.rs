//! The journal: moves of sagas that wait at the same time share one commit.
//!
//! A move writes a saga's story as it has become, and runs the local step that makes it so in the
//! same transaction. Each is fenced by the token of its claim and by its number: a saga that somebody
//! else has by now fails alone, and no move is ever made twice.

use std::collections::HashMap;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use tokio::time::{Instant, timeout};
use tracing::Instrument;
use uuid::Uuid;

use super::Sagas;
use super::attempt::{Outcome, attempt, doom, wants_to_be_alone};
use super::define::{Declared, Run};
use super::failure::{Failed, Hindrance};
use super::fault::{Faults, TURNED, What};
use super::json::Json;
use super::pace::Pace;
use super::step::{At, Phase};
use super::store::{Birth, Heard, Hold, Place, Store, Written};
use super::story::{Direction, Millis, Progress, Story};
use super::trouble::Error;
use super::tx::{Limits, Tx};
use crate::batch::{Group, Ran};
use crate::lease::{Line, OwnPool, Owner, Route, told};
use crate::testing::crash_point;
use crate::worker::panic_message;
use crate::{Clock, is_passing};

/// How long a step may take in a transaction that others wait for.
const SHARED_STEP: Duration = Duration::from_secs(2);
/// Waits up to this long happen in memory.
pub(super) const SHORT: Duration = Duration::from_secs(1);
/// How long one that shares its write with others waits for the row of a saga.
pub(super) const LOCKED: Duration = Duration::from_millis(250);
/// What a cancellation is called among the signals. No signal can have this name.
pub(super) const CANCEL: &str = "~cancel";

/// Writes moves.
pub(super) struct Journal {
    pub(super) pool: OwnPool,
    pub(super) store: Arc<Store>,
    pub(super) sagas: Sagas,
    pub(super) route: Route,
    pub(super) owner: Owner,
    pub(super) lease: Duration,
    pub(super) clock: Clock,
    pub(super) faults: Faults,
}

/// A move to be made.
pub(super) struct Move {
    pub(super) place: Place,
    pub(super) declared: Arc<Declared>,
    pub(super) birth: Option<Birth>,
    /// It may have been made: the answer to its commit got lost.
    pub(super) unheard: AtomicBool,
    /// The story before the step.
    pub(super) story: Story,
    pub(super) step: Option<LocalStep>,
    /// What was said to it and has been heard.
    pub(super) heard: Vec<String>,
    pub(super) then: Then,
}

/// What happens to the claim, unless the story says otherwise.
#[derive(Clone, Copy, Debug)]
pub(super) enum Then {
    /// This process goes on.
    Go,
    /// Nobody has it for so long.
    Rest(Duration),
}

/// A local step to be run in the transaction.
pub(super) struct LocalStep {
    pub(super) ix: usize,
    pub(super) input: Json,
    pub(super) at: At,
}

impl LocalStep {
    /// The same once more.
    pub(super) fn again(&self) -> Self {
        Self {
            ix: self.ix,
            input: self.input.clone(),
            at: self.at.clone(),
        }
    }
}

/// A move that was made.
pub(super) struct Moved {
    pub(super) story: Story,
    pub(super) hold: Hold,
    /// How long to wait before going on.
    pub(super) pause: Option<Duration>,
    pub(super) heard: Vec<Heard>,
}

/// What became of a move.
pub(super) enum Made {
    Moved(Box<Moved>),
    /// Its step wants a transaction of its own. Nothing was written.
    Alone(Hindrance),
    /// Others took so long that its step was not run. Nothing was written.
    Later,
}

/// Why nothing is to be written.
#[derive(Clone, Copy, Debug)]
enum Skipped {
    Alone(Hindrance),
    Later,
    Stale,
    Dead,
}

type Answers = HashMap<Uuid, Vec<Heard>>;
type Verdicts = Vec<Result<Made, Error>>;

/// The journal for a batcher.
pub(super) struct Writer(pub(super) Arc<Journal>);

impl Group for Writer {
    type Command = Move;
    type Reply = Made;
    type Error = Error;

    async fn run(&self, moves: &[Move]) -> Ran<Made, Error> {
        self.0.make(moves, Limits::SHARED, SHARED_STEP).await
    }

    fn is_everyones(&self, error: &Error) -> bool {
        error.is_outage()
    }
}

impl Journal {
    /// Makes one move in a transaction of its own, whose step may take as long as it says.
    pub(super) async fn alone(&self, one: &Move) -> Result<Made, Error> {
        let step = one.step.as_ref().and_then(|step| one.declared.at(step.ix));
        let limit = step.map_or(SHARED_STEP, |part| part.timeout);
        let (moves, limits) = (std::slice::from_ref(one), Limits::alone(limit));
        let made = match one.step {
            Some(_) => self.make(moves, limits, limit).await?,
            // It has time to wait for its row.
            None => self.make_fenced(moves, limits, limit).await?,
        };
        let made = made.into_iter().next();
        made.unwrap_or(Err(Error::Stale))
    }

    /// Makes moves. Of those whose rows somebody has locked, a person perhaps, nothing is written, and the
    /// others don't wait for them.
    async fn make(&self, moves: &[Move], limits: Limits, step: Duration) -> Ran<Made, Error> {
        // A batch whose answer got lost is made again one by one, where a move that was made is stale.
        // A birth has nothing that would tell: others may have ended the saga meanwhile, or the server
        // may still be at its first commit.
        if let [one] = moves
            && one.birth.is_some()
            && one.unheard.load(Ordering::Relaxed)
        {
            return Ok(vec![Err(Error::TriedOnce)]);
        }
        let made = self.make_in(self.tx(moves, limits), moves, limits, step);
        match made.await {
            Err(error) if error.is_held_up() => self.make_fenced(moves, limits, step).await,
            made => made,
        }
    }

    /// The same in a transaction that first finds out which rows are free.
    async fn make_fenced(
        &self,
        moves: &[Move],
        limits: Limits,
        step: Duration,
    ) -> Ran<Made, Error> {
        let mut tx = self.tx(moves, limits);
        tx.begin().await?;
        self.make_in(tx, moves, limits, step).await
    }

    /// Makes moves. What the database refuses of one that has the transaction for itself is a failure
    /// of its step.
    async fn make_in(
        &self,
        mut tx: Tx,
        moves: &[Move],
        limits: Limits,
        step: Duration,
    ) -> Ran<Made, Error> {
        let ran = self.run_all(moves, &mut tx, step).await;
        let is_open = tx.opened().is_some();
        let made = match ran {
            Ok(outcomes) => self.write(moves, outcomes, tx).await,
            Err(error) => Err(error.into()),
        };
        if let Err(Error::Unheard(_)) = made {
            for one in moves {
                one.unheard.store(true, Ordering::Relaxed);
            }
        }
        match made.map_err(|error| if is_open { error.inside() } else { error }) {
            Err(Error::Refused(error)) if moves.len() == 1 => {
                self.blame(moves, limits, error).await
            }
            made => made,
        }
    }

    /// Writes down that the only step of a transaction has failed, because that was refused.
    async fn blame(&self, moves: &[Move], limits: Limits, error: sqlx::Error) -> Ran<Made, Error> {
        let step = moves.first().and_then(|one| one.step.as_ref());
        let outcome = match step {
            None => return Err(Error::Refused(error)),
            Some(_) if is_passing(&error) && !limits.is_alone => Outcome::Alone(Hindrance::HeldUp),
            Some(step) => Outcome::failing(step, Failed::unsure(told(&error))),
        };
        self.write(moves, vec![outcome], self.tx(moves, limits))
            .await
    }

    fn tx(&self, moves: &[Move], limits: Limits) -> Tx {
        let places = moves.iter().map(|one| one.place).collect();
        let (pool, store) = (self.pool.get().clone(), Arc::clone(&self.store));
        let mut tx = Tx::new(pool, store, limits, places);
        let born = moves.iter().filter(|one| one.birth.is_some());
        tx.trust(born.map(|one| one.place.id));
        tx
    }

    /// Runs the steps of moves, one after the other.
    async fn run_all(
        &self,
        moves: &[Move],
        tx: &mut Tx,
        step: Duration,
    ) -> sqlx::Result<Vec<Outcome>> {
        let mut outcomes = Vec::with_capacity(moves.len());
        let mut pace = Pace::new(tx.is_alone());
        for (index, one) in moves.iter().enumerate() {
            tx.turn(index);
            let kind = one.kind().filter(|_| pace.is_over());
            outcomes.push(match kind {
                Some(kind) if pace.is_slow(kind) => Outcome::Alone(Hindrance::Slow),
                Some(_) => Outcome::Later,
                None => {
                    let began = Instant::now();
                    let outcome = self.run(one, tx, step).await?;
                    pace.took(one.kind(), outcome.hindrance(), began.elapsed());
                    outcome
                }
            });
        }
        crash_point("saga.acted");
        for index in tx.settle().await? {
            doom(moves, &mut outcomes, index);
        }
        for (index, outcome) in outcomes.iter_mut().enumerate() {
            tx.turn(index);
            if let Some(refused) = Outcome::of(tx.standing()) {
                *outcome = refused;
            }
        }
        Ok(outcomes)
    }

    /// Writes down what the steps came to, in their transaction if there is one, and commits.
    async fn write(&self, moves: &[Move], outcomes: Vec<Outcome>, tx: Tx) -> Ran<Made, Error> {
        let now = Millis::of(self.clock.now());
        let both = moves.iter().zip(outcomes);
        let made: Vec<_> = both
            .map(|(one, outcome)| moved(one, outcome, now, &self.faults))
            .collect();
        let written = rows(moves, &made)?;
        let heard = self.commit(tx, &written).await?;
        crash_point("saga.committed");
        Ok(verdicts(moves, made, heard))
    }

    /// Runs the step of a move, if it has one. An error is the transaction's.
    async fn run(&self, one: &Move, tx: &mut Tx, limit: Duration) -> sqlx::Result<Outcome> {
        let is_alone = tx.is_alone();
        let Some((step, part)) = one
            .step
            .as_ref()
            .and_then(|step| Some((step, one.declared.at(step.ix)?)))
        else {
            return Ok(Outcome::None);
        };
        if let Some(refused) = Outcome::of(tx.standing()) {
            return Ok(refused);
        }
        if !is_alone && wants_to_be_alone(part) {
            return Ok(Outcome::Alone(Hindrance::Slow));
        }
        if self.faults.take(part.name, step.at.phase, What::Abort) {
            return Ok(Outcome::failing(step, Failed::broken("aborted by a check")));
        }
        let limit = limit.min(part.timeout);
        let running = attempt(one, step, part, tx).instrument(self.sagas.span(&step.at));
        let running = AssertUnwindSafe(running).catch_unwind();
        let (outcome, hindrance) = match timeout(limit, running).await {
            Ok(Ok(outcome)) => {
                let hindrance = outcome.failed().and_then(|failed| failed.hindrance);
                (outcome, hindrance)
            }
            Ok(Err(panic)) => {
                let why = format!("panicked: {}", panic_message(&*panic));
                (Outcome::failing(step, Failed::unsure(why)), None)
            }
            Err(_elapsed) => {
                let why = format!("timed out after {limit:?}");
                let failed = Outcome::failing(step, Failed::unsure(why));
                (failed, Some(Hindrance::Slow))
            }
        };
        if let Some(refused) = Outcome::of(tx.standing()) {
            return Ok(refused);
        }
        let dies =
            hindrance.is_none() && (self.faults).take(part.name, step.at.phase, What::DieActed);
        if dies || outcome.failed().is_some() {
            tx.take_back(hindrance == Some(Hindrance::HeldUp)).await?;
        }
        if dies {
            return Ok(Outcome::Dead);
        }
        Ok(match hindrance {
            Some(hindrance) if !is_alone => Outcome::Alone(hindrance),
            _ => outcome,
        })
    }

    /// Writes the rows, in the transaction if there is one.
    async fn commit(&self, mut tx: Tx, written: &[Written<'_>]) -> Result<Answers, Error> {
        if let Some(open) = tx.opened() {
            let heard = self.store.write(open, written, self.lease, &self.owner);
            let heard = heard.await?;
            // What a step has written must not outlive its record.
            if heard.len() < written.len() {
                return Err(Error::Stale);
            }
            crash_point("saga.written");
            tx.commit().await.map_err(Error::at_commit)?;
            return Ok(heard);
        }
        if written.is_empty() {
            return Ok(Answers::new());
        }
        let mut line = Line::hurried(self.pool.get(), self.route, LOCKED).await?;
        let heard = self
            .store
            .write(line.connection(), written, self.lease, &self.owner)
            .await?;
        line.close().await?;
        Ok(heard)
    }
}

/// The story as it has become.
fn moved(one: &Move, outcome: Outcome, now: Millis, faults: &Faults) -> Result<Moved, Skipped> {
    let mut story = one.story.clone();
    let step = one.step.as_ref();
    let part = step.and_then(|step| one.declared.at(step.ix));
    let is_done = matches!(outcome, Outcome::Acted(Ok(_)));
    let pause = match (outcome, step.zip(part)) {
        (Outcome::Alone(why), _) => return Err(Skipped::Alone(why)),
        (Outcome::Later, _) => return Err(Skipped::Later),
        (Outcome::Stale, _) => return Err(Skipped::Stale),
        (Outcome::Dead, _) => return Err(Skipped::Dead),
        (Outcome::Acted(acted), Some((step, part))) => {
            story.begin(part, Some(step.input.clone()), now);
            story.acted(part, acted, now)
        }
        (Outcome::Undone(undone), Some((_, part))) => story.undone(part, undone, now),
        (Outcome::None | Outcome::Acted(_) | Outcome::Undone(_), _) => None,
    };
    if is_done && part.is_some_and(|part| faults.take(part.name, Phase::Act, What::Turn)) {
        story.turn_back(None, TURNED);
    }
    story.settle(&one.declared);
    let hold = if story.end.is_some() {
        Hold::End
    } else if story.stuck.is_some() {
        Hold::Wait(None)
    } else {
        match (one.then, pause) {
            (Then::Rest(pause), _) => Hold::Wait(Some(pause)),
            (Then::Go, Some(pause)) if pause > SHORT => Hold::Wait(Some(pause)),
            (Then::Go, _) => Hold::Keep,
        }
    };
    Ok(Moved {
        story,
        hold,
        pause,
        heard: Vec::new(),
    })
}

/// The rows of those moves that are to be written.
fn rows<'a>(
    moves: &'a [Move],
    made: &'a [Result<Moved, Skipped>],
) -> Result<Vec<Written<'a>>, Error> {
    let both = moves.iter().zip(made);
    both.filter_map(|(one, made)| Some((one, made.as_ref().ok()?)))
        .map(|(one, made)| {
            let story = &made.story;
            Ok(Written {
                place: one.place,
                birth: one.birth.as_ref(),
                hold: made.hold,
                state: story.state(),
                step: story.step(),
                story: serde_json::to_string(story).map_err(Error::Story)?,
                bounded: story.may_turn_back(&one.declared),
                awaits: awaits(story, &one.declared),
                heard: &one.heard,
            })
        })
        .collect()
}

/// The signals that would make it due, one to a line.
pub(super) fn awaits(story: &Story, declared: &Declared) -> Option<String> {
    let mut names = Vec::new();
    if story.direction == Direction::Forward && story.stuck.is_none() && story.end.is_none() {
        let waits = story.steps.iter().filter(|entry| {
            let part = declared.part(&entry.name).map(|(_, part)| &part.run);
            entry.state == Progress::Begun && matches!(part, Some(Run::Signal(_)))
        });
        names.extend(waits.map(|entry| entry.name.as_str()));
    }
    if story.may_turn_back(declared) {
        names.push(CANCEL);
    }
    (!names.is_empty()).then(|| names.join("\n"))
}

fn verdicts(moves: &[Move], made: Vec<Result<Moved, Skipped>>, mut heard: Answers) -> Verdicts {
    let both = moves.iter().zip(made);
    both.map(|(one, made)| match made {
        Err(Skipped::Stale) => Err(Error::Stale),
        Err(Skipped::Dead) => Err(Error::Dead),
        Err(Skipped::Alone(why)) => Ok(Made::Alone(why)),
        Err(Skipped::Later) => Ok(Made::Later),
        Ok(moved) => match heard.remove(&one.place.id) {
            Some(heard) => Ok(Made::Moved(Box::new(Moved { heard, ..moved }))),
            None => Err(Error::Stale),
        },
    })
    .collect()
}

impl Move {
    /// The kind of its local step: definition and name.
    fn kind(&self) -> Option<(&str, &'static str)> {
        let part = self.declared.at(self.step.as_ref()?.ix)?;
        Some((&self.declared.name, part.name))
    }
}
