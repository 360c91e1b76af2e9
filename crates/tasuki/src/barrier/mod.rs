//! Barrier: what a participant of a saga puts in front of an action and its compensation.
//!
//! Messages between a saga and its participants come twice, late, and in the wrong order: the
//! action timed out, its compensation was sent, and then the action arrives. A [`Barrier`] is a
//! row per step, in the transaction of the effect, where both meet:
//!
//! ```no_run
//! # use tasuki::barrier::{self, Barrier, Key, Passage, Phase};
//! # async fn refund(_: &mut sqlx::PgConnection) -> Result<(), barrier::Error> { Ok(()) }
//! # async fn example(pool: sqlx::PgPool, barrier: Barrier, saga: uuid::Uuid) -> Result<(), barrier::Error> {
//! let mut tx = tasuki::begin(&pool).await?;
//! let key = Key::new(saga, "charge");
//! match barrier.act(&mut tx, &key, Phase::Compensation).await? {
//!     Passage::Fresh => refund(&mut tx).await?, // The charge was here, and is undone now.
//!     Passage::Empty => {}                      // It never was, and never will be.
//!     Passage::Repeated => {}                   // It is undone already.
//!     _ => {}
//! }
//! tx.commit().await?;
//! # Ok(()) }
//! ```
//!
//! What holds, for each step of each saga:
//! - The action passes once, and never after its compensation ([`Passage::Refused`]).
//! - The compensation passes once, and only after an action that committed. If there was none, it
//!   is recorded as [empty](Passage::Empty): nothing is to be undone, and an action that still comes
//!   is refused.
//! - Of two that come at the same moment the second waits until the first one's transaction ends,
//!   and is told what that came to; if it rolled back, it never was.
//!
//! Whatever the passage, the answer to the saga is the same "done", except for
//! [`Refused`](Passage::Refused): whoever sent that action has given it up.
//!
//! Transactions must be `READ COMMITTED`, PostgreSQL's default; under a stricter level the second of
//! two is told by a serialization failure instead.
//!
//! Not promised: anything about effects outside this database. The row of an action that failed is
//! rolled back with it, so a call that went out all the same would be undone by nobody: for such a
//! step commit the row alone, *before* the call, and repeat the call with an idempotency key when
//! the action is [`Repeated`](Passage::Repeated). Nor does a barrier know a step whose row was
//! removed: 400 days after its last change, unless [upkeep](crate::upkeep) is told otherwise. A
//! compensation that comes later than that is taken for [empty](Passage::Empty), and undoes nothing:
//! keep rows for longer than a message can be late, and than a saga can live.
//!
//! [`Locks`] are the other half: they let others see that a saga is not done with something yet.

mod locks;
mod store;

use std::sync::Arc;

use sqlx::PgConnection;
use uuid::Uuid;

use crate::Schema;

pub use locks::{Hold, LockError, Locks, Release, Take};

/// Steps by phase and passage.
const PASSAGES_TOTAL: &str = "tasuki_barrier_passages_total";
/// The longest name of a step, in bytes.
const MAX_STEP: usize = 255;

/// Knows which steps were done and undone. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Barrier {
    statements: Arc<store::Statements>,
}

/// One step of one saga.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    saga: Uuid,
    step: String,
}

/// Which of the two wants to pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    /// What the step does.
    Action,
    /// What undoes it.
    Compensation,
}

/// What to do about an action or a compensation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[must_use = "only a fresh one may have its effect"]
pub enum Passage {
    /// Have the effect, in the same transaction.
    Fresh,
    /// It had its effect. Do nothing; it is done.
    Repeated,
    /// A compensation whose action was never here. Do nothing; it is done, and the action will be
    /// refused.
    Empty,
    /// An action whose compensation was here before. Do nothing, and say that it was refused.
    Refused,
}

/// Why a step could not be recorded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The name of the step can't be stored.
    #[error("a step is named by 1 to {MAX_STEP} bytes, none of them a control character")]
    InvalidStep,
    /// The database refused, or can't be reached.
    #[error("barrier store failed")]
    Store(#[from] sqlx::Error),
}

/// What a step's row says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Acted,
    Compensated,
    Empty,
}

impl Barrier {
    /// The barrier in `schema`.
    #[must_use]
    pub fn new(schema: &Schema) -> Self {
        Self {
            statements: Arc::new(store::Statements::new(schema)),
        }
    }

    /// Records that the action or the compensation of a step is here, and says what to do about it.
    /// Commit it with the effect.
    ///
    /// # Errors
    /// When the step's name is invalid or the database fails.
    pub async fn act(
        &self,
        tx: &mut PgConnection,
        key: &Key,
        phase: Phase,
    ) -> Result<Passage, Error> {
        if key.step.is_empty() || key.step.len() > MAX_STEP || key.step.contains(char::is_control) {
            return Err(Error::InvalidStep);
        }
        let passage = match phase {
            Phase::Action => self.action(tx, key).await?,
            Phase::Compensation => self.compensation(tx, key).await?,
        };
        if passage == Passage::Refused {
            tracing::warn!(
                saga.id = %key.saga,
                saga.step = key.step,
                "late action refused: its compensation was here before"
            );
        }
        metrics::counter!(PASSAGES_TOTAL, "phase" => phase.label(), "passage" => passage.label())
            .increment(1);
        Ok(passage)
    }

    async fn action(&self, tx: &mut PgConnection, key: &Key) -> sqlx::Result<Passage> {
        if store::action(tx, &self.statements, key).await? {
            return Ok(Passage::Fresh);
        }
        // A row stood in the way. Only upkeep can have removed it since, and then the step is as
        // good as done: it was here a year ago.
        Ok(match store::state(tx, &self.statements, key).await? {
            Some(State::Acted) | None => Passage::Repeated,
            Some(State::Compensated | State::Empty) => Passage::Refused,
        })
    }

    async fn compensation(&self, tx: &mut PgConnection, key: &Key) -> sqlx::Result<Passage> {
        Ok(
            match store::compensation(tx, &self.statements, key).await? {
                Some(State::Compensated) => Passage::Fresh,
                Some(State::Empty) => Passage::Empty,
                Some(State::Acted) | None => Passage::Repeated,
            },
        )
    }

    /// Every statement, for a test that prepares them all.
    #[doc(hidden)]
    pub fn statements(&self) -> impl Iterator<Item = &str> {
        self.statements.all()
    }
}

impl Key {
    /// The step `step` of the saga `saga`. A saga whose id is no `UUIDv7` is as good; its rows are
    /// only kept in another place, and removed one by one.
    #[must_use]
    pub fn new(saga: impl Into<Uuid>, step: impl Into<String>) -> Self {
        Self {
            saga: saga.into(),
            step: step.into(),
        }
    }
}

impl Phase {
    const fn label(self) -> &'static str {
        match self {
            Self::Action => "action",
            Self::Compensation => "compensation",
        }
    }
}

impl Passage {
    /// Whether the effect is to be had.
    #[must_use]
    pub const fn is_fresh(self) -> bool {
        matches!(self, Self::Fresh)
    }

    const fn label(self) -> &'static str {
        match self {
            Self::Fresh => "fresh",
            Self::Repeated => "repeated",
            Self::Empty => "empty",
            Self::Refused => "refused",
        }
    }
}
