//! The bookshop sells signed copies: the service of the guide `docs/start/sagas.md`.
//!
//! `cargo run -p tasuki --example guide_sagas -- postgres://localhost/example`

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use sqlx::PgPool;
use tasuki::jobs::BoxError;
use tasuki::retry::{Backoff, Policy};
use tasuki::saga::{
    self, Again, At, By, Definition, Engine, Fail, Filter, Local, LocalUndo, Registry, Remote,
    RemoteUndo, SagaId, Sagas, Settings, Signal, Step, Tx,
};
use tasuki::worker::Supervisor;
use tasuki::{Clock, Schema};
use tokio::sync::Mutex;
use uuid::Uuid;

const TABLES: &str = "
CREATE TABLE IF NOT EXISTS signed.copies (
    title text PRIMARY KEY, available integer NOT NULL CHECK (available >= 0)
);
CREATE TABLE IF NOT EXISTS signed.orders (
    order_id uuid PRIMARY KEY, state text NOT NULL DEFAULT 'open', signed_by text
);
TRUNCATE signed.copies, signed.orders;
INSERT INTO signed.copies VALUES ('Kokoro', 4)";

const DAY: Duration = Duration::from_secs(24 * 3600);

/// What a saga is started with.
#[derive(Serialize, Deserialize)]
struct Order {
    id: Uuid,
    title: String,
    cents: i64,
    card: String,
}

/// Takes a copy off the shelf.
struct SetAside;

#[derive(Serialize, Deserialize)]
struct Wanted {
    order: Uuid,
    title: String,
}

#[derive(Debug, thiserror::Error)]
enum ShopError {
    #[error("no copy is left")]
    SoldOut,
    #[error("the shelves could not be read")]
    Store(#[from] sqlx::Error),
}

impl Step for SetAside {
    const NAME: &'static str = "set_aside";
    type Input = Wanted;
    type Output = ();
    type Failure = Fail<ShopError>;
}

impl Local for SetAside {
    async fn act(&self, tx: &mut Tx, wanted: &Wanted, _: &At) -> Result<(), Fail<ShopError>> {
        let taken = sqlx::query(
            "UPDATE signed.copies SET available = available - 1
             WHERE title = $1 AND available > 0",
        )
        .bind(&wanted.title)
        .execute(tx.get().await?)
        .await?;
        match taken.rows_affected() {
            0 => Err(Fail::abort(ShopError::SoldOut)),
            _ => Ok(()),
        }
    }
}

impl LocalUndo for SetAside {
    async fn undo(&self, tx: &mut Tx, wanted: &Wanted, (): &(), _: &At) -> Result<(), Again> {
        let db = tx.get().await?;
        // By what the action did, not by what was there before: others have bought meanwhile.
        sqlx::query("UPDATE signed.copies SET available = available + 1 WHERE title = $1")
            .bind(&wanted.title)
            .execute(&mut *db)
            .await?;
        sqlx::query("UPDATE signed.orders SET state = 'given up' WHERE order_id = $1")
            .bind(wanted.order)
            .execute(db)
            .await?;
        Ok(())
    }
}

/// Charges the card, at a provider that is not ours.
struct Charge {
    provider: Arc<Provider>,
}

#[derive(Serialize, Deserialize)]
struct Payment {
    card: String,
    cents: i64,
}

impl Step for Charge {
    const NAME: &'static str = "charge";
    type Input = Payment;
    type Output = String;
    type Failure = Fail<PayError>;

    fn retry(&self) -> Policy {
        let backoff = Backoff::exponential(Duration::from_millis(100), Duration::from_secs(5));
        Policy::new(8, backoff)
    }

