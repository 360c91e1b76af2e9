//! The sequenced log: what transactions append, readers follow by a number without gaps.
//!
//! ```no_run
//! use sqlx::PgPool;
//! use tasuki::Schema;
//! use tasuki::seqlog::{Entry, Failure, Follower, Handler, Log, Numbered, Read, Tx};
//! use tasuki::worker::Supervisor;
//!
//! struct Count;
//!
//! impl Handler for Count {
//!     type Row = Read;
//!
//!     async fn handle(&self, rows: &[Numbered<Read>], tx: &mut Tx) -> Result<(), Failure> {
//!         sqlx::query("UPDATE totals SET entries = entries + $1")
//!             .bind(i64::try_from(rows.len())?)
//!             .execute(tx.get().await?) // Commits with the offset, or not at all.
//!             .await?;
//!         Ok(())
//!     }
//! }
//!
//! # async fn shown(pool: PgPool, supervisor: Supervisor) -> Result<(), Box<dyn std::error::Error>> {
//! // In every process: one of them numbers, and one handles the rows of each consumer.
//! let log = Log::new(&Schema::new("shop")?);
//! supervisor.start(log.sequencer("shop.sequencer", &pool));
//! supervisor.start(Follower::new(&log, "totals-v1", &pool, Count));
//! supervisor.start(log.listener(&pool));
//! supervisor.start(log.ringer(&pool));
//!
//! // In every request.
//! let mut tx = pool.begin().await?;
//! log.append(&mut tx, &[Entry::new("OrderPlaced", "{}").key("order:17")]).await?;
//! tx.commit().await?;
//! log.ring(); // Not needed, only quicker than the next poll.
//! # Ok(()) }
//! ```
//!
//! A `BIGSERIAL` is no such number: it is drawn before the commit, so whoever reads on from the highest
//! one that it saw misses the rows of a transaction that drew earlier and commits later.
//!
//! What holds:
//! - Writers append in their own transaction, without a number; none waits for another. A
//!   [`Sequencer`] numbers what has committed, in batches: one after the other, no gap, no number twice.
//!   A reader that has passed *n* never finds a row below it later.
//! - Rows of a transaction keep the order in which they were appended; and what was appended when
//!   another transaction had committed comes after what that one appended.
//! - A transaction that stays open delays its own rows, and nobody else's. One that is rolled back
//!   leaves no gap.
//! - A sequencer that dies, anywhere, loses nothing and doubles nothing; another takes over within
//!   seconds. One that slept meanwhile changes nothing when it wakes.
//! - A [`Follower`] handles each row in the transaction in which its offset moves, or, where effects are
//!   elsewhere, moves it after they have succeeded. Of its instances one is active. A row that can't be
//!   handled is set aside after its attempts, with a dead letter, and those behind it go on.
//! - Moving an offset ([`Consumers::replay`]) takes effect on a running consumer. One whose next row is
//!   gone says so, stands still and asks for a rebuild; it never skips.
//! - What is numbered costs the same beside any amount of history, beside rows that vacuum can't take away
//!   yet, and beside those of transactions that are open.
//! - Two attempts at a rebuild have two numbers ([`Snapshot::attempt`]), so that none of them writes into
//!   the store of the other.
//!
//! Not promised: the exact order of commits, beyond the above; that a row is handled once where effects
//! are elsewhere.
//!
//! The library brings a log of its own ([`Log::new`]); a service may describe others ([`Table`]).
//!
//! # Metrics
//! `tasuki_seqlog_numbered_rows_total` by `log`; `tasuki_seqlog_handled_rows_total` by `consumer` and
//! `outcome`, `tasuki_seqlog_lost_batches_total` by `consumer`; and those of [`Gauges`].

mod consumers;
mod entry;
mod follower;
mod gauges;
mod handler;
mod log;
mod sequencer;
mod store;
mod table;
mod tally;

pub use consumers::{
    Audit, Consumer, ConsumerError, Consumers, LogState, SetAside, State, Story, Trouble,
};
pub use entry::{Entry, Read};
pub use follower::{Begin, Follower};
pub use gauges::Gauges;
pub use handler::{Failure, Handler, Tx};
pub use log::{Head, Log, Numbered, Snapshot};
pub use sequencer::Sequencer;
pub use table::Table;

/// Why a log could not be written or read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// PostgreSQL has no text with a NUL in it.
    #[error("an entry has a NUL in its kind, key or trace")]
    Invalid,
    /// Entries are what the library's own log holds.
    #[error("`{0}` is a log of your own: insert into its pending table")]
    NotOwn(&'static str),
    /// The database refused.
    #[error("the log could not be written or read")]
    Store(#[from] sqlx::Error),
}
