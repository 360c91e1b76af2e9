//! Sagas: work of many steps, here and elsewhere, that is done whole or undone.
//!
//! A saga is *declared*: [`define()`] makes a [`Definition`] out of typed steps, as data. So recovery
//! loads what the steps gave and calls the next one; nothing is replayed, and no code has to be
//! deterministic. A [`Local`] step works in the transaction in which its record is written. A
//! [`Remote`] step has its effect elsewhere: that it was begun is durable before it is called, with a
//! key that stays the same. Before the pivot every step brings its compensation; behind it there is
//! only forward. The compiler refuses anything else.
//!
//! ```no_run
//! use tasuki::saga::{self, Again, At, Engine, Fail, Local, LocalUndo, Registry, Sagas, Settings, Step, Tx};
//!
//! struct Reserve;
//!
//! impl Step for Reserve {
//!     const NAME: &'static str = "reserve";
//!     type Input = i32;
//!     type Output = ();
//!     type Failure = Fail<std::io::Error>;
//! }
//!
//! impl Local for Reserve {
//!     async fn act(&self, tx: &mut Tx, pieces: &i32, _: &At) -> Result<(), Fail<std::io::Error>> {
//! #       async fn take(_: &mut sqlx::PgConnection, _: i32) -> std::io::Result<bool> { Ok(true) }
//!         let db = tx.get().await.map_err(std::io::Error::other)?; // Commits with the record.
//!         if !take(db, *pieces).await? {
//!             return Err(Fail::abort(std::io::Error::other("out of stock")));
//!         }
//!         Ok(())
//!     }
//! }
//!
//! impl LocalUndo for Reserve {
//!     async fn undo(&self, tx: &mut Tx, pieces: &i32, (): &(), _: &At) -> Result<(), Again> {
//! #       async fn put_back(_: &mut sqlx::PgConnection, _: i32) -> std::io::Result<()> { Ok(()) }
//!         put_back(tx.get().await?, *pieces).await?;
//!         Ok(())
//!     }
//! }
//!
//! # async fn shown(pool: sqlx::PgPool) -> Result<(), Box<dyn std::error::Error>> {
//! let order = saga::define::<i32>("order", 1)
//!     .local(Reserve, |saga| Ok(*saga.input()))
//!     .build()?;
//! let sagas = Sagas::new(&tasuki::Schema::new("shop")?);
//! let registry = Registry::new().with(&order);
//! let engine = Engine::new(&sagas, registry, Settings::new("shop.sagas", pool))?;
//! let supervisor = tasuki::worker::Supervisor::new(tasuki::Clock::system());
//! engine.start(&supervisor);
//! let ended = engine.run(&order, &3).await?;
//! assert_eq!(ended.state, saga::State::Completed);
//! # Ok(()) }
//! ```
//!
//! Promised: what a saga has done, with every input, output and error, is durable before its next step
//! begins. A local step is committed once, with its record. A remote one is called until it answers,
//! always with the same key; if nobody knows how it ended, it is compensated, too. Compensations run in
//! reverse order; one that fails for good stops the saga, which then [needs a person](Sagas::resume).
//! Another process goes on with the sagas of one that died.
//!
//! Not promised: that a remote step, or its compensation, is called only once (its key says that it is
//! the same); that others don't see what a saga has done so far: it is not isolated.
//!
//! Sagas that move at the same time share a commit (`journal`), and each is fenced by itself: one that
//! another process has by now fails alone.

mod attempt;
mod builder;
mod call;
#[cfg(feature = "testing")]
pub mod check;
mod clerk;
mod define;
mod drive;
mod engine;
mod erased;
mod failure;
mod fault;
mod handle;
mod journal;
mod json;
mod lanes;
mod operate;
mod outline;
mod pace;
mod plan;
mod registry;
mod seen;
mod settings;
mod simulate;
mod step;
mod store;
mod story;
mod tally;
mod trouble;
mod tx;
mod view;
mod work;

pub use builder::{After, Before, Builder, Parallel, define};
pub use define::{Definition, Invalid, Kind, Role, Shape};
pub use engine::{Begun, Engine};
pub use failure::{Again, Fail, Failure};
pub use handle::Sagas;
pub use operate::{By, Close};
pub use outline::Outline;
pub use registry::Registry;
pub use seen::{Missing, Seen};
pub use settings::Settings;
pub use simulate::{Simulated, Simulation};
pub use step::{At, Local, LocalUndo, Phase, Remote, RemoteUndo, Signal, Step};
pub use tx::Tx;
pub use view::{Ended, Filter, NoteView, State, StepState, StepView, Summary, View};

use crate::jobs::BoxError;

crate::typed_ids! {
    /// One saga, from its start to its end.
    SagaId;
}

/// Why a saga could not be begun, asked or changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The input, a payload or an output could not be written as JSON.
    #[error("what goes into a saga can't be written as JSON")]
    Input(#[source] serde_json::Error),
    /// The story could not be read.
    #[error("the story of the saga can't be read")]
    Story(#[source] serde_json::Error),
    /// The definition is not one of this engine's; or, of a saga that is to be retried, no engine that
    /// runs it was ever started in this schema.
    #[error("version {version} of the saga `{name}` is not known here: register it with an engine")]
    Unknown {
        /// The saga.
        name: String,
        /// Its version.
        version: u32,
    },
    /// There is no such saga.
    #[error("there is no saga {0}")]
    NotFound(SagaId),
    /// A text that nobody could have meant, or that PostgreSQL refuses.
    #[error("`{what}` must be {rule}")]
    Invalid {
        /// Which one: `who` or `reason`.
        what: &'static str,
        /// What it must be.
        rule: &'static str,
    },
    /// It can't be done with this saga as it is.
    #[error("not possible with saga {id}: {why}")]
    Refused {
        /// The saga.
        id: SagaId,
        /// Why not.
        why: String,
    },
    /// The engine has stopped. Nothing was begun.
    #[error("the engine has stopped")]
    Stopped,
    /// The journal could not be written. It may have been all the same.
    #[error("the saga could not be written")]
    Journal(#[source] BoxError),
    /// The database could not do it.
    #[error("the saga store failed")]
    Store(#[from] sqlx::Error),
}