    fn timeout(&self) -> Duration {
        Duration::from_secs(10)
    }
}

impl Remote for Charge {
    async fn act(&self, payment: &Payment, at: &At) -> Result<String, Fail<PayError>> {
        match self.provider.charge(&at.key(), payment).await {
            Ok(receipt) => Ok(receipt),
            // It did not happen and never will.
            Err(error @ PayError::Declined) => Err(Fail::abort(error)),
            // It did not happen, and may the next time.
            Err(error @ PayError::Closed) => Err(Fail::retry(error)),
            // It may have happened.
            Err(error @ PayError::NoAnswer) => Err(Fail::unknown(error)),
        }
    }
}

impl RemoteUndo for Charge {
    async fn undo(&self, _: &Payment, _: Option<&String>, at: &At) -> Result<(), Again> {
        // By the key of the charge: it may have happened although there is no receipt.
        match self.provider.refund(&at.action_key()).await {
            Ok(()) => Ok(()),
            Err(error @ PayError::Closed) => Err(Again::stuck(error)),
            Err(error) => Err(Again::retry(error)),
        }
    }
}

/// The author has signed the copy.
struct Signed;

impl Signal for Signed {
    const NAME: &'static str = "signed";
    type Payload = String;
}

/// The point of no return: the copy is sold.
struct Sell;

#[derive(Serialize, Deserialize)]
struct Sale {
    order: Uuid,
    signed_by: String,
}

impl Step for Sell {
    const NAME: &'static str = "sell";
    type Input = Sale;
    type Output = ();
    type Failure = Fail<ShopError>;
}

impl Local for Sell {
    async fn act(&self, tx: &mut Tx, sale: &Sale, _: &At) -> Result<(), Fail<ShopError>> {
        sqlx::query("UPDATE signed.orders SET state = 'sold', signed_by = $2 WHERE order_id = $1")
            .bind(sale.order)
            .bind(&sale.signed_by)
            .execute(tx.get().await?)
            .await?;
        Ok(())
    }
}

/// Has the parcel fetched. Behind the pivot: it may fail for a while, but it can't abort.
struct Ship;

impl Step for Ship {
    const NAME: &'static str = "ship";
    type Input = Uuid;
    type Output = ();
    type Failure = Again;
}

impl Remote for Ship {
    async fn act(&self, order: &Uuid, at: &At) -> Result<(), Again> {
        println!("shipping {order}, key {}", at.key());
        Ok(())
    }
}

fn signed_copy(provider: Arc<Provider>) -> Result<Definition<Order>, saga::Invalid> {
    saga::define::<Order>("signed-copy", 1)
        .timeout(30 * DAY)
        .local(SetAside, |saga| {
            let Order { id, title, .. } = saga.input();
            Ok(Wanted {
                order: *id,
                title: title.clone(),
            })
        })
        .remote(Charge { provider }, |saga| {
            let Order { card, cents, .. } = saga.input();
            Ok(Payment {
                card: card.clone(),
                cents: *cents,
            })
        })
        .wait::<Signed>(14 * DAY)
        .pivot_local(Sell, |saga| {
            Ok(Sale {
                order: saga.input().id,
                signed_by: saga.signal::<Signed>()?,
            })
        })
        .remote(Ship, |saga| Ok(saga.input().id))
        .build()
}

/// Stands for your payment provider, which takes an idempotency key as any good one does.
#[derive(Default)]
struct Provider {
    books: Mutex<Books>,
}

#[derive(Default)]
struct Books {
    charged: HashMap<String, i64>,
    refunded: HashSet<String>,
    closed: bool,
}

#[derive(Debug, thiserror::Error)]
enum PayError {
    #[error("the card is declined")]
    Declined,
    #[error("the provider is closed")]
    Closed,
    #[error("the provider did not answer")]
    NoAnswer,
}

impl Provider {
    async fn charge(&self, key: &str, payment: &Payment) -> Result<String, PayError> {
        let mut books = self.books.lock().await;
        if payment.card == "expired" || books.refunded.contains(key) {
            return Err(PayError::Declined);
        }
        let known = books.charged.insert(key.to_owned(), payment.cents);
        if payment.card == "far away" && known.is_none() {
            return Err(PayError::NoAnswer); // The first answer gets lost.
        }
        Ok(format!("receipt for {key}"))
    }

    /// Also of a charge that never came: should it still come, it is declined.
    async fn refund(&self, charge: &str) -> Result<(), PayError> {
        let mut books = self.books.lock().await;
        if books.closed {
            return Err(PayError::Closed);
        }
        books.charged.remove(charge);
        books.refunded.insert(charge.to_owned());
        Ok(())
    }

    async fn close(&self, closed: bool) {
        self.books.lock().await.closed = closed;
    }

    async fn charges(&self) -> usize {
        self.books.lock().await.charged.len()
    }
}

struct Shop {
    pool: PgPool,
    sagas: Sagas,
    definition: Definition<Order>,
}

impl Shop {
    async fn place(&self, order: &Order) -> Result<SagaId, BoxError> {
        let mut tx = tasuki::begin(&self.pool).await?;
        sqlx::query("INSERT INTO signed.orders (order_id) VALUES ($1)")
            .bind(order.id)
            .execute(&mut *tx)
            .await?;
        let saga = self.sagas.start(&mut tx, &self.definition, order).await?;
        tx.commit().await?;
        self.sagas.ring();
        Ok(saga)
    }

