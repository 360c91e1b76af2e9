//! Two-phase commit: one transaction over several databases, committed in all of them or in none.
//!
//! ```no_run
//! use tasuki::Schema;
//! use tasuki::twopc::{Coordinator, Database};
//! use tasuki::worker::Supervisor;
//!
//! # async fn shown(pool: sqlx::PgPool, a: sqlx::PgPool, b: sqlx::PgPool, supervisor: Supervisor)
//! # -> Result<(), Box<dyn std::error::Error>> {
//! # async fn take(_: &mut sqlx::PgConnection) -> sqlx::Result<()> { Ok(()) }
//! # async fn give(_: &mut sqlx::PgConnection) -> sqlx::Result<()> { Ok(()) }
//! // Once: who takes part, and the workers that end what others left behind.
//! let (east, west) = (Database::new("east", a)?, Database::new("west", b)?);
//! let coordinator = Coordinator::new(&Schema::new("shop")?, pool)
//!     .database(&east)?
//!     .database(&west)?;
//! coordinator.check().await?;
//! supervisor.start(coordinator.recovery());
//! supervisor.start(coordinator.sweep());
//!
//! // In every request.
//! let mut tx = coordinator.begin("transfer").await?;
//! take(tx.on(&east).await?).await?;
//! give(tx.on(&west).await?).await?;
//! tx.commit().await?;
//! # Ok(()) }
//! ```
//!
//! What holds:
//! - A commit writes down who takes part, has everybody prepare, writes the decision down, and only
//!   then tells anybody to commit. Whatever is not decided is aborted (presumed abort).
//! - The decision is one row that changes once. Whoever wants to abort what a coordinator has left,
//!   recovery or a person, must win that row first; a coordinator that was only slow finds it taken,
//!   and aborts as well.
//! - A participant that does not answer in time in the first phase means abort. In the second it is
//!   told again until it confirms, by any process that runs a [`Recovery`]; [`Ledger`] shows whom it
//!   waits for, how often it was tried and what went wrong.
//! - A `COMMIT PREPARED` whose answer got lost is looked up by the number of its transaction: it was
//!   committed, or somebody else rolled it back, which is shown and never taken for success.
//! - What is prepared in a database and not in the log, or ended otherwise there, is ended by a
//!   [`Sweep`] when it is older than the timeout.
//! - Dropping a [`Transaction`] before its commit rolls back. Dropping the future of a commit is no
//!   worse than a crash.
//!
//! Mind what it costs: between its two phases a participant holds its locks, through restarts too,
//! until it hears the decision, and a transaction that waits for a participant that is away holds
//! them in all the others. Where a moment in between may be seen, a saga is the better tool.
//!
//! Not here: reading several databases as of one moment. A reader may see the commit in one of them
//! before it is in the other.
//!
//! # What it needs
//! - `max_prepared_transactions` above 0 in every participant (PostgreSQL's default is 0);
//!   [`Coordinator::check`] says so at the start.
//! - The same role in every process: who prepared a transaction must finish it, or a superuser;
//!   [`Coordinator::check`] names what another role has left.
//! - No `NOTIFY`, no temporary table and no held cursor in a branch: PostgreSQL refuses to prepare
//!   it. (Nothing in this library notifies in a transaction that writes.)
//! - The log's database must not forget: with `synchronous_commit = off`, or restored from an older
//!   copy, it takes decisions back that participants have acted on.
//! - Nor must a participant: a standby that is promoted must have everything that was prepared
//!   (synchronous replication). One that lost a prepared transaction gives its number to another, and
//!   nobody can tell the two apart by it.
//!
//! # Metrics
//! `tasuki_twopc_transactions_total` by `outcome`, `tasuki_twopc_commit_seconds`,
//! `tasuki_twopc_orphans_total` by `participant`; gauges of the sweep:
//! `tasuki_twopc_prepared_rows` and `tasuki_twopc_prepared_oldest_age_seconds` by `participant`;
//! of [`admin::Gauges`](crate::admin::Gauges): `tasuki_twopc_open_rows` and
//! `tasuki_twopc_oldest_age_seconds`. All by `schema`.

