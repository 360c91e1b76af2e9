//! The library as a contestant of the scenario `saga`, and as the worker that is killed.
//!
//! One engine with its default settings, on a pool whose connections are used without being asked
//! first whether they live. A saga has three steps, or ten where a worker is killed:
//!
//! - `saga CALLERS SECONDS`: local steps that do nothing. Each is recorded before the next begins, in a
//!   transaction that it shares with others that wait.
//! - `saga CALLERS SECONDS outside`: remote steps that do nothing. That each is about to be called is
//!   recorded, too.
//! - `saga CALLERS SECONDS writing`: local steps that each write a row, in the transaction of their
//!   record.
//! - `saga-worker NUMBER SAGAS`: begins so many sagas whose local steps write a row each, and goes on
//!   with whatever sagas are there until it is killed.

use std::sync::Arc;

use anyhow::{Context as _, ensure};
use futures_util::future::try_join_all;
use sqlx::PgPool;
use tasuki::saga::{
    self, Again, At, Definition, Engine, Fail, Local, LocalUndo, Registry, Remote, RemoteUndo,
    Sagas, Settings, State, Step, Tx,
};
use tasuki::worker::Supervisor;
use tasuki::{Clock, Schema};

use super::{
    callers::{self, Went},
    store,
};
use crate::{
    contest::Steps,
    ours::{Noop, SCHEMA, pool},
};

/// What a step fails with that never fails.
type Never = std::convert::Infallible;

/// Connections beside those that the engine opens itself.
const CONNECTIONS: u32 = 2;

/// What the worker of a saga is called that nobody kills.
const NOBODY: i32 = 0;

/// Steps of a saga whose worker is killed.
pub(super) const LONG: u32 = 10;

/// What the rows say.
const fn name(step: i32) -> &'static str {
    match step {
        1 => "first",
        2 => "second",
        3 => "third",
        4 => "fourth",
        5 => "fifth",
        6 => "sixth",
        7 => "seventh",
        8 => "eighth",
        9 => "ninth",
        _ => "tenth",
    }
}

/// A step that does nothing, here or elsewhere.
struct Nothing<const N: i32>;

impl<const N: i32> Step for Nothing<N> {
    const NAME: &'static str = name(N);
    type Input = ();
    type Output = i32;
    type Failure = Fail<Never>;
}

impl<const N: i32> Local for Nothing<N> {
    async fn act(&self, _: &mut Tx, (): &(), _: &At) -> Result<i32, Fail<Never>> {
        Ok(N)
    }
}

impl<const N: i32> LocalUndo for Nothing<N> {
    async fn undo(&self, _: &mut Tx, (): &(), _: &i32, _: &At) -> Result<(), Again> {
        Ok(())
    }
}

impl<const N: i32> Remote for Nothing<N> {
    async fn act(&self, (): &(), _: &At) -> Result<i32, Fail<Never>> {
        Ok(N)
    }
}

impl<const N: i32> RemoteUndo for Nothing<N> {
    async fn undo(&self, (): &(), _: Option<&i32>, _: &At) -> Result<(), Again> {
        Ok(())
    }
}

/// A step that writes a row. Nobody asks for its compensation.
#[derive(Clone)]
struct Writing<const N: i32> {
    statement: Arc<str>,
    worker: i32,
}

impl<const N: i32> Step for Writing<N> {
    const NAME: &'static str = name(N);
    type Input = ();
    type Output = i32;
    type Failure = Fail<sqlx::Error>;
}

impl<const N: i32> Local for Writing<N> {
    async fn act(&self, tx: &mut Tx, (): &(), at: &At) -> Result<i32, Fail<sqlx::Error>> {
        let effect = (at.saga(), N, self.worker);
        store::say(tx.get().await?, &self.statement, effect).await?;
        Ok(N)
    }
}

impl<const N: i32> LocalUndo for Writing<N> {
    async fn undo(&self, _: &mut Tx, (): &(), _: &i32, _: &At) -> Result<(), Again> {
        Err(Again::stuck(sqlx::Error::RowNotFound))
    }
}

