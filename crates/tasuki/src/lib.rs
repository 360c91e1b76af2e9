//! Transactional primitives on PostgreSQL and NATS JetStream: what a transaction has promised
//! happens after it commits, and is counted once.
//!
//! ```no_run
//! use std::sync::Arc;
//!
//! use tasuki::bus::{MemoryBus, StreamSpec};
//! use tasuki::outbox::{self, Event, Outbox, RelaySettings, Routes};
//! use tasuki::worker::Supervisor;
//! use tasuki::{Clock, Schema};
//!
//! tasuki::typed_ids! {
//!     /// One event, from the transaction that wrote it to its last delivery.
//!     EventId;
//! }
//!
//! # async fn insert_order(_: &mut sqlx::PgConnection) -> sqlx::Result<()> { Ok(()) }
//! # async fn shown(pool: sqlx::PgPool) -> Result<(), Box<dyn std::error::Error>> {
//! // Once: the tables, in a schema that you name, and the worker that publishes.
//! tasuki::migrate(&pool, "shop").await?;
//! let outbox = Outbox::new(&Schema::new("shop")?);
//! let stream = StreamSpec::new("shop-events", ["shop.events"]);
//! let bus = Arc::new(MemoryBus::new().with_stream(stream)); // `NatsBus` in production.
//! let settings = RelaySettings::new("shop.outbox", pool.clone(), Routes::to("shop.events"));
//! let relay = outbox::relay(&outbox, bus, settings);
//! let clock = Clock::system();
//! let supervisor = Supervisor::new(clock.clone());
//! supervisor.start(relay);
//!
//! // In every request: the event leaves if, and only if, this transaction commits.
//! let mut tx = pool.begin().await?;
//! insert_order(&mut tx).await?;
//! let event = Event::new(EventId::new(&clock).as_uuid(), "OrderPlaced", "order:17", "{}");
//! outbox.enqueue(&mut tx, &event).await?;
//! tx.commit().await?;
//! outbox.ring(); // Not needed, only quicker than the next poll.
//! # Ok(()) }
//! ```
//!
//! # Which module for which problem
//!
//! | problem | module | what it does *not* promise |
//! | --- | --- | --- |
//! | an event must leave if, and only if, the transaction commits | [`outbox`] | delivery once (it is at least once); order after a loss, a death or a redrive |
//! | messages must reach a broker and come back from it | [`bus`] | order of delivery; that the broker keeps what it acknowledged |
//! | a message that arrives twice must have one effect | [`inbox`] | recognising an id after its row was removed; effects outside this database |
//! | a request that is sent twice must be done once | [`idempotency`] | an answer after its time to live; effects outside this database |
//! | readers must follow all that was committed, in one order without gaps | [`seqlog`] | the order in which transactions committed, beyond what one could know of the other; that a row is handled once outside this database |
//! | work must be done after the commit, later, or again and again | [`jobs`] | that an attempt runs once; strict order |
//! | work of many steps, here and elsewhere, must be done whole or undone | [`saga`] | isolation; that a call elsewhere is made once (its key stays the same) |
//! | rows of your own must be claimed, worked on and finished | [`lease`] | that work runs once: a stalled worker does not know yet that it lost its claim |
//! | what can't be done must wait for a person | [`dlq`] | the place of a redriven event in its order |
//! | services must react to each other's events, and somebody must see the whole chain | [`choreography`] | one order of all that happened: clocks differ, causes don't |
//! | an action or its undoing may come twice, late, or in the wrong order | [`barrier`] | knowing a step after its row was removed; effects outside this database |
//! | others must keep off what is half done | [`barrier::Locks`] | that those keep off who don't ask |
//! | several databases must commit together or not at all | [`twopc`] | that their commits become visible at one moment; that nobody waits for a participant that is away |
//! | one call fails now and then | [`retry`] | anything durable |
//! | several calls must all happen, or be undone | [`compensate`] | anything durable: a process that dies undoes nothing |
//! | many small commands wait for many commits | [`batch`] | that a command runs once |
//! | history must not cost what traffic costs | [`upkeep`] | the removal of a row at an exact time |
//! | somebody must see how it all is | [`admin`] | exact counts above ten thousand |
//! | background work must start, pace itself, survive panics and stop in order | [`worker`] | a tick at an exact time; that only one process runs a worker |
//! | a crate's tables in whatever schema its user names | [`migrate()`], [`mod@migrate`], [`Schema`] | migrations through a pooler in transaction mode |
//! | ids that can't be swapped, and sort by time | [`typed_ids!`] | |
//! | time that a test can hold still | [`Clock`] | |
//!
//! What writes takes the caller's `&mut PgConnection` first and joins its transaction; workers and
//! boundaries take a pool. Whatever two processes must agree on, the database decides: its clock,
//! its locks, its unique keys.
//!
//! # Features
//!
//! None is on by default.
//!
//! | feature | brings |
//! | --- | --- |
//! | `nats` | `bus::NatsBus`, the bus on JetStream; `async-nats` |
//! | `axum` | `idempotency::Layer` for any axum service; `axum`, `tower`, `http` |
//! | `testing` | crash points that kill the process, the conformance suite of the bus, the check of sagas, colliding locks: for tests only |
//!
//! # What is not here
//!
//! This crate knows no service, opens no listener, reads no environment variable and installs no
//! global.

#![warn(missing_docs)]

pub mod admin;
pub mod barrier;
pub mod batch;
pub mod bus;
pub mod choreography;
pub mod compensate;
pub mod dlq;
pub mod idempotency;
pub mod inbox;
pub mod jobs;
pub mod lease;
pub mod migrate;
pub mod outbox;
pub mod retry;
pub mod saga;
pub mod seqlog;
pub mod testing;
pub mod together;
pub mod twopc;
pub mod upkeep;
pub mod worker;

mod clock;
mod ids;
mod schema;
mod transaction;

pub use clock::Clock;
#[doc(hidden)]
pub use ids::uuid_v7;
#[doc(inline)]
pub use migrate::install as migrate;
pub use schema::{InvalidSchema, Schema};
pub use transaction::{begin, begin_locked, is_away, is_passing};

/// What the macros of this crate expand to. Not an API.
#[doc(hidden)]
pub mod __private {
    pub use {serde, sqlx, uuid};
}
