//! A definition as data: what the executor, the console and a simulation go by.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use aws_lc_rs::digest::{Context, SHA256};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::erased::{ActLocal, ActRemote, Mapped, UndoLocal, UndoRemote};
use super::seen::Seen;
use super::step::{Local, Remote, Step};
use crate::jobs::BoxError;
use crate::retry::{Backoff, Policy};

/// A saga as it was declared, for data of type `I`. Clones are cheap.
pub struct Definition<I> {
    pub(super) declared: Arc<Declared>,
    pub(super) input: PhantomData<fn(I)>,
}

/// Why a definition is none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Invalid {
    /// A name that is empty, too long or not plain.
    #[error("`{0}` is not a valid name: use 1 to 100 letters, digits and any of . _ : / -")]
    Name(String),
    /// Two steps of one name.
    #[error("the step `{0}` is there twice")]
    Twice(String),
    /// A definition of this name and version is there already.
    #[error("version {version} of the saga `{name}` is there twice")]
    Version {
        /// The saga.
        name: String,
        /// Its version.
        version: u32,
    },
    /// No step at all.
    #[error("the saga `{0}` has no steps")]
    Empty(String),
    /// A version beyond what a row can hold.
    #[error("version {0} is too large")]
    TooLarge(u32),
}

/// What kind of step it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Kind {
    /// In this database.
    Local,
    /// Elsewhere.
    Remote,
    /// Waits for a signal.
    Signal,
    /// Waits for a time.
    Timer,
}

/// What may become of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Role {
    /// It can be undone.
    Compensable,
    /// The point of no return.
    Pivot,
    /// It is done in the end.
    Forward,
}

impl Kind {
    /// The word for it: `local`, `remote`, `signal` or `timer`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Remote => "remote",
            Self::Signal => "signal",
            Self::Timer => "timer",
        }
    }
}

impl Role {
    /// The word for it: `compensable`, `pivot` or `forward`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Compensable => "compensable",
            Self::Pivot => "pivot",
            Self::Forward => "forward",
        }
    }
}

/// A step as data.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Shape {
    /// Its name.
    pub name: String,
    /// What kind of step it is.
    pub kind: Kind,
    /// What may become of it.
    pub role: Role,
    /// Steps of one stage run side by side; stages come one after the other.
    pub stage: usize,
}

/// A definition without its types.
pub(super) struct Declared {
    pub(super) name: String,
    pub(super) version: u32,
    pub(super) timeout: Option<Duration>,
    pub(super) parts: Vec<Part>,
    /// Tells whether its steps are those that a saga was begun with. Made when all of them are known.
    pub(super) fingerprint: String,
}

/// A step without its types.
pub(super) struct Part {
    pub(super) name: &'static str,
    pub(super) role: Role,
    pub(super) stage: usize,
    pub(super) retry: Policy,
    pub(super) undo_retry: Policy,
    pub(super) timeout: Duration,
    pub(super) run: Run,
}

/// What it does.
pub(super) enum Run {
    Local(Arc<dyn ActLocal>, Option<Arc<dyn UndoLocal>>),
    Remote(Arc<dyn ActRemote>, Option<Arc<dyn UndoRemote>>),
    Signal(Duration),
    Timer(Duration),
}

impl Part {
    pub(super) const fn kind(&self) -> Kind {
        match self.run {
            Run::Local(..) => Kind::Local,
            Run::Remote(..) => Kind::Remote,
            Run::Signal(_) => Kind::Signal,
            Run::Timer(_) => Kind::Timer,
        }
    }

    /// How long it waits, if that is what it does.
    pub(super) const fn patience(&self) -> Option<Duration> {
        match self.run {
            Run::Signal(limit) | Run::Timer(limit) => Some(limit),
            Run::Local(..) | Run::Remote(..) => None,
        }
    }

    pub(super) const fn has_undo(&self) -> bool {
        matches!(self.run, Run::Local(_, Some(_)) | Run::Remote(_, Some(_)))
    }

    fn of<S: Step>(step: &S, run: Run) -> Self {
        Self {
            name: S::NAME,
            role: Role::Compensable,
            stage: 0,
            retry: step.retry(),
            undo_retry: step.undo_retry(),
            timeout: step.timeout(),
            run,
        }
    }

