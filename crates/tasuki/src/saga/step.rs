//! What a saga is made of: steps, each a type with a name that outlives releases.
//!
//! A [`Local`] step works in the transaction in which its record is written: both are there, or
//! neither is. A [`Remote`] step has its effect elsewhere: that it was begun is durable before it is
//! called, and it may be called again, with the same [key](At::key).
//!
//! What can be undone says how: [`LocalUndo`], [`RemoteUndo`].

use std::future::Future;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::failure::{Again, Failure};
use super::{SagaId, Tx};
use crate::barrier;
use crate::retry::{Backoff, Policy};

/// One step of a saga: its name, what goes in, what comes out, and how it may fail.
pub trait Step: Send + Sync + 'static {
    /// What the rows call it. Never changes: rows outlive releases.
    const NAME: &'static str;

    /// What it needs to know. Stored as JSON before, or with, its effect.
    type Input: Serialize + DeserializeOwned + Send + Sync;

    /// What others need to know of it, its own compensation too. Stored as JSON.
    type Output: Serialize + DeserializeOwned + Send + Sync;

    /// [`Fail`](super::Fail) of an error, or [`Again`] of one: a step with the second never aborts
    /// a saga, and may stand behind the pivot.
    type Failure: Failure;

    /// How often the action is tried, and how long to wait in between.
    fn retry(&self) -> Policy {
        let backoff = Backoff::exponential(Duration::from_millis(200), Duration::from_secs(10));
        Policy::new(5, backoff.jitter(0.5, 1.5))
    }

    /// The same for the compensation. What fails for good needs a person.
    fn undo_retry(&self) -> Policy {
        Policy::leased()
    }

    /// How long one attempt, of the action or of its compensation, may take.
    fn timeout(&self) -> Duration {
        Duration::from_secs(30)
    }
}

/// A step whose effect is in this database.
///
/// Many sagas share one transaction, so an action awaits nothing but the database and is quick. One
/// that another transaction holds up, or that takes longer than a second, is undone and run again in
/// a transaction of its own.
pub trait Local: Step {
    /// Does it, and is committed with its record: never twice. Whatever it wrote is undone if this
    /// fails.
    fn act(
        &self,
        tx: &mut Tx,
        input: &Self::Input,
        at: &At,
    ) -> impl Future<Output = Result<Self::Output, Self::Failure>> + Send;

    /// Whether it always wants a transaction of its own: it takes long, or locks what many want.
    fn alone(&self) -> bool {
        false
    }
}

/// The compensation of a [`Local`] step: like its action, it is committed once.
pub trait LocalUndo: Local {
    /// Undoes it, by what it did and never by what was there before: others may have changed it since.
    fn undo(
        &self,
        tx: &mut Tx,
        input: &Self::Input,
        output: &Self::Output,
        at: &At,
    ) -> impl Future<Output = Result<(), Again>> + Send;
}

/// A step whose effect is elsewhere.
pub trait Remote: Step {
    /// Does it, with [`At::key`] as its idempotency key. May be called again, also by another process
    /// and while the first call still runs.
    fn act(
        &self,
        input: &Self::Input,
        at: &At,
    ) -> impl Future<Output = Result<Self::Output, Self::Failure>> + Send;
}

/// The compensation of a [`Remote`] step.
pub trait RemoteUndo: Remote {
    /// Undoes it. Without an `output` nobody knows whether, or how, the action ended: if it never
    /// happened there is nothing to do, and it must not happen later ([`At::action_key`]).
    fn undo(
        &self,
        input: &Self::Input,
        output: Option<&Self::Output>,
        at: &At,
    ) -> impl Future<Output = Result<(), Again>> + Send;
}

/// What a saga can wait for.
pub trait Signal: Send + Sync + 'static {
    /// What rows and senders call it. A name like that of a step, and none of them.
    const NAME: &'static str;

    /// What comes with it. Stored as JSON.
    type Payload: Serialize + DeserializeOwned + Send + Sync;
}

/// Whether it is done or undone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    /// The action.
    Act,
    /// Its compensation.
    Undo,
}

impl Phase {
    /// The word in keys.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Act => "act",
            Self::Undo => "undo",
        }
    }
}

/// Where in which saga an attempt is.
#[derive(Clone, Debug)]
pub struct At {
    pub(super) saga: SagaId,
    pub(super) step: String,
    pub(super) phase: Phase,
    pub(super) attempt: u32,
    pub(super) round: u32,
    pub(super) traceparent: Option<String>,
}

impl At {
    /// The saga.
    #[must_use]
    pub const fn saga(&self) -> SagaId {
        self.saga
    }

    /// The step.
    #[must_use]
    pub fn step(&self) -> &str {
        &self.step
    }

    /// Whether it is done or undone.
    #[must_use]
    pub const fn phase(&self) -> Phase {
        self.phase
    }

    /// Which attempt this is, as far as it is known; the first is 1.
    #[must_use]
    pub const fn attempt(&self) -> u32 {
        self.attempt
    }

    /// How often a person had sent the saga back to steps that had been undone when this one began:
    /// what is undone later is undone in the round in which it was done.
    #[must_use]
    pub const fn round(&self) -> u32 {
        self.round
    }

    /// `<saga>:<step>:<phase>`: the same in every attempt and every process, and of nothing else. A
    /// step that is done anew after it was undone has another (`….1`).
    #[must_use]
    pub fn key(&self) -> String {
        self.key_of(self.phase)
    }

    /// The key of the action that this compensates, or is.
    #[must_use]
    pub fn action_key(&self) -> String {
        self.key_of(Phase::Act)
    }

    /// The key for a [barrier] in front of this step, where the action and its
    /// compensation meet: the saga, and [`action_key`](Self::action_key) as the name of the step. A
    /// participant elsewhere that is sent both makes the same one.
    #[must_use]
    pub fn barrier_key(&self) -> barrier::Key {
        barrier::Key::new(self.saga.as_uuid(), self.action_key())
    }

    /// The trace of whoever started the saga.
    #[must_use]
    pub fn traceparent(&self) -> Option<&str> {
        self.traceparent.as_deref()
    }

    fn key_of(&self, phase: Phase) -> String {
        key(self.saga, &self.step, phase, self.round)
    }
}

/// By what others know a step that began in this round.
pub(super) fn key(saga: SagaId, step: &str, phase: Phase, round: u32) -> String {
    let phase = phase.as_str();
    match round {
        0 => format!("{saga}:{step}:{phase}"),
        round => format!("{saga}:{step}:{phase}.{round}"),
    }
}
