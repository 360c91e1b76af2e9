//! The journal: moves of sagas that wait at the same time share one commit.
//!
//! A move writes a saga's story as it has become, and runs the local step that makes it so in the
//! same transaction. Each is fenced by the token of its claim and by its number: a saga that somebody
//! else has by now fails alone, and no move is ever made twice.

use std::collections::HashMap;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::time::timeout;
use uuid::Uuid;

use super::define::{Declared, Part, Run};
use super::failure::Failed;
use super::fault::{Faults, What};
use super::json::Json;
use super::step::{At, Phase};
use super::store::{Birth, Heard, Hold, Place, Store, Written};
use super::story::{Direction, Millis, Progress, Story};
use super::tx::{Limits, Tx};
use crate::batch::{self, Group, Ran};
use crate::lease::{Line, OwnPool, Owner, Route};
use crate::testing::crash_point;
use crate::worker::panic_message;
use crate::{Clock, is_away};

/// How long a step may take in a transaction that others wait for.
const SHARED_STEP: Duration = Duration::from_secs(2);
/// Waits up to this long happen in memory.
pub(super) const SHORT: Duration = Duration::from_secs(1);
/// What a cancellation is called among the signals. No signal can have this name.
pub(super) const CANCEL: &str = "~cancel";

/// Writes moves.
pub(super) struct Journal {
    pub(super) pool: OwnPool,
    pub(super) store: Arc<Store>,
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
    /// The story before the step.
    pub(super) story: Story,
    pub(super) step: Option<LocalStep>,
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
    Alone,
}

