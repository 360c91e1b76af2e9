//! Breaks a saga at every step, with its real steps on a real database, and compares what is left
//! (feature `testing`).
//!
//! For each step and each wait: it aborts there, or what it waits for does not come, and everything is
//! as before. The process dies when it is about to begin, when it is done and when that is written down,
//! on the way there and on the way back: another process finishes it, and the result is the same. A call
//! elsewhere is made twice, and so is its compensation, and the result is the same; it is done and nobody
//! hears of it, and everything is as before. It is not done, and nobody knows that: its compensation, which
//! is called all the same, must find that there is nothing to undo. (What is behind the pivot is always
//! done in the end.)
//!
//! Where no later step can abort, the saga turns back when the step is done, as by a cancellation. So
//! also the compensation of a last local step is checked, which is called only when a later version
//! has a step behind it.
//!
//! ```no_run
//! # async fn shown(
//! #     pool: sqlx::PgPool, sagas: tasuki::saga::Sagas, order: tasuki::saga::Definition<u32>,
//! # ) -> Result<(), Box<dyn std::error::Error>> {
//! # async fn stock(_: &sqlx::PgPool, _: &u32) -> i64 { 0 }
//! let checked = tasuki::saga::check::Check::new(&pool, &sagas)
//!     // A new order each time, and what may be left of it.
//!     .every_step(&order, |n| n, async |order| stock(&pool, order).await)
//!     .await?;
//! assert!(checked > 5);
//! # Ok(()) }
//! ```

use std::fmt::Debug;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use sqlx::PgPool;

use super::define::{Definition, Kind, Role, Shape};
use super::engine::Engine;
use super::fault::{Faults, What};
use super::registry::Registry;
use super::settings::Settings;
use super::step::{Phase, Signal};
use super::view::{Ended, State};
use super::{Error, SagaId, Sagas};
use crate::Clock;
use crate::lease::Owner;
use crate::worker::Supervisor;

/// How long one saga may take.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long its process may take to stop.
const GRACE: Duration = Duration::from_secs(10);
/// How often it is looked whether a process has died.
const LOOK: Duration = Duration::from_millis(5);

/// Where a process dies of a step.
const DEATHS: [(&str, What); 3] = [
    ("is about to begin", What::DieBegun),
    ("is done", What::DieActed),
    ("is written down", What::DieMoved),
];

/// Checks sagas on one database.
#[derive(Clone, Debug)]
pub struct Check {
    pool: PgPool,
    sagas: Sagas,
    /// What is said to each, by name and as JSON.
    said: Vec<(&'static str, String)>,
}

/// What a check has found.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Broken {
    /// It did not end as it should have.
    #[error("{fault}: the saga ended as {state}, not as {expected} ({reason:?})")]
    Ended {
        /// What had been broken.
        fault: String,
        /// How it ended.
        state: State,
        /// How it should have.
        expected: State,
        /// Why.
        reason: Option<String>,
    },
    /// Something else is left than should be.
    #[error("{fault}: {found} is left, and not {expected}")]
    Left {
        /// What had been broken.
        fault: String,
        /// What is left.
        found: String,
        /// What should be.
        expected: String,
    },
    /// It took too long.
    #[error("{0}: the saga did not end")]
    Stuck(String),
    /// What was to be broken was never reached.
    #[error("{0}: the saga never came there")]
    Unreached(String),
    /// The saga could not be run.
    #[error("the saga could not be run")]
    Saga(#[from] Error),
}

/// One way to break a saga.
struct Case {
    name: String,
    faults: Vec<(String, Phase, What)>,
    dies: bool,
    ends: State,
}

impl Check {
    /// Checks sagas in the schema of `sagas`.
    #[must_use]
    pub fn new(pool: &PgPool, sagas: &Sagas) -> Self {
        Self {
            pool: pool.clone(),
            sagas: sagas.clone(),
            said: Vec::new(),
        }
    }

    /// Says `S` to each saga when it has begun, for a definition that waits for it.
    ///
    /// # Errors
    /// When the payload can't be written as JSON.
    pub fn hears<S: Signal>(mut self, payload: &S::Payload) -> Result<Self, Broken> {
        let payload = serde_json::to_string(payload).map_err(Error::Input)?;
        self.said.push((S::NAME, payload));
        Ok(self)
    }