/// Three steps of a kind.
fn short(steps: Steps) -> anyhow::Result<Definition<Noop>> {
    let saga = saga::define::<Noop>("short", 1);
    let built = match steps {
        Steps::Local => saga
            .local(Nothing::<1>, |_| Ok(()))
            .local(Nothing::<2>, |_| Ok(()))
            .local(Nothing::<3>, |_| Ok(()))
            .build(),
        Steps::Outside => saga
            .remote(Nothing::<1>, |_| Ok(()))
            .remote(Nothing::<2>, |_| Ok(()))
            .remote(Nothing::<3>, |_| Ok(()))
            .build(),
        Steps::Writing => {
            let (statement, worker) = (statement()?, NOBODY);
            saga.local(writing::<1>(&statement, worker), |_| Ok(()))
                .local(writing::<2>(&statement, worker), |_| Ok(()))
                .local(writing::<3>(&statement, worker), |_| Ok(()))
                .build()
        }
    };
    Ok(built?)
}

/// Ten steps, each with a row.
fn long(worker: i32) -> anyhow::Result<Definition<Noop>> {
    let statement = statement()?;
    let saga = saga::define::<Noop>("long", 1)
        .local(writing::<1>(&statement, worker), |_| Ok(()))
        .local(writing::<2>(&statement, worker), |_| Ok(()))
        .local(writing::<3>(&statement, worker), |_| Ok(()))
        .local(writing::<4>(&statement, worker), |_| Ok(()))
        .local(writing::<5>(&statement, worker), |_| Ok(()))
        .local(writing::<6>(&statement, worker), |_| Ok(()))
        .local(writing::<7>(&statement, worker), |_| Ok(()))
        .local(writing::<8>(&statement, worker), |_| Ok(()))
        .local(writing::<9>(&statement, worker), |_| Ok(()))
        .local(writing::<10>(&statement, worker), |_| Ok(()));
    Ok(saga.build()?)
}

fn statement() -> anyhow::Result<Arc<str>> {
    Ok(store::add_effect(&Schema::new(SCHEMA)?).into())
}

fn writing<const N: i32>(statement: &Arc<str>, worker: i32) -> Writing<N> {
    let statement = Arc::clone(statement);
    Writing { statement, worker }
}

/// An engine that runs.
fn engine(definition: &Definition<Noop>, pool: PgPool) -> anyhow::Result<(Engine, Supervisor)> {
    let sagas = Sagas::new(&Schema::new(SCHEMA)?);
    let registry = Registry::new().with(definition);
    let engine = Engine::new(&sagas, registry, Settings::new("bench.sagas", pool))?;
    let supervisor = Supervisor::new(Clock::system());
    engine.start(&supervisor);
    Ok((engine, supervisor))
}

/// So many callers, each with one saga at a time.
pub(crate) async fn call(
    url: &str,
    steps: Steps,
    callers: u32,
    seconds: u32,
) -> anyhow::Result<Went> {
    let definition = short(steps)?;
    let (engine, supervisor) = engine(&definition, pool(url, CONNECTIONS).await?)?;
    let saga = {
        let (engine, definition) = (engine.clone(), definition.clone());
        move || {
            let (engine, definition) = (engine.clone(), definition.clone());
            async move {
                let ended = engine.run(&definition, &Noop::new(1)).await?;
                ensure!(ended.state == State::Completed, "a saga ended {ended:?}");
                Ok(())
            }
        }
    };
    let went = callers::run(callers, seconds, saga).await?;
    let _stopped = supervisor.stop(std::time::Duration::from_secs(5)).await;
    Ok(went)
}

/// Begins so many sagas, and runs until it is killed.
pub(crate) async fn work(url: &str, worker: u32, sagas: u32) -> anyhow::Result<()> {
    let worker = i32::try_from(worker).context("a worker has a small number")?;
    let definition = long(worker)?;
    let (engine, _supervisor) = engine(&definition, pool(url, CONNECTIONS).await?)?;
    let begin = async |n| engine.begin(&definition, &Noop::new(u64::from(n))).await;
    try_join_all((0..sagas).map(begin)).await?;
    std::future::pending().await
}