/// Why a move was not made.
#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    /// Somebody else has the saga, or this very move was made before.
    #[error("the saga is another's, or has moved already")]
    Stale,
    #[error("the story can't be written as JSON")]
    Story(#[source] serde_json::Error),
    #[error("the journal could not be written")]
    Store(#[from] sqlx::Error),
}

/// Why a driver has to let its saga go.
#[derive(Clone, Debug, thiserror::Error)]
pub(super) enum Trouble {
    #[error("the saga is another's, or has moved already")]
    Stale,
    #[error("the journal could not be written")]
    Failed(#[source] Arc<Error>),
    #[error("the journal has stopped")]
    Stopped,
    #[error("too many sagas wait for the journal")]
    Overloaded,
    #[error("the journal was cut off")]
    Cut,
}

impl From<batch::Error<Error>> for Trouble {
    fn from(error: batch::Error<Error>) -> Self {
        match error {
            batch::Error::Refused(Error::Stale) => Self::Stale,
            batch::Error::Refused(error) => Self::Failed(Arc::new(error)),
            batch::Error::Failed(error) => match *error {
                Error::Stale => Self::Stale,
                _ => Self::Failed(error),
            },
            batch::Error::Stopped => Self::Stopped,
            batch::Error::Overloaded => Self::Overloaded,
            _ => Self::Cut,
        }
    }
}

impl From<Error> for Trouble {
    fn from(error: Error) -> Self {
        match error {
            Error::Stale => Self::Stale,
            error => Self::Failed(Arc::new(error)),
        }
    }
}

/// Why nothing is to be written.
#[derive(Clone, Copy, Debug)]
enum Skipped {
    Alone,
    Stale,
}

type Answers = HashMap<Uuid, Vec<Heard>>;
type Verdicts = Vec<Result<Made, Error>>;

/// What running a step came to.
enum Outcome {
    /// There was none.
    None,
    Acted(Result<Json, Failed>),
    Undone(Result<(), Failed>),
    Alone,
    Stale,
}

/// The journal for a batcher.
pub(super) struct Writer(pub(super) Arc<Journal>);

impl Group for Writer {
    type Command = Move;
    type Reply = Made;
    type Error = Error;

    async fn run(&self, moves: &[Move]) -> Ran<Made, Error> {
        self.0.write(moves, Limits::SHARED, SHARED_STEP).await
    }

    fn is_everyones(&self, error: &Error) -> bool {
        match error {
            Error::Store(error) => is_away(error),
            Error::Stale | Error::Story(_) => false,
        }
    }
}

impl Journal {
    /// Makes one move in a transaction of its own, whose step may take as long as it says.
    pub(super) async fn alone(&self, one: &Move) -> Result<Made, Error> {
        let step = one.step.as_ref().and_then(|step| one.declared.at(step.ix));
        let limit = step.map_or(SHARED_STEP, |part| part.timeout);
        let made = self.write(std::slice::from_ref(one), Limits::alone(limit), limit);
        let made = made.await?.into_iter().next();
        made.unwrap_or(Err(Error::Stale))
    }

    async fn write(&self, moves: &[Move], limits: Limits, step: Duration) -> Ran<Made, Error> {
        let is_alone = limits.lock > Limits::SHARED.lock;
        let places = moves.iter().map(|one| one.place).collect();
        let mut tx = Tx::new(
            self.pool.get().clone(),
            Arc::clone(&self.store),
            limits,
            places,
        );
        let born = moves.iter().filter(|one| one.birth.is_some());
        tx.trust(born.map(|one| one.place.id));
        let mut outcomes = Vec::with_capacity(moves.len());
        for (index, one) in moves.iter().enumerate() {
            tx.turn(index);
            let outcome = self.run(one, &mut tx, step, is_alone).await?;
            outcomes.push(outcome);
        }
        crash_point("saga.acted");
        for index in tx.settle().await? {
            doom(moves, &mut outcomes, index);
        }
        for (index, outcome) in outcomes.iter_mut().enumerate() {
            tx.turn(index);
            if tx.is_stale() {
                *outcome = Outcome::Stale;
            }
        }
        let now = Millis::of(self.clock.now());
        let both = moves.iter().zip(outcomes);
        let made: Vec<_> = both
            .map(|(one, outcome)| moved(one, outcome, now))
            .collect();
        let written = rows(moves, &made)?;
        let heard = self.commit(tx, &written).await?;
        crash_point("saga.committed");
        Ok(verdicts(moves, made, heard))
    }

    /// Runs the step of a move, if it has one. An error is the transaction's.
    async fn run(
        &self,
        one: &Move,
        tx: &mut Tx,
        limit: Duration,
        is_alone: bool,
    ) -> sqlx::Result<Outcome> {
        let Some((step, part)) = one
            .step
            .as_ref()
            .and_then(|step| Some((step, one.declared.at(step.ix)?)))
        else {
            return Ok(Outcome::None);
        };
        if tx.is_stale() {
            return Ok(Outcome::Stale);
        }
        if !is_alone && wants_to_be_alone(part) {
            return Ok(Outcome::Alone);
        }
        if self.faults.take(part.name, step.at.phase, What::Abort) {
            return Ok(Outcome::failing(step, Failed::broken("aborted by a check")));
        }
        let limit = limit.min(part.timeout);
        let running = AssertUnwindSafe(attempt(one, step, part, tx)).catch_unwind();
        let (outcome, contended) = match timeout(limit, running).await {
            Ok(Ok(outcome)) => {
                let contended = outcome.failed().is_some_and(|failed| failed.contended);
                (outcome, contended)
            }
            Ok(Err(panic)) => {
                let why = format!("panicked: {}", panic_message(&*panic));
                (Outcome::failing(step, Failed::unsure(why)), false)
            }
            Err(_elapsed) => {
                let why = format!("timed out after {limit:?}");
                (Outcome::failing(step, Failed::unsure(why)), true)
            }
        };
        if tx.is_stale() {
            return Ok(Outcome::Stale);
        }
        if outcome.failed().is_some() {
            tx.take_back().await?;
        }
        Ok(if contended && !is_alone {
            Outcome::Alone
        } else {
            outcome
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
            tx.commit().await?;
            return Ok(heard);
        }
        if written.is_empty() {
            return Ok(Answers::new());
        }
        let mut line = Line::open(self.pool.get(), self.route).await?;
        let heard = self
            .store
            .write(line.connection(), written, self.lease, &self.owner)
            .await?;
        line.close().await?;
        Ok(heard)
    }
}

fn wants_to_be_alone(part: &Part) -> bool {
    match &part.run {
        Run::Local(act, _) => act.alone(),
        Run::Remote(..) | Run::Signal(_) | Run::Timer(_) => false,
    }
}

/// One attempt of a local action or compensation.
async fn attempt(one: &Move, step: &LocalStep, part: &Part, tx: &mut Tx) -> Outcome {
    let Run::Local(act, undo) = &part.run else {
        return Outcome::None;
    };
    match (step.at.phase, undo) {
        (Phase::Act, _) => Outcome::Acted(act.act(tx, &step.input, &step.at).await),
        (Phase::Undo, None) => Outcome::Undone(Ok(())),
        (Phase::Undo, Some(undo)) => {
            let entry = one.story.entry(part.name);
            let Some(output) = entry.and_then(|entry| entry.output.as_ref()) else {
                // A local step without an output has not happened.
                return Outcome::Undone(Ok(()));
            };
            Outcome::Undone(undo.undo(tx, &step.input, output, &step.at).await)
        }
    }
}

/// The step at `index` had met an error of the database, and did not say so.
fn doom(moves: &[Move], outcomes: &mut [Outcome], index: usize) {
    let step = moves.get(index).and_then(|one| one.step.as_ref());
    if let (Some(step), Some(outcome)) = (step, outcomes.get_mut(index)) {
        let why = "a statement failed, and the step did not say so: what it wrote is undone";
        *outcome = Outcome::failing(step, Failed::unsure(why));
    }
}

/// The story as it has become.
fn moved(one: &Move, outcome: Outcome, now: Millis) -> Result<Moved, Skipped> {
    let mut story = one.story.clone();
    let step = one.step.as_ref();
    let part = step.and_then(|step| one.declared.at(step.ix));
    let pause = match (outcome, step.zip(part)) {
        (Outcome::Alone, _) => return Err(Skipped::Alone),
        (Outcome::Stale, _) => return Err(Skipped::Stale),
        (Outcome::Acted(acted), Some((step, part))) => {
            story.begin(part, Some(step.input.clone()), now);
            story.acted(part, acted, now)
        }
        (Outcome::Undone(undone), Some((_, part))) => story.undone(part, undone, now),
        (Outcome::None | Outcome::Acted(_) | Outcome::Undone(_), _) => None,
    };
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
        Err(Skipped::Alone) => Ok(Made::Alone),
        Ok(moved) => match heard.remove(&one.place.id) {
            Some(heard) => Ok(Made::Moved(Box::new(Moved { heard, ..moved }))),
            None => Err(Error::Stale),
        },
    })
    .collect()
}

impl Outcome {
    fn failed(&self) -> Option<&Failed> {
        match self {
            Self::Acted(Err(failed)) | Self::Undone(Err(failed)) => Some(failed),
            _ => None,
        }
    }

    fn failing(step: &LocalStep, failed: Failed) -> Self {
        match step.at.phase {
            Phase::Act => Self::Acted(Err(failed)),
            Phase::Undo => Self::Undone(Err(failed)),
        }
    }
}