mod branch;
mod coordinator;
mod gid;
mod ledger;
mod log;
mod meter;
mod open;
mod participant;
mod phases;
mod recovery;
mod store;
mod sweep;
mod tell;

pub use branch::{Branch, BranchState, Branches, Decision};
pub use coordinator::Coordinator;
pub use ledger::{Audit, Ledger, Listed, Record, Resolution, ResolveError, Story};
pub use open::{Committed, Transaction};
pub use participant::{Database, Participant};
pub use recovery::{Ending, Recovery};
pub use sweep::Sweep;

use gid::Prefix;

use crate::worker;

crate::typed_ids! {
    /// One transaction over several participants.
    TransactionId;
}

/// Why a transaction was not committed. After every one but [`Unsure`](Error::Unsure) nothing of it
/// remains anywhere, now or as soon as whoever is away can be told.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A participant or a transaction can't be called this.
    #[error("`{name}` is no name here: use 1 to 64 ASCII letters, digits, `_`, `-` and `.`")]
    Name {
        /// What was given.
        name: String,
    },
    /// The coordinator has a participant of this name.
    #[error("there are two participants called `{name}`")]
    Twice {
        /// The name.
        name: String,
    },
    /// The coordinator does not know this participant, so nobody could finish what it prepares.
    #[error("the coordinator knows no such participant as `{name}`")]
    Unknown {
        /// The name.
        name: String,
    },
    /// The server of this participant prepares no transactions.
    #[error(
        "participant `{participant}` can't prepare transactions: set max_prepared_transactions \
         above 0 in its server, 64 for instance, and restart it"
    )]
    Disabled {
        /// The participant.
        participant: String,
    },
    /// A transaction of this log is prepared there that this process can't end.
    #[error(
        "participant `{participant}` has `{gid}` prepared by role `{owner}`, and only that role or \
         a superuser may end it: run a process as `{owner}` until it is gone, and all processes as \
         one role from then on"
    )]
    Foreign {
        /// The participant.
        participant: String,
        /// The name of the prepared transaction.
        gid: String,
        /// The role that has prepared it.
        owner: String,
    },
    /// A participant could not be reached for work, or did not answer in time.
    #[error("participant `{participant}` can't be reached")]
    Away {
        /// The participant.
        participant: String,
        /// What went wrong.
        #[source]
        source: sqlx::Error,
    },
    /// A participant did not prepare, or not in time; or it is the only one, and did not commit.
    #[error("transaction {id} is rolled back: `{participant}` refused or did not prepare in time")]
    Refused {
        /// The transaction.
        id: TransactionId,
        /// The participant.
        participant: String,
        /// What it said.
        #[source]
        source: worker::Error,
    },
    /// Somebody else decided first: recovery, because it took too long, or a person.
    #[error("transaction {id} is rolled back: it took too long, and somebody else has decided so")]
    Overruled {
        /// The transaction.
        id: TransactionId,
    },
    /// The decision could not be written down, or the work in the coordinator's own database could
    /// not be committed.
    #[error("transaction {id} is rolled back: the coordinator's database refused")]
    Own {
        /// The transaction.
        id: TransactionId,
        /// What it said.
        #[source]
        source: sqlx::Error,
    },
    /// The branch in the coordinator's own database has another isolation level.
    #[error(
        "what is done in the coordinator's own database must be READ COMMITTED: the decision is \
         written in the same transaction; make that database a participant otherwise"
    )]
    Isolation,
    /// The log could not be read or written. Nobody has prepared.
    #[error("the log of two-phase commits could not be read or written")]
    Log(#[source] sqlx::Error),
    /// The answer got lost while it was decided. The recovery ends it, one way or the other;
    /// [`Ledger::show`] tells. (A transaction with one participant has no log: only its data tells.)
    #[error("whether transaction {id} is committed is not known yet")]
    Unsure {
        /// The transaction.
        id: TransactionId,
        /// What went wrong.
        #[source]
        source: sqlx::Error,
    },
}
