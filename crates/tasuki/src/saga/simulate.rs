//! A definition, run in memory with the outcomes that a script says: no database, no step is called.
//!
//! What is real are the definition, the closures that make inputs, and the rules: which step comes when,
//! what is undone, where a saga gets stuck.
//!
//! ```
//! use tasuki::saga::{self, Again, At, Fail, Remote, RemoteUndo, State, Step};
//!
//! struct Charge;
//! impl Step for Charge {
//!     const NAME: &'static str = "charge";
//!     type Input = i64;
//!     type Output = String;
//!     type Failure = Fail<std::io::Error>;
//! }
//! # impl Remote for Charge {
//! #     async fn act(&self, _: &i64, _: &At) -> Result<String, Fail<std::io::Error>> { Ok(String::new()) }
//! # }
//! # impl RemoteUndo for Charge {
//! #     async fn undo(&self, _: &i64, _: Option<&String>, _: &At) -> Result<(), Again> { Ok(()) }
//! # }
//!
//! let order = saga::define::<i64>("order", 1)
//!     .remote(Charge, |saga| Ok(*saga.input()))
//!     .build()?;
//! let paid = order.simulate(&500)?.gives::<Charge>(&"pay-1".to_owned())?.run()?;
//! assert_eq!(paid.state, State::Completed);
//! let unknown = order.simulate(&500)?.unknown::<Charge>().aborts::<Charge>().run()?;
//! assert_eq!(unknown.calls, ["charge:act", "charge:act", "charge:undo"]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::collections::{HashMap, VecDeque};

use serde::Serialize;
use serde_json::Value;
use uuid::Uuid;

use super::define::{Declared, Definition, Part, Run};
use super::failure::{Failed, Verdict};
use super::json::Json;
use super::plan::Next;
use super::step::Phase;
use super::story::{Millis, Story};
use super::view::{Ended, State};
use super::{Error, SagaId, Signal, Step};

/// A saga without end would be simulated without end.
const STEPS: usize = 10_000;
/// All at the same moment.
const NOW: Millis = Millis(0);

/// A script for one saga. What it does not mention succeeds.
#[derive(Clone, Debug)]
pub struct Simulation<'a> {
    declared: &'a Declared,
    story: Story,
    script: HashMap<(&'static str, Phase), VecDeque<Verdict>>,
    outputs: HashMap<&'static str, Json>,
    cancelled: Option<&'static str>,
}

/// How a simulation ended.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Simulated {
    /// The state in which nothing more happens by itself.
    pub state: State,
    /// Why it was unwound, or needs a person.
    pub reason: Option<String>,
    /// `<step>:act` and `<step>:undo`, in the order in which they were called.
    pub calls: Vec<String>,
    /// What the steps were given.
    pub inputs: HashMap<String, Value>,
}

impl<I: Serialize> Definition<I> {
    /// Runs it in memory with `input`.
    ///
    /// # Errors
    /// When `input` can't be written as JSON.
    pub fn simulate(&self, input: &I) -> Result<Simulation<'_>, Error> {
        let input = Json::of(input).map_err(Error::Input)?;
        Ok(Simulation {
            declared: &self.declared,
            story: Story::new(input, &self.declared.fingerprint),
            script: HashMap::new(),
            outputs: HashMap::new(),
            cancelled: None,
        })
    }
}

