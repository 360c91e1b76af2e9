//! A saga, declared: steps as data, checked by the compiler where it can and at
//! [`build`](Builder::build) where it can't.
//!
//! The builder knows on which side of the pivot it is. Before it, a step must bring its
//! compensation; behind it, a step must not be able to abort:
//!
//! ```compile_fail
//! # use tasuki::saga::{At, Fail, Local, Step, Tx, define};
//! struct Reserve;
//! impl Step for Reserve {
//!     const NAME: &'static str = "reserve";
//!     type Input = ();
//!     type Output = ();
//!     type Failure = Fail<std::io::Error>;
//! }
//! impl Local for Reserve {
//!     async fn act(&self, _: &mut Tx, (): &(), _: &At) -> Result<(), Fail<std::io::Error>> {
//!         Ok(())
//!     }
//! }
//! define::<()>("order", 1).local(Reserve, |_| Ok(())); // No `LocalUndo`.
//! ```
//!
//! ```compile_fail
//! # use tasuki::saga::{At, Fail, Local, Step, Tx, define};
//! # struct Reserve;
//! # impl Step for Reserve {
//! #     const NAME: &'static str = "reserve";
//! #     type Input = ();
//! #     type Output = ();
//! #     type Failure = Fail<std::io::Error>;
//! # }
//! # impl Local for Reserve {
//! #     async fn act(&self, _: &mut Tx, (): &(), _: &At) -> Result<(), Fail<std::io::Error>> {
//! #         Ok(())
//! #     }
//! # }
//! # struct Confirm;
//! # impl Step for Confirm {
//! #     const NAME: &'static str = "confirm";
//! #     type Input = ();
//! #     type Output = ();
//! #     type Failure = Fail<std::io::Error>;
//! # }
//! # impl Local for Confirm {
//! #     async fn act(&self, _: &mut Tx, (): &(), _: &At) -> Result<(), Fail<std::io::Error>> {
//! #         Ok(())
//! #     }
//! # }
//! define::<()>("order", 1)
//!     .pivot_local(Confirm, |_| Ok(()))
//!     .local(Reserve, |_| Ok(())); // `Fail` can abort.
//! ```

use std::collections::HashSet;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::define::{Declared, Definition, Invalid, Part, Role, Run};
use super::erased::Undo;
use super::failure::Again;
use super::seen::Seen;
use super::step::{Local, LocalUndo, Remote, RemoteUndo, Signal, Step};
use crate::jobs::{BoxError, is_name};

/// Before the pivot: whatever is done can be undone.
#[derive(Debug)]
pub struct Before(());

/// Behind the pivot: there is only forward.
#[derive(Debug)]
pub struct After(());

/// Makes a [`Definition`]; `P` is on which side of the pivot it has come.
pub struct Builder<I, P> {
    declared: Declared,
    place: PhantomData<fn(I, P)>,
}

/// Steps that run side by side: see [`Builder::parallel`].
pub struct Parallel<I, P> {
    parts: Vec<Part>,
    place: PhantomData<fn(I, P)>,
}

/// Begins the declaration of version `version` of the saga `name`.
#[must_use]
pub fn define<I: Serialize + DeserializeOwned + Send + Sync + 'static>(
    name: &str,
    version: u32,
) -> Builder<I, Before> {
    Builder {
        declared: Declared {
            name: name.to_owned(),
            version,
            timeout: None,
            parts: Vec::new(),
            fingerprint: String::new(),
        },
        place: PhantomData,
    }
}

