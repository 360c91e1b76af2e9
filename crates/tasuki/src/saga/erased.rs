//! Steps without their types: JSON in, JSON out.

use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use futures_util::future::BoxFuture;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::failure::Failed;
use super::failure::sealed::Failure as _;
use super::json::Json;
use super::seen::Seen;
use super::story::Story;
use super::{At, Local, LocalUndo, Remote, RemoteUndo, SagaId, Tx};
use crate::jobs::BoxError;
use crate::lease::told;
use crate::worker::panic_message;

/// How an action ended.
pub(super) type Acted = Result<Json, Failed>;
/// How a compensation ended.
pub(super) type Undone = Result<(), Failed>;

/// Makes the input of a step.
pub(super) trait Input: Send + Sync {
    fn input(&self, id: SagaId, story: &Story) -> Result<Json, Failed>;
}

/// The action of a local step.
pub(super) trait ActLocal: Input {
    fn act<'a>(&'a self, tx: &'a mut Tx, input: &'a Json, at: &'a At) -> BoxFuture<'a, Acted>;

    fn alone(&self) -> bool;
}

/// The compensation of a local step.
pub(super) trait UndoLocal: Send + Sync {
    fn undo<'a>(
        &'a self,
        tx: &'a mut Tx,
        input: &'a Json,
        output: &'a Json,
        at: &'a At,
    ) -> BoxFuture<'a, Undone>;
}

/// The action of a remote step.
pub(super) trait ActRemote: Input {
    fn act<'a>(&'a self, input: &'a Json, at: &'a At) -> BoxFuture<'a, Acted>;
}

/// The compensation of a remote step.
pub(super) trait UndoRemote: Send + Sync {
    fn undo<'a>(
        &'a self,
        input: &'a Json,
        output: Option<&'a Json>,
        at: &'a At,
    ) -> BoxFuture<'a, Undone>;
}

/// A step, and how its input is made.
pub(super) struct Mapped<S, I, F> {
    step: Arc<S>,
    map: F,
    input: PhantomData<fn() -> I>,
}

/// The compensation of a step.
pub(super) struct Undo<S>(pub(super) Arc<S>);

impl<S, I, F> Mapped<S, I, F> {
    pub(super) const fn new(step: Arc<S>, map: F) -> Self {
        Self {
            step,
            map,
            input: PhantomData,
        }
    }
}

impl<S, I, F> Input for Mapped<S, I, F>
where
    S: super::Step,
    I: DeserializeOwned + Send + Sync + 'static,
    F: Fn(&Seen<'_, I>) -> Result<S::Input, BoxError> + Send + Sync + 'static,
{
    fn input(&self, id: SagaId, story: &Story) -> Result<Json, Failed> {
        let input: I = read(&story.input, "the saga's input")?;
        let broken =
            |why: &str| Failed::broken(format!("the input of `{}` can't be made: {why}", S::NAME));
        let seen = Seen { id, input, story };
        // What panics once does so whenever it is asked.
        let made = catch_unwind(AssertUnwindSafe(|| (self.map)(&seen)))
            .map_err(|panic| broken(&format!("panicked: {}", panic_message(&*panic))))?;
        let input = made.map_err(|error| broken(&told(&*error)))?;
        write(&input, "the input")
    }
}

impl<S, I, F> ActLocal for Mapped<S, I, F>
where
    S: Local,
    I: DeserializeOwned + Send + Sync + 'static,
    F: Fn(&Seen<'_, I>) -> Result<S::Input, BoxError> + Send + Sync + 'static,
{
    fn act<'a>(&'a self, tx: &'a mut Tx, input: &'a Json, at: &'a At) -> BoxFuture<'a, Acted> {
        Box::pin(async move {
            let input = read(input, "the input")?;
            let output = self.step.act(tx, &input, at).await;
            write(&output.map_err(|failure| failure.told())?, "the output")
        })
    }

    fn alone(&self) -> bool {
        self.step.alone()
    }
}

impl<S, I, F> ActRemote for Mapped<S, I, F>
where
    S: Remote,
    I: DeserializeOwned + Send + Sync + 'static,
    F: Fn(&Seen<'_, I>) -> Result<S::Input, BoxError> + Send + Sync + 'static,
{
    fn act<'a>(&'a self, input: &'a Json, at: &'a At) -> BoxFuture<'a, Acted> {
        Box::pin(async move {
            let input = read(input, "the input")?;
            let output = self.step.act(&input, at).await;
            let output = output.map_err(|failure| failure.told())?;
            // It has happened, and what it gave is lost.
            write(&output, "the output").map_err(|failed| Failed::unsure(failed.error))
        })
    }
}

impl<S: LocalUndo> UndoLocal for Undo<S> {
    fn undo<'a>(
        &'a self,
        tx: &'a mut Tx,
        input: &'a Json,
        output: &'a Json,
        at: &'a At,
    ) -> BoxFuture<'a, Undone> {
        Box::pin(async move {
            let input = read(input, "the input")?;
            let output = read(output, "the output")?;
            let undone = self.0.undo(tx, &input, &output, at).await;
            undone.map_err(|failure| failure.told())
        })
    }
}

impl<S: RemoteUndo> UndoRemote for Undo<S> {
    fn undo<'a>(
        &'a self,
        input: &'a Json,
        output: Option<&'a Json>,
        at: &'a At,
    ) -> BoxFuture<'a, Undone> {
        Box::pin(async move {
            let input = read(input, "the input")?;
            let output = output
                .map(|output| read(output, "the output"))
                .transpose()?;
            let undone = self.0.undo(&input, output.as_ref(), at).await;
            undone.map_err(|failure| failure.told())
        })
    }
}

fn read<T: DeserializeOwned>(json: &Json, what: &str) -> Result<T, Failed> {
    json.read()
        .map_err(|error| Failed::broken(format!("{what} can't be read: {error}")))
}

fn write<T: Serialize>(value: &T, what: &str) -> Result<Json, Failed> {
    Json::of(value).map_err(|error| Failed::broken(format!("{what} can't be written: {error}")))
}
