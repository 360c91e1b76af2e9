//! What a step's input is made of.

use serde::de::DeserializeOwned;

use super::story::Story;
use super::{SagaId, Signal, Step};

/// A saga as the step that comes next sees it: its input, and what the steps before it gave.
#[derive(Debug)]
pub struct Seen<'a, I> {
    pub(super) id: SagaId,
    pub(super) input: I,
    pub(super) story: &'a Story,
}

/// A step's output that is not there, or can't be read.
#[derive(Debug, thiserror::Error)]
#[error("there is no output of `{step}` to read")]
pub struct Missing {
    step: &'static str,
    #[source]
    source: Option<serde_json::Error>,
}

impl<I> Seen<'_, I> {
    /// The saga.
    #[must_use]
    pub const fn id(&self) -> SagaId {
        self.id
    }

    /// What it was started with.
    #[must_use]
    pub const fn input(&self) -> &I {
        &self.input
    }

    /// What step `S` gave.
    ///
    /// # Errors
    /// When it is not done, or gave something else: a mistake in the definition, which a simulation
    /// finds. The saga is unwound then, or needs a person.
    pub fn output<S: Step>(&self) -> Result<S::Output, Missing> {
        self.read(S::NAME)
    }

    /// What came with signal `S`.
    ///
    /// # Errors
    /// As [`output`](Self::output).
    pub fn signal<S: Signal>(&self) -> Result<S::Payload, Missing> {
        self.read(S::NAME)
    }

    fn read<T: DeserializeOwned>(&self, step: &'static str) -> Result<T, Missing> {
        let source = None;
        let output = self.story.output(step).ok_or(Missing { step, source })?;
        output.read().map_err(|error| Missing {
            step,
            source: Some(error),
        })
    }
}