    async fn sign(&self, saga: SagaId, author: &str) -> Result<(), BoxError> {
        let mut tx = tasuki::begin(&self.pool).await?;
        let author = author.to_owned();
        let heard = self.sagas.signal::<Signed>(&mut tx, saga, &author).await?;
        tx.commit().await?;
        self.sagas.ring();
        println!("signed: {heard}");
        Ok(())
    }

    async fn cancel(&self, saga: SagaId) -> Result<(), BoxError> {
        let mut tx = tasuki::begin(&self.pool).await?;
        let reason = "the customer changed his mind";
        self.sagas.cancel(&mut tx, saga, "website", reason).await?;
        tx.commit().await?;
        self.sagas.ring();
        Ok(())
    }

    /// What an operator does when the provider is open again.
    async fn resume_all(&self, who: &str) -> Result<(), BoxError> {
        let mut tx = tasuki::begin(&self.pool).await?;
        let stuck = Filter::new().state("NEEDS_ATTENTION").limit(50);
        let by = By::new(who, "the provider is open again");
        for saga in self.sagas.list(&mut tx, &stuck).await? {
            self.sagas.resume(&mut tx, saga.id, &by).await?;
        }
        tx.commit().await?;
        self.sagas.ring();
        Ok(())
    }

    /// Looks until the saga has come to `state`.
    async fn until(&self, saga: SagaId, state: &str) -> Result<(), BoxError> {
        let mut connection = self.pool.acquire().await?;
        while self
            .sagas
            .get(&mut connection, saga)
            .await?
            .is_none_or(|view| view.state.as_str() != state)
        {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    }

    async fn left(&self) -> sqlx::Result<i32> {
        sqlx::query_scalar("SELECT available FROM signed.copies")
            .fetch_one(&self.pool)
            .await
    }
}

fn order(card: &str) -> Order {
    Order {
        id: Uuid::now_v7(),
        title: "Kokoro".to_owned(),
        cents: 2_500,
        card: card.to_owned(),
    }
}

/// One is sold, one is declined, one is cancelled while the provider takes nothing back.
async fn sell(shop: &Shop, engine: &Engine, provider: &Provider) -> Result<(), BoxError> {
    let ada = shop.place(&order("far away")).await?;
    shop.sign(ada, "Soseki").await?;
    let ended = engine.wait(ada).await?;
    println!("{}: {:?}", ended.state, ended.reason);

    let ended = engine.run(&shop.definition, &order("expired")).await?;
    println!("{}: {:?}", ended.state, ended.reason);

    let cem = shop.place(&order("at hand")).await?;
    shop.until(cem, "signed").await?;
    provider.close(true).await;
    shop.cancel(cem).await?;
    shop.until(cem, "NEEDS_ATTENTION").await?;
    provider.close(false).await;
    shop.resume_all("ann").await?;
    let ended = engine.wait(cem).await?;
    println!("{}: {:?}", ended.state, ended.reason);
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let url = std::env::args()
        .nth(1)
        .ok_or("say where: guide_sagas <url>")?;
    let pool = PgPool::connect(&url).await?;
    tasuki::migrate(&pool, "signed").await?;
    sqlx::raw_sql(TABLES).execute(&pool).await?;
    let schema = Schema::new("signed")?;
    let provider = Arc::new(Provider::default());
    let supervisor = Supervisor::new(Clock::system());

    let definition = signed_copy(Arc::clone(&provider))?;
    let sagas = Sagas::new(&schema);
    let registry = Registry::new().with(&definition);
    let settings = Settings::new("signed.sagas", pool.clone());
    let engine = Engine::new(&sagas, registry, settings)?;
    engine.start(&supervisor);

    let shop = Shop {
        pool,
        sagas,
        definition,
    };
    sell(&shop, &engine, &provider).await?;
    let (left, charged) = (shop.left().await?, provider.charges().await);
    println!("{left} copies left, {charged} charged");
    let stopped = supervisor.stop(Duration::from_secs(25)).await;
    println!("stopped: {stopped:?}");
    Ok(())
}
