//! Typed jobs: work that was promised in a transaction is done after it commits, and only then.
//!
//! A [`Job`] is data with options. [`Jobs::enqueue`] writes it in the caller's transaction; a
//! [`Queue`]'s worker runs it with the [`Handler`] that a [`Registry`] has for its kind, tries
//! again as the job says, and buries what can't be done: dead, with a dead letter, and with the
//! handler's [`failed`](Handler::failed) in the same transaction. [`Schedules`] enqueues what
//! repeats.
//!
//! ```no_run
//! use serde::{Deserialize, Serialize};
//! use tasuki::jobs::{Context, Failure, Job, Jobs, Queue, Registry};
//!
//! #[derive(Serialize, Deserialize)]
//! struct Welcome { user: String }
//!
//! impl Job for Welcome {
//!     const KIND: &'static str = "welcome";
//! }
//!
//! async fn welcome(job: Welcome, context: Context) -> Result<(), Failure> {
//!     println!("welcome {}, attempt {}", job.user, context.attempt());
//!     Ok(())
//! }
//!
//! # async fn shown(pool: sqlx::PgPool) -> Result<(), Box<dyn std::error::Error>> {
//! let jobs = Jobs::new(&tasuki::Schema::new("app")?);
//! let registry = Registry::new().on::<Welcome, _>(welcome);
//! let worker = Queue::new("default").worker(&jobs, &pool, &registry)?;
//! let supervisor = tasuki::worker::Supervisor::new(tasuki::Clock::system());
//! supervisor.start(worker);
//!
//! let mut tx = pool.begin().await?;
//! jobs.enqueue(&mut tx, &Welcome { user: "ada".into() }).await?;
//! tx.commit().await?;
//! jobs.ring(); // Not needed, only quicker than the next poll.
//! # Ok(()) }
//! ```
//!
//! Promised: a job runs if, and only if, the transaction that enqueued it commits; it runs until
//! one attempt succeeds or it is dead; a worker that lost its claim changes nothing any more; of
//! jobs with the same kind and unique id one is waiting or running at a time, within `unique_for`.
//!
//! Not promised: that an attempt runs only once (a process may die after the work and before the
//! settlement, so handlers are idempotent or use the inbox), nor a strict order: a worker takes the
//! highest priority first and then what is due longest, but runs side by side.

mod burial;
mod cron;
mod enqueue;
mod handler;
mod inspect;
mod job;
mod queue;
mod registry;
mod repeat;
mod store;
mod tally;

use std::time::Duration;

pub use cron::InvalidCron;
pub use enqueue::{Enqueued, Jobs};
pub use handler::{Context, Failure, Handler};
pub use inspect::{State, View};
pub(crate) use job::is_name;
pub use job::{Job, Priority, Schedule};
pub use queue::{Queue, Work};
pub use registry::Registry;
pub use repeat::{Repeat, Schedules};

crate::typed_ids! {
    /// One job, from the transaction that enqueued it to its end.
    JobId;
}

/// Any error that a handler ends with.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Why jobs could not be enqueued, looked at, or worked on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The job could not be written as JSON.
    #[error("a job of kind {kind} can't be written as JSON")]
    Payload {
        /// The kind.
        kind: &'static str,
        /// What its serializer said.
        #[source]
        source: serde_json::Error,
    },
    /// A text in the job has a NUL character, which PostgreSQL can't store.
    #[error("a job of kind {kind} has a NUL character in a text, which PostgreSQL can't store")]
    Nul {
        /// The kind.
        kind: &'static str,
    },
    /// The job's unique id is empty, longer than 512 bytes, or has a NUL character.
    #[error("the unique id of a job of kind {kind} is empty, longer than 512 bytes or has a NUL")]
    UniqueId {
        /// The kind.
        kind: &'static str,
    },
    /// A wait that no calendar reaches.
    #[error("{wait:?} is longer than a job can wait or be unique")]
    TooLong {
        /// The wait.
        wait: Duration,
    },
    /// Twins of a unique job came and went faster than we could tell which one there is.
    #[error("a unique job of kind {kind} met too many twins at once")]
    Contended {
        /// The kind.
        kind: &'static str,
    },
    /// A queue, or a schedule, with a name that is empty, too long or not plain.
    #[error("`{name}` is not a valid name: use 1 to 100 letters, digits and any of . _ : / -")]
    Name {
        /// The name.
        name: String,
    },
    /// Two handlers for one kind, or two schedules of one name: which of them is meant?
    #[error("`{name}` is there twice")]
    Twice {
        /// The kind, or the schedule's name.
        name: String,
    },
    /// The database could not do it.
    #[error("the job store failed")]
    Store(#[from] sqlx::Error),
}
