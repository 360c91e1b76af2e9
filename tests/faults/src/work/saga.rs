//! A saga to be killed in: goods here, money elsewhere, a confirmation that every third time says no.

use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use anyhow::Result;
use sqlx::PgPool;
use tasuki::Schema;
use tasuki::saga::{
    Again, At, Definition, Engine, Fail, Local, LocalUndo, Registry, Remote, RemoteUndo, Sagas,
    Settings, Step, Tx, define,
};
use tasuki::worker::{self, Supervisor, Tick, Worker};
use tokio::task::JoinSet;
use uuid::Uuid;

use super::store;

/// Every third is refused at the end.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Trouble {
    #[error("refused")]
    Refused,
    #[error("the database")]
    Store(#[from] sqlx::Error),
}

struct Reserve;
struct Charge(PgPool);
struct Confirm;
struct Ship;

macro_rules! steps {
    ($($step:ident $name:literal $failure:ty;)*) => {$(
        impl Step for $step {
            const NAME: &'static str = $name;
            type Input = u32;
            type Output = ();
            type Failure = $failure;
        }
    )*};
}

steps! {
    Reserve "reserve" Fail<Trouble>;
    Charge "charge" Fail<Trouble>;
    Confirm "confirm" Fail<Trouble>;
    Ship "ship" Again<Trouble>;
}

impl Local for Reserve {
    async fn act(&self, tx: &mut Tx, _: &u32, at: &At) -> Result<(), Fail<Trouble>> {
        let saga = [at.saga().as_uuid()];
        store::effects(tx.get().await?, "reserve", &saga).await?;
        Ok(())
    }
}

impl LocalUndo for Reserve {
    async fn undo(&self, tx: &mut Tx, _: &u32, (): &(), at: &At) -> Result<(), Again> {
        let saga = [at.saga().as_uuid()];
        store::effects(tx.get().await?, "release", &saga).await?;
        Ok(())
    }
}

impl Remote for Charge {
    async fn act(&self, _: &u32, at: &At) -> Result<(), Fail<Trouble>> {
        store::ask_provider(&self.0, &at.key(), None).await?;
        Ok(())
    }
}

impl RemoteUndo for Charge {
    async fn undo(&self, _: &u32, _: Option<&()>, at: &At) -> Result<(), Again> {
        store::ask_provider(&self.0, &at.key(), Some(&at.action_key())).await?;
        Ok(())
    }
}

impl Local for Confirm {
    async fn act(&self, tx: &mut Tx, n: &u32, at: &At) -> Result<(), Fail<Trouble>> {
        let saga = [at.saga().as_uuid()];
        store::effects(tx.get().await?, "confirm", &saga).await?;
        if n.is_multiple_of(3) {
            return Err(Fail::abort(Trouble::Refused));
        }
        Ok(())
    }
}

impl Local for Ship {
    async fn act(&self, tx: &mut Tx, _: &u32, at: &At) -> Result<(), Again<Trouble>> {
        let saga = [at.saga().as_uuid()];
        store::effects(tx.get().await?, "ship", &saga).await?;
        Ok(())
    }
}

fn order(pool: &PgPool) -> Result<Definition<u32>> {
    let order = define::<u32>("order", 1)
        .local(Reserve, |saga| Ok(*saga.input()))
        .remote(Charge(pool.clone()), |saga| Ok(*saga.input()))
        .pivot_local(Confirm, |saga| Ok(*saga.input()))
        .local(Ship, |saga| Ok(*saga.input()))
        .build()?;
    Ok(order)
}

/// What a process does about sagas.
pub(crate) struct Work {
    pub(crate) lease: Duration,
    /// So many are started.
    pub(crate) begin: u32,
    /// They are begun by its engine, while that runs.
    pub(crate) by_engine: bool,
}

impl Work {
    /// Starts sagas, and an engine that runs whatever there is.
    pub(crate) async fn start(self, supervisor: &Supervisor, pool: &PgPool) -> Result<()> {
        let sagas = Sagas::new(&Schema::new("app")?);
        let order = order(pool)?;
        if !self.by_engine {
            let mut tx = tasuki::begin(pool).await?;
            for n in 0..self.begin {
                sagas.start(&mut tx, &order, &n).await?;
            }
            tx.commit().await?;
        }
        let settings = Settings::new("app.sagas", pool.clone())
            .lease(self.lease)
            .poll(Duration::from_millis(50));
        let engine = Engine::new(&sagas, Registry::new().with(&order), settings)?;
        engine.start(supervisor);
        if self.by_engine {
            supervisor.start(Beginner {
                engine,
                order,
                pool: pool.clone(),
                left: AtomicU32::new(self.begin),
            });
        }
        Ok(())
    }
}

/// Begins sagas, some at a time, and notes what it was told of each.
struct Beginner {
    engine: Engine,
    order: Definition<u32>,
    pool: PgPool,
    left: AtomicU32,
}

impl Worker for Beginner {
    fn name(&self) -> &str {
        "app.beginner"
    }

    fn poll_interval(&self) -> Duration {
        Duration::from_secs(60)
    }

    async fn tick(&self) -> Result<Tick, worker::Error> {
        let mut begins = JoinSet::new();
        for _ in 0..10 {
            let Ok(left) = self
                .left
                .fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1))
            else {
                break;
            };
            let (engine, order, pool) =
                (self.engine.clone(), self.order.clone(), self.pool.clone());
            begins.spawn(async move {
                let begun = engine.begin(&order, &(left - 1)).await;
                let (kind, id) = match begun {
                    Ok(id) => ("acknowledged", id.as_uuid()),
                    Err(_) => ("refused", Uuid::new_v4()),
                };
                while store::note(&pool, kind, id).await.is_err() {
                    tokio::task::yield_now().await; // The pool waits for a connection.
                }
            });
        }
        if begins.is_empty() {
            return Ok(Tick::Idle);
        }
        begins.join_all().await;
        Ok(Tick::Worked)
    }
}
