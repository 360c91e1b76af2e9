//! One attempt of a local step in its transaction, and what it came to.

use super::define::{Part, Run};
use super::failure::{Failed, Hindrance};
use super::journal::{LocalStep, Move};
use super::json::Json;
use super::step::Phase;
use super::tx::{Standing, Tx};

/// What running a step came to.
pub(super) enum Outcome {
    /// There was none.
    None,
    Acted(Result<Json, Failed>),
    Undone(Result<(), Failed>),
    Alone(Hindrance),
    Later,
    Stale,
    /// It was run, and its process has died, says a check.
    Dead,
}

/// Whether it says that it takes long.
pub(super) fn wants_to_be_alone(part: &Part) -> bool {
    match &part.run {
        Run::Local(act, _) => act.alone(),
        Run::Remote(..) | Run::Signal(_) | Run::Timer(_) => false,
    }
}

/// One attempt of a local action or compensation.
pub(super) async fn attempt(one: &Move, step: &LocalStep, part: &Part, tx: &mut Tx) -> Outcome {
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
pub(super) fn doom(moves: &[Move], outcomes: &mut [Outcome], index: usize) {
    let step = moves.get(index).and_then(|one| one.step.as_ref());
    if let (Some(step), Some(outcome)) = (step, outcomes.get_mut(index)) {
        let why = "a statement failed, and the step did not say so: what it wrote is undone";
        *outcome = Outcome::failing(step, Failed::unsure(why));
    }
}

impl Outcome {
    /// What a saga comes to that no step is run for.
    pub(super) const fn of(standing: Standing) -> Option<Self> {
        match standing {
            Standing::Ours => None,
            Standing::Busy => Some(Self::Alone(Hindrance::HeldUp)),
            Standing::Stale => Some(Self::Stale),
        }
    }

    pub(super) const fn hindrance(&self) -> Option<Hindrance> {
        match self {
            Self::Alone(hindrance) => Some(*hindrance),
            _ => None,
        }
    }

    pub(super) fn failed(&self) -> Option<&Failed> {
        match self {
            Self::Acted(Err(failed)) | Self::Undone(Err(failed)) => Some(failed),
            _ => None,
        }
    }

    pub(super) fn failing(step: &LocalStep, failed: Failed) -> Self {
        match step.at.phase {
            Phase::Act => Self::Acted(Err(failed)),
            Phase::Undo => Self::Undone(Err(failed)),
        }
    }
}