impl Simulation<'_> {
    /// Step `S` gives this when it succeeds; without it, nothing (`null`).
    ///
    /// # Errors
    /// When the output can't be written as JSON.
    pub fn gives<S: Step>(mut self, output: &S::Output) -> Result<Self, Error> {
        let output = Json::of(output).map_err(Error::Input)?;
        self.outputs.insert(S::NAME, output);
        Ok(self)
    }

    /// Signal `S` comes in time, with this.
    ///
    /// # Errors
    /// When the payload can't be written as JSON.
    pub fn hears<S: Signal>(mut self, payload: &S::Payload) -> Result<Self, Error> {
        let payload = Json::of(payload).map_err(Error::Input)?;
        self.outputs.insert(S::NAME, payload);
        Ok(self)
    }

    /// The next attempt of `S` aborts.
    #[must_use]
    pub fn aborts<S: Step>(self) -> Self {
        self.tell(S::NAME, Phase::Act, Verdict::Abort)
    }

    /// The next attempt of `S` did not happen, and is repeated.
    #[must_use]
    pub fn retries<S: Step>(self) -> Self {
        let (after, unsure) = (None, false);
        self.tell(S::NAME, Phase::Act, Verdict::again(after, unsure))
    }

    /// Nobody knows how the next attempt of `S` ended.
    #[must_use]
    pub fn unknown<S: Step>(self) -> Self {
        let (after, unsure) = (None, true);
        self.tell(S::NAME, Phase::Act, Verdict::again(after, unsure))
    }

    /// The next attempt of `S` will not succeed by itself.
    #[must_use]
    pub fn is_stuck<S: Step>(self) -> Self {
        self.tell(S::NAME, Phase::Act, Verdict::Stuck)
    }

    /// The next attempt to undo `S` fails for good.
    #[must_use]
    pub fn undo_is_stuck<S: Step>(self) -> Self {
        self.tell(S::NAME, Phase::Undo, Verdict::Stuck)
    }

    /// It is cancelled when it comes to `S`.
    #[must_use]
    pub fn cancelled_at<S: Step>(mut self) -> Self {
        self.cancelled = Some(S::NAME);
        self
    }

    fn tell(mut self, step: &'static str, phase: Phase, verdict: Verdict) -> Self {
        self.script
            .entry((step, phase))
            .or_default()
            .push_back(verdict);
        self
    }

    /// Runs it to where nothing more happens by itself.
    ///
    /// # Errors
    /// When it does not come to an end.
    pub fn run(mut self) -> Result<Simulated, Error> {
        let mut calls = Vec::new();
        for _ in 0..STEPS {
            match self.story.next(self.declared) {
                Next::End(end) => {
                    self.story.end = Some(end);
                    return Ok(self.told(calls));
                }
                Next::Stuck => return Ok(self.told(calls)),
                Next::Local(ix) | Next::Wait(ix) => self.act(ix, &mut calls),
                Next::Remote(ixs) => ixs.iter().for_each(|ix| self.act(*ix, &mut calls)),
                Next::Undo(ix) => self.undo(ix, &mut calls),
            }
        }
        Err(Error::Refused {
            id: SagaId::from(Uuid::nil()),
            why: format!("it does not end within {STEPS} steps"),
        })
    }

    fn act(&mut self, ix: usize, calls: &mut Vec<String>) {
        let Some(part) = self.declared.at(ix) else {
            return;
        };
        if self.cancelled == Some(part.name) && self.story.may_turn_back(self.declared) {
            return self.story.turn_back(None, "cancelled");
        }
        let id = SagaId::from(Uuid::nil());
        let input = match &part.run {
            Run::Local(act, _) => act.input(id, &self.story).map(Some),
            Run::Remote(act, _) => act.input(id, &self.story).map(Some),
            Run::Signal(_) | Run::Timer(_) => Ok(None),
        };
        let acted = match input {
            Err(failed) => {
                self.story.begin(part, None, NOW);
                Err(failed)
            }
            Ok(input) => {
                if input.is_some() {
                    calls.push(format!("{}:act", part.name));
                }
                self.story.begin(part, input, NOW);
                self.outcome(part)
            }
        };
        self.story.acted(part, acted, NOW);
    }

    fn outcome(&mut self, part: &Part) -> Result<Json, Failed> {
        if let Some(verdict) = self.said(part, Phase::Act) {
            return Err(Failed::scripted(verdict));
        }
        let output = self.outputs.get(part.name).cloned();
        match (output, &part.run) {
            (Some(output), _) => Ok(output),
            (None, Run::Signal(_)) => Err(Failed::broken("did not come in time")),
            (None, _) => {
                Json::of(&()).map_err(|error| Failed::broken(format!("no output: {error}")))
            }
        }
    }

    fn undo(&mut self, ix: usize, calls: &mut Vec<String>) {
        let Some(part) = self.declared.at(ix) else {
            return;
        };
        calls.push(format!("{}:undo", part.name));
        let undone = match self.said(part, Phase::Undo) {
            Some(verdict) => Err(Failed::scripted(verdict)),
            None => Ok(()),
        };
        self.story.undone(part, undone, NOW);
    }

    fn said(&mut self, part: &Part, phase: Phase) -> Option<Verdict> {
        self.script.get_mut(&(part.name, phase))?.pop_front()
    }

    fn told(self, calls: Vec<String>) -> Simulated {
        let ended = Ended::of(Uuid::nil(), &self.story);
        let inputs = self.story.steps.iter().filter_map(|entry| {
            let input = entry.input.as_ref()?.value();
            Some((entry.name.clone(), input))
        });
        Simulated {
            state: ended.state,
            reason: ended.reason,
            calls,
            inputs: inputs.collect(),
        }
    }
}