    /// Breaks `definition` in every way at every step, and says in how many. `input` makes the nth
    /// input, `left` says what there is of it: the same for each input before anything was done, and
    /// the same for each that is done. The definition must complete by itself, with what it
    /// [`hears`](Self::hears), and without long timers.
    ///
    /// # Errors
    /// The first way that leaves something behind, or leaves it half done.
    pub async fn every_step<I, T>(
        &self,
        definition: &Definition<I>,
        mut input: impl FnMut(u32) -> I,
        left: impl AsyncFn(&I) -> T,
    ) -> Result<usize, Broken>
    where
        I: Serialize + DeserializeOwned + Send + Sync + 'static,
        T: PartialEq + Debug,
    {
        let first = input(0);
        let before = left(&first).await;
        let whole = Case::new("nothing is broken", [], State::Completed);
        self.run(definition, &first, &whole).await?;
        let done = left(&first).await;
        let cases = cases(&definition.shape());
        for (case, n) in cases.iter().zip(1..) {
            let input = input(n);
            self.run(definition, &input, case).await?;
            let found = left(&input).await;
            let expected = match case.ends {
                State::Completed => &done,
                _ => &before,
            };
            if found != *expected {
                return Err(Broken::Left {
                    fault: case.name.clone(),
                    found: format!("{found:?}"),
                    expected: format!("{expected:?}"),
                });
            }
        }
        Ok(cases.len())
    }

    /// Runs one saga that breaks like this.
    async fn run<I>(&self, definition: &Definition<I>, input: &I, case: &Case) -> Result<(), Broken>
    where
        I: Serialize + DeserializeOwned + Send + Sync + 'static,
    {
        let running = self.finish(definition, input, case);
        let late = |_| Broken::Stuck(case.name.clone());
        let ended = tokio::time::timeout(PATIENCE, running)
            .await
            .map_err(late)??;
        if ended.state == case.ends {
            return Ok(());
        }
        Err(Broken::Ended {
            fault: case.name.clone(),
            state: ended.state,
            expected: case.ends.clone(),
            reason: ended.reason,
        })
    }

    async fn finish<I>(
        &self,
        definition: &Definition<I>,
        input: &I,
        case: &Case,
    ) -> Result<Ended, Broken>
    where
        I: Serialize + DeserializeOwned + Send + Sync + 'static,
    {
        let faults = Faults::default();
        for (step, phase, what) in &case.faults {
            faults.add(step, *phase, *what);
        }
        let (engine, supervisor) = self.process(definition, faults.clone())?;
        // Not by the engine, which would begin it and do its first step as one.
        let mut connection = self.pool.acquire().await.map_err(Error::Store)?;
        let id = self.sagas.start(&mut connection, definition, input).await?;
        for (name, payload) in &self.said {
            let store = &self.sagas.store;
            let saying = store.signal(&mut connection, id.as_uuid(), name, payload);
            saying.await.map_err(Error::Store)?;
        }
        drop(connection);
        let ended = if case.dies {
            while faults.left() > 0 && !self.has_ended(id).await? {
                tokio::time::sleep(LOOK).await;
            }
            let _how = supervisor.stop(GRACE).await;
            self.bury(&engine).await?;
            let (heir, supervisor) = self.process(definition, Faults::default())?;
            let ended = heir.wait(id).await?;
            let _how = supervisor.stop(GRACE).await;
            ended
        } else {
            let ended = engine.wait(id).await?;
            let _how = supervisor.stop(GRACE).await;
            ended
        };
        if ended.state == State::Compensated {
            // Who has one attempt has given up before a later one.
            faults.forget(What::AbortLater);
        }
        if faults.left() > 0 {
            return Err(Broken::Unreached(case.name.clone()));
        }
        Ok(ended)
    }

    fn process<I>(
        &self,
        definition: &Definition<I>,
        faults: Faults,
    ) -> Result<(Engine, Supervisor), Broken> {
        let settings = Settings::new("check.sagas", self.pool.clone())
            .owner(Owner::on("check"))
            .poll(LOOK)
            .faults(faults);
        let registry = Registry::new().with(definition);
        // One definition is never there twice.
        let engine = Engine::new(&self.sagas, registry, settings)
            .map_err(|invalid| Error::Journal(invalid.into()))?;
        let supervisor = Supervisor::new(Clock::system());
        engine.start(&supervisor);
        Ok((engine, supervisor))
    }

