//! An order takes goods, charges a card and is confirmed; when the card is declined, the goods go back.
//!
//! `cargo run -p tasuki --example saga -- postgres://localhost/example`

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use sqlx::PgPool;
use tasuki::saga::{
    self, Again, At, Definition, Engine, Fail, Invalid, Local, LocalUndo, Registry, Remote,
    RemoteUndo, Sagas, Settings, Step, Tx,
};
use tasuki::worker::Supervisor;
use tasuki::{Clock, Schema};

#[derive(Serialize, Deserialize)]
struct Order {
    sku: String,
    pieces: i32,
    card: String,
}

/// Goods, in this database: taken in the transaction in which that is written down.
struct Reserve;

#[derive(Debug, thiserror::Error)]
enum StockError {
    #[error("out of stock")]
    Out,
    #[error("the stock could not be asked")]
    Store(#[from] sqlx::Error),
}

impl Step for Reserve {
    const NAME: &'static str = "reserve_stock";
    type Input = (String, i32);
    type Output = ();
    type Failure = Fail<StockError>;
}

impl Local for Reserve {
    async fn act(
        &self,
        tx: &mut Tx,
        input: &(String, i32),
        _: &At,
    ) -> Result<(), Fail<StockError>> {
        let (sku, pieces) = input;
        let taken = sqlx::query(
            "UPDATE saga_example.stock SET pieces = pieces - $2 WHERE sku = $1 AND pieces >= $2",
        )
        .bind(sku)
        .bind(pieces)
        .execute(tx.get().await?)
        .await?;
        if taken.rows_affected() == 0 {
            return Err(Fail::abort(StockError::Out));
        }
        Ok(())
    }
}

impl LocalUndo for Reserve {
    async fn undo(&self, tx: &mut Tx, input: &(String, i32), (): &(), _: &At) -> Result<(), Again> {
        let (sku, pieces) = input;
        sqlx::query("UPDATE saga_example.stock SET pieces = pieces + $2 WHERE sku = $1")
            .bind(sku)
            .bind(pieces)
            .execute(tx.get().await?)
            .await?;
        Ok(())
    }
}

/// A card, at a provider: called with a key that stays the same, however often.
struct Charge {
    provider: Arc<Mutex<Vec<String>>>,
}

#[derive(Debug, thiserror::Error)]
enum CardError {
    #[error("the card was declined")]
    Declined,
    #[error("no answer in time")]
    TimedOut,
}

impl Step for Charge {
    const NAME: &'static str = "charge_card";
    type Input = String;
    type Output = String;
    type Failure = Fail<CardError>;
}

impl Remote for Charge {
    async fn act(&self, card: &String, at: &At) -> Result<String, Fail<CardError>> {
        let mut charged = self.provider.lock().unwrap_or_else(PoisonError::into_inner);
        match card.as_str() {
            "expired" => Err(Fail::abort(CardError::Declined)),
            "slow" if at.attempt() == 1 => {
                charged.push(at.key());
                // The money may have moved: the next attempt has the same key, and finds out.
                Err(Fail::unknown(CardError::TimedOut))
            }
            _ => {
                if !charged.contains(&at.key()) {
                    charged.push(at.key());
                }
                Ok(format!("payment {}", charged.len()))
            }
        }
    }
}

impl RemoteUndo for Charge {
    async fn undo(&self, _: &String, _: Option<&String>, at: &At) -> Result<(), Again> {
        let mut charged = self.provider.lock().unwrap_or_else(PoisonError::into_inner);
        charged.retain(|key| *key != at.action_key());
        Ok(())
    }
}

/// From here on there is no way back.
struct Confirm;

impl Step for Confirm {
    const NAME: &'static str = "confirm_order";
    type Input = String;
    type Output = ();
    type Failure = Again<sqlx::Error>;
}

impl Local for Confirm {
    async fn act(&self, tx: &mut Tx, payment: &String, at: &At) -> Result<(), Again<sqlx::Error>> {
        sqlx::query("INSERT INTO saga_example.orders (order_id, payment) VALUES ($1, $2)")
            .bind(at.saga())
            .bind(payment)
            .execute(tx.get().await?)
            .await?;
        Ok(())
    }
}

fn order(provider: Arc<Mutex<Vec<String>>>) -> Result<Definition<Order>, Invalid> {
    saga::define::<Order>("order", 1)
        .timeout(Duration::from_secs(60))
        .local(Reserve, |saga| {
            let order = saga.input();
            Ok((order.sku.clone(), order.pieces))
        })
        .remote(Charge { provider }, |saga| Ok(saga.input().card.clone()))
        .pivot_local(Confirm, |saga| Ok(saga.output::<Charge>()?))
        .build()
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::args().nth(1).ok_or("say where: saga <url>")?;
    let pool = PgPool::connect(&url).await?;
    tasuki::migrate(&pool, "saga_example").await?;
    sqlx::raw_sql(
        "CREATE TABLE IF NOT EXISTS saga_example.stock (sku text PRIMARY KEY, pieces int NOT NULL);
         CREATE TABLE IF NOT EXISTS saga_example.orders (order_id uuid PRIMARY KEY, payment text);
         INSERT INTO saga_example.stock VALUES ('tea', 5)
         ON CONFLICT (sku) DO UPDATE SET pieces = 5;
         TRUNCATE saga_example.orders",
    )
    .execute(&pool)
    .await?;

    let provider = Arc::default();
    let order = order(Arc::clone(&provider))?;
    let sagas = Sagas::new(&Schema::new("saga_example")?);
    let registry = Registry::new().with(&order);
    let settings = Settings::new("example.sagas", pool.clone());
    let engine = Engine::new(&sagas, registry, settings)?;
    let supervisor = Supervisor::new(Clock::system());
    engine.start(&supervisor);

    for (pieces, card) in [(2, "good"), (1, "slow"), (1, "expired"), (9, "good")] {
        let input = Order {
            sku: "tea".to_owned(),
            pieces,
            card: card.to_owned(),
        };
        let ended = engine.run(&order, &input).await?;
        let why = ended.reason.unwrap_or_default();
        println!("{pieces} pieces, {card} card: {} {why}", ended.state);
    }

    let left: i32 = sqlx::query_scalar("SELECT pieces FROM saga_example.stock")
        .fetch_one(&pool)
        .await?;
    let orders: i64 = sqlx::query_scalar("SELECT count(*) FROM saga_example.orders")
        .fetch_one(&pool)
        .await?;
    let charges = provider
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .len();
    println!("left: {left}, orders: {orders}, charges: {charges}");
    let stopped = supervisor.stop(Duration::from_secs(5)).await;
    println!("stopped: {stopped:?}");
    Ok(())
}