    pub(super) fn waits(name: &'static str, run: Run) -> Self {
        let policy = Policy::new(1, Backoff::default());
        Self {
            name,
            role: Role::Compensable,
            stage: 0,
            retry: policy.clone(),
            undo_retry: policy,
            timeout: Duration::MAX,
            run,
        }
    }

    pub(super) fn local<I, S, F>(step: &Arc<S>, map: F, undo: Option<Arc<dyn UndoLocal>>) -> Self
    where
        I: DeserializeOwned + Send + Sync + 'static,
        S: Local,
        F: Fn(&Seen<'_, I>) -> Result<S::Input, BoxError> + Send + Sync + 'static,
    {
        let act = Arc::new(Mapped::new(Arc::clone(step), map));
        Self::of(&**step, Run::Local(act, undo))
    }

    pub(super) fn remote<I, S, F>(step: &Arc<S>, map: F, undo: Option<Arc<dyn UndoRemote>>) -> Self
    where
        I: DeserializeOwned + Send + Sync + 'static,
        S: Remote,
        F: Fn(&Seen<'_, I>) -> Result<S::Input, BoxError> + Send + Sync + 'static,
    {
        let act = Arc::new(Mapped::new(Arc::clone(step), map));
        Self::of(&**step, Run::Remote(act, undo))
    }
}

impl Declared {
    pub(super) fn parts(&self) -> impl Iterator<Item = (usize, &Part)> {
        self.parts.iter().enumerate()
    }

    pub(super) fn at(&self, ix: usize) -> Option<&Part> {
        self.parts.get(ix)
    }

    pub(super) fn part(&self, name: &str) -> Option<(usize, &Part)> {
        self.parts().find(|(_, part)| part.name == name)
    }

    /// The names, kinds, roles and order of its steps, in short. Stored: it must be the same in every
    /// release that has the same steps.
    pub(super) fn print(&self) -> String {
        let mut shape = Context::new(&SHA256);
        for part in &self.parts {
            let kind = match part.kind() {
                Kind::Local => 'l',
                Kind::Remote => 'r',
                Kind::Signal => 's',
                Kind::Timer => 't',
            };
            let role = match part.role {
                Role::Compensable => 'c',
                Role::Pivot => 'p',
                Role::Forward => 'f',
            };
            let (name, stage) = (part.name, part.stage);
            shape.update(format!("{name} {kind}{role} {stage}\n").as_bytes());
        }
        let digest = shape.finish();
        let short = digest.as_ref().iter().take(8);
        short.map(|byte| format!("{byte:02x}")).collect()
    }

    /// The version as it is stored.
    pub(super) fn stored_version(&self) -> i32 {
        i32::try_from(self.version).unwrap_or(i32::MAX)
    }

    pub(super) fn push(&mut self, parts: impl IntoIterator<Item = Part>, role: Role) {
        let stage = self.parts.last().map_or(0, |part| part.stage + 1);
        self.parts.extend(parts.into_iter().map(|part| Part {
            role,
            stage,
            ..part
        }));
    }
}

impl<I> Definition<I> {
    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.declared.name
    }

    /// Its version.
    #[must_use]
    pub fn version(&self) -> u32 {
        self.declared.version
    }

    /// Its steps as data, in their order: also those that have not happened yet can be drawn.
    #[must_use]
    pub fn shape(&self) -> Vec<Shape> {
        self.declared.shape()
    }
}

impl Declared {
    pub(super) fn shape(&self) -> Vec<Shape> {
        let shape = |part: &Part| Shape {
            name: part.name.to_owned(),
            kind: part.kind(),
            role: part.role,
            stage: part.stage,
        };
        self.parts.iter().map(shape).collect()
    }
}

impl<I> Clone for Definition<I> {
    fn clone(&self) -> Self {
        Self {
            declared: Arc::clone(&self.declared),
            input: PhantomData,
        }
    }
}

impl fmt::Debug for Declared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let steps = self.parts.iter().map(|part| part.name);
        write!(f, "{} v{}: ", self.name, self.version)?;
        f.debug_list().entries(steps).finish()
    }
}

impl<I> fmt::Debug for Definition<I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.declared.fmt(f)
    }
}