    async fn has_ended(&self, id: SagaId) -> Result<bool, Broken> {
        let mut connection = self.pool.acquire().await.map_err(Error::Store)?;
        let view = self.sagas.get(&mut connection, id).await?;
        Ok(view.is_some_and(|view| view.state.is_final()))
    }

    /// What a dead process held is free.
    async fn bury(&self, dead: &Engine) -> Result<(), Broken> {
        let mut connection = self.pool.acquire().await.map_err(Error::Store)?;
        let owners = [dead.0.settings.owner.as_str().to_owned()];
        let buried = self.sagas.store.bereave(&mut connection, &owners).await;
        buried.map_err(Error::Store)?;
        Ok(())
    }
}

impl Case {
    fn new(
        name: impl Into<String>,
        faults: impl Into<Vec<(String, Phase, What)>>,
        ends: State,
    ) -> Self {
        let faults = faults.into();
        let dies = |what: What| DEATHS.iter().any(|(_, death)| *death == what);
        Self {
            name: name.into(),
            dies: faults.iter().any(|(_, _, what)| dies(*what)),
            faults,
            ends,
        }
    }
}

/// Every way to break a saga of this shape.
fn cases(shape: &[Shape]) -> Vec<Case> {
    let acts = |step: &&Shape| matches!(step.kind, Kind::Local | Kind::Remote);
    // Where everything before it is undone.
    let last = shape
        .iter()
        .filter(acts)
        .rfind(|step| step.role != Role::Forward);
    let mut cases = Vec::new();
    for step in shape {
        forth(step, &mut cases);
        if acts(&step) && step.role == Role::Compensable {
            back(
                step,
                last.filter(|last| last.stage > step.stage),
                &mut cases,
            );
        }
    }
    cases
}

/// On the way there.
fn forth(step: &Shape, cases: &mut Vec<Case>) {
    let name = &step.name;
    let act = |what| vec![(name.clone(), Phase::Act, what)];
    let mut case = |what: &str, faults, ends| {
        cases.push(Case::new(format!("{name} {what}"), faults, ends));
    };
    if step.kind == Kind::Signal && step.role == Role::Compensable {
        case("does not come", act(What::Abort), State::Compensated);
    } else if step.kind != Kind::Timer && step.role != Role::Forward {
        case("aborts", act(What::Abort), State::Compensated);
    }
    for (when, dies) in DEATHS {
        case(
            &format!("{when} as the process dies"),
            act(dies),
            State::Completed,
        );
    }
    if step.kind == Kind::Remote {
        case("is done twice", act(What::Twice), State::Completed);
    }
    if step.kind == Kind::Remote && step.role == Role::Compensable {
        for (how, what) in [
            ("is done, unheard, and aborts then", What::Unknown),
            ("is not done, unheard, and aborts then", What::Missing),
        ] {
            let unheard = [act(what), act(What::AbortLater)].concat();
            case(how, unheard, State::Compensated);
        }
    }
}

/// On the way back: from `last`, which aborts, or from the step itself.
fn back(step: &Shape, last: Option<&Shape>, cases: &mut Vec<Case>) {
    let name = &step.name;
    let turn = match last {
        Some(last) => (last.name.clone(), Phase::Act, What::Abort),
        None => (name.clone(), Phase::Act, What::Turn),
    };
    let why = match last {
        Some(last) => format!("{} aborts", last.name),
        None => format!("nobody wants it after {name}"),
    };
    let mut case = |what: &str, fault| {
        let faults = vec![turn.clone(), (name.clone(), Phase::Undo, fault)];
        let name = format!("{why}, the undoing of {name} {what}");
        cases.push(Case::new(name, faults, State::Compensated));
    };
    for (when, dies) in DEATHS {
        case(&format!("{when} as the process dies"), dies);
    }
    if step.kind == Kind::Remote {
        case("is done twice", What::Twice);
    }
}
