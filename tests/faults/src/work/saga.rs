//! A saga to be killed in: goods here, money elsewhere, a confirmation that every third time says no.

use std::time::Duration;

use anyhow::Result;
use sqlx::PgPool;
use tasuki::Schema;
use tasuki::saga::{
    Again, At, Definition, Engine, Fail, Local, LocalUndo, Registry, Remote, RemoteUndo, Sagas,
    Settings, Step, Tx, define,
};
use tasuki::worker::Supervisor;

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

/// Starts `begin` sagas, and an engine that runs whatever there is.
pub(crate) async fn start(
    supervisor: &Supervisor,
    pool: &PgPool,
    lease: Duration,
    begin: u32,
) -> Result<()> {
    let sagas = Sagas::new(&Schema::new("app")?);
    let order = order(pool)?;
    let mut tx = tasuki::begin(pool).await?;
    for n in 0..begin {
        sagas.start(&mut tx, &order, &n).await?;
    }
    tx.commit().await?;
    let settings = Settings::new("app.sagas", pool.clone())
        .lease(lease)
        .poll(Duration::from_millis(50));
    Engine::new(&sagas, Registry::new().with(&order), settings)?.start(supervisor);
    Ok(())
}