impl<I, P> Builder<I, P> {
    /// How long the saga may take until its pivot: then it is unwound.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.declared.timeout = Some(timeout);
        self
    }

    /// Checks what the compiler can't.
    ///
    /// # Errors
    /// When a name is none or there twice, or when there are no steps.
    pub fn build(self) -> Result<Definition<I>, Invalid> {
        let mut declared = self.declared;
        if i32::try_from(declared.version).is_err() {
            return Err(Invalid::TooLarge(declared.version));
        }
        if declared.parts.is_empty() {
            return Err(Invalid::Empty(declared.name));
        }
        let mut names = HashSet::new();
        for name in declared.parts.iter().map(|part| part.name) {
            if !is_name(name) {
                return Err(Invalid::Name(name.to_owned()));
            }
            if !names.insert(name) {
                return Err(Invalid::Twice(name.to_owned()));
            }
        }
        if !is_name(&declared.name) {
            return Err(Invalid::Name(declared.name));
        }
        declared.fingerprint = declared.print();
        Ok(Definition {
            declared: Arc::new(declared),
            input: PhantomData,
        })
    }

    fn with(mut self, parts: impl IntoIterator<Item = Part>, role: Role) -> Self {
        self.declared.push(parts, role);
        self
    }
}

impl<I: Serialize + DeserializeOwned + Send + Sync + 'static> Builder<I, Before> {
    /// A step in this database, with its compensation. `map` makes its input of the saga's input and
    /// of what other steps gave; it is pure.
    #[must_use]
    pub fn local<S: LocalUndo>(
        self,
        step: S,
        map: impl Fn(&Seen<'_, I>) -> Result<S::Input, BoxError> + Send + Sync + 'static,
    ) -> Self {
        let step = Arc::new(step);
        let undo = Arc::new(Undo(Arc::clone(&step)));
        self.with([Part::local(&step, map, Some(undo))], Role::Compensable)
    }

    /// A step elsewhere, with its compensation.
    #[must_use]
    pub fn remote<S: RemoteUndo>(
        self,
        step: S,
        map: impl Fn(&Seen<'_, I>) -> Result<S::Input, BoxError> + Send + Sync + 'static,
    ) -> Self {
        let step = Arc::new(step);
        let undo = Arc::new(Undo(Arc::clone(&step)));
        self.with([Part::remote(&step, map, Some(undo))], Role::Compensable)
    }

    /// Steps side by side: calls run at the same time. If one of them aborts, the others are waited
    /// for and undone.
    #[must_use]
    pub fn parallel(self, group: impl FnOnce(Parallel<I, Before>) -> Parallel<I, Before>) -> Self {
        let parts = group(Parallel::new()).parts;
        self.with(parts, Role::Compensable)
    }

    /// Waits for a signal. If it has not come within `timeout`, the saga is unwound.
    #[must_use]
    pub fn wait<S: Signal>(self, timeout: Duration) -> Self {
        let wait = Part::waits(S::NAME, Run::Signal(timeout));
        self.with([wait], Role::Compensable)
    }

    /// Waits for this long, under a name of its own.
    #[must_use]
    pub fn timer(self, name: &'static str, pause: Duration) -> Self {
        let timer = Part::waits(name, Run::Timer(pause));
        self.with([timer], Role::Compensable)
    }

    /// The point of no return, in this database: it may abort, but once it is done there is only
    /// forward.
    #[must_use]
    pub fn pivot_local<S: Local>(
        self,
        step: S,
        map: impl Fn(&Seen<'_, I>) -> Result<S::Input, BoxError> + Send + Sync + 'static,
    ) -> Builder<I, After> {
        let part = Part::local(&Arc::new(step), map, None);
        self.with([part], Role::Pivot).beyond()
    }

    /// The point of no return, elsewhere. If nobody knows how it ended, the saga can go neither way
    /// and needs a person.
    #[must_use]
    pub fn pivot_remote<S: Remote>(
        self,
        step: S,
        map: impl Fn(&Seen<'_, I>) -> Result<S::Input, BoxError> + Send + Sync + 'static,
    ) -> Builder<I, After> {
        let part = Part::remote(&Arc::new(step), map, None);
        self.with([part], Role::Pivot).beyond()
    }

    fn beyond(self) -> Builder<I, After> {
        Builder {
            declared: self.declared,
            place: PhantomData,
        }
    }
}

impl<I: Serialize + DeserializeOwned + Send + Sync + 'static> Builder<I, After> {
    /// A step in this database that is done in the end.
    #[must_use]
    pub fn local<S, E>(
        self,
        step: S,
        map: impl Fn(&Seen<'_, I>) -> Result<S::Input, BoxError> + Send + Sync + 'static,
    ) -> Self
    where
        S: Local + Step<Failure = Again<E>>,
    {
        self.with([Part::local(&Arc::new(step), map, None)], Role::Forward)
    }

    /// A step elsewhere that is done in the end.
    #[must_use]
    pub fn remote<S, E>(
        self,
        step: S,
        map: impl Fn(&Seen<'_, I>) -> Result<S::Input, BoxError> + Send + Sync + 'static,
    ) -> Self
    where
        S: Remote + Step<Failure = Again<E>>,
    {
        self.with([Part::remote(&Arc::new(step), map, None)], Role::Forward)
    }

    /// Steps side by side.
    #[must_use]
    pub fn parallel(self, group: impl FnOnce(Parallel<I, After>) -> Parallel<I, After>) -> Self {
        let parts = group(Parallel::new()).parts;
        self.with(parts, Role::Forward)
    }

    /// Waits for a signal. If it has not come within `timeout`, the saga needs a person.
    #[must_use]
    pub fn wait<S: Signal>(self, timeout: Duration) -> Self {
        let wait = Part::waits(S::NAME, Run::Signal(timeout));
        self.with([wait], Role::Forward)
    }

    /// Waits for this long, under a name of its own.
    #[must_use]
    pub fn timer(self, name: &'static str, pause: Duration) -> Self {
        let timer = Part::waits(name, Run::Timer(pause));
        self.with([timer], Role::Forward)
    }
}

impl<I, P> Parallel<I, P> {
    const fn new() -> Self {
        Self {
            parts: Vec::new(),
            place: PhantomData,
        }
    }

    fn with(mut self, part: Part) -> Self {
        self.parts.push(part);
        self
    }
}

impl<I: DeserializeOwned + Send + Sync + 'static> Parallel<I, Before> {
    /// As [`Builder::local`].
    #[must_use]
    pub fn local<S: LocalUndo>(
        self,
        step: S,
        map: impl Fn(&Seen<'_, I>) -> Result<S::Input, BoxError> + Send + Sync + 'static,
    ) -> Self {
        let step = Arc::new(step);
        let undo = Arc::new(Undo(Arc::clone(&step)));
        self.with(Part::local(&step, map, Some(undo)))
    }

    /// As [`Builder::remote`].
    #[must_use]
    pub fn remote<S: RemoteUndo>(
        self,
        step: S,
        map: impl Fn(&Seen<'_, I>) -> Result<S::Input, BoxError> + Send + Sync + 'static,
    ) -> Self {
        let step = Arc::new(step);
        let undo = Arc::new(Undo(Arc::clone(&step)));
        self.with(Part::remote(&step, map, Some(undo)))
    }
}

impl<I: DeserializeOwned + Send + Sync + 'static> Parallel<I, After> {
    /// As [`Builder::local`] behind the pivot.
    #[must_use]
    pub fn local<S, E>(
        self,
        step: S,
        map: impl Fn(&Seen<'_, I>) -> Result<S::Input, BoxError> + Send + Sync + 'static,
    ) -> Self
    where
        S: Local + Step<Failure = Again<E>>,
    {
        self.with(Part::local(&Arc::new(step), map, None))
    }

    /// As [`Builder::remote`] behind the pivot.
    #[must_use]
    pub fn remote<S, E>(
        self,
        step: S,
        map: impl Fn(&Seen<'_, I>) -> Result<S::Input, BoxError> + Send + Sync + 'static,
    ) -> Self
    where
        S: Remote + Step<Failure = Again<E>>,
    {
        self.with(Part::remote(&Arc::new(step), map, None))
    }
}

impl<I, P> fmt::Debug for Builder<I, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.declared.fmt(f)
    }
}

impl<I, P> fmt::Debug for Parallel<I, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let steps = self.parts.iter().map(|part| part.name);
        f.debug_list().entries(steps).finish()
    }
}
