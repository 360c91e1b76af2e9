//! The outbox, its relay and its reconciler against a real database.

mod ordering;
mod reconcile;
mod relay;

use std::sync::Arc;
use std::time::Duration;

use sqlx::PgPool;
use tasuki::bus::{MemoryBus, Publisher, StreamSpec};
use tasuki::lease::{Owner, Runner};
use tasuki::outbox::{self, Event, Outbox, Reconciler, Relay, RelaySettings, Routes};
use tasuki::{Clock, Schema, migrate};
use tasuki_testkit::TestDb;
use uuid::Uuid;

const STREAM: &str = "shop-events";
const SUBJECT: &str = "shop.events";

/// A database with an outbox, and a broker in memory.
struct Shop {
    db: TestDb,
    outbox: Outbox,
    bus: Arc<MemoryBus>,
    spec: StreamSpec,
}

impl Shop {
    async fn open() -> Self {
        Self::open_with(stream()).await
    }

    async fn open_with(spec: StreamSpec) -> Self {
        let schema = Schema::new("shop").unwrap();
        let db = TestDb::new(&[migrate::library(&schema)]).await;
        Self {
            db,
            outbox: Outbox::new(&schema),
            bus: Arc::new(MemoryBus::new().with_stream(spec.clone())),
            spec,
        }
    }

    fn pool(&self) -> &PgPool {
        &self.db.pool
    }

    /// Enqueues `count` events without a key, in one transaction.
    async fn enqueue(&self, count: usize) -> Vec<Uuid> {
        let events: Vec<Event> = (0..count).map(|n| event("OrderPlaced", n)).collect();
        self.enqueue_these(&events).await
    }

    async fn enqueue_these(&self, events: &[Event]) -> Vec<Uuid> {
        let mut tx = self.pool().begin().await.unwrap();
        self.outbox.enqueue_all(&mut tx, events).await.unwrap();
        tx.commit().await.unwrap();
        events.iter().map(Event::id).collect()
    }

    fn relay(&self) -> Runner<Relay<MemoryBus>> {
        self.relay_to(Arc::clone(&self.bus))
    }

    fn relay_to<P: Publisher>(&self, bus: Arc<P>) -> Runner<Relay<P>> {
        outbox::relay(&self.outbox, bus, self.settings())
    }

    fn settings(&self) -> RelaySettings {
        let mut settings =
            RelaySettings::new("shop.outbox", self.pool().clone(), Routes::to(SUBJECT));
        settings.owner = Owner::on("here");
        settings
    }

    fn reconciler(&self) -> Reconciler<MemoryBus> {
        let bus = Arc::clone(&self.bus);
        let pool = self.pool().clone();
        let streams = vec![self.spec.clone()];
        Reconciler::new("shop.reconcile", &self.outbox, bus, pool, streams)
    }

    /// The ids in the stream, in its order.
    fn arrived(&self) -> Vec<Uuid> {
        let messages = self.bus.messages(STREAM);
        messages
            .into_iter()
            .map(|(_, message)| message.id)
            .collect()
    }

    async fn count(&self, sql: &'static str) -> i64 {
        sqlx::query_scalar(sql)
            .fetch_one(self.pool())
            .await
            .unwrap()
    }

    async fn execute(&self, sql: &'static str) {
        sqlx::query(sql).execute(self.pool()).await.unwrap();
    }

    /// Makes every claim as old as its lease.
    async fn expire_leases(&self) {
        // Without a wait for whoever has some of them in hand, who may wait for us.
        let sql = "UPDATE shop.outbox_events SET lease_until = now() - interval '1 s'
             WHERE event_id IN (
                 SELECT event_id FROM shop.outbox_events
                 WHERE lease_until IS NOT NULL FOR UPDATE SKIP LOCKED
             )";
        self.execute(sql).await;
    }
}

fn stream() -> StreamSpec {
    StreamSpec::new(STREAM, [SUBJECT]).max_age(Duration::from_secs(86_400))
}

fn event(event_type: &str, n: usize) -> Event {
    let id = tasuki::uuid_v7(&Clock::system());
    Event::new(id, event_type, format!("order:{n}"), format!("payload {n}"))
}

/// The same ids, each as often; the message is short, whatever their number.
fn assert_same(mut arrived: Vec<Uuid>, mut sent: Vec<Uuid>) {
    arrived.sort_unstable();
    sent.sort_unstable();
    let missing = sent.iter().filter(|id| !arrived.contains(id)).count();
    let (many, expected) = (arrived.len(), sent.len());
    assert!(
        arrived == sent,
        "{many} arrived, {expected} were sent, {missing} are missing"
    );
}

#[tokio::test]
async fn an_event_of_a_transaction_that_rolls_back_is_never_published() {
    let shop = Shop::open().await;
    let mut tx = shop.pool().begin().await.unwrap();
    shop.outbox
        .enqueue(&mut tx, &event("OrderPlaced", 1))
        .await
        .unwrap();
    tx.rollback().await.unwrap();
    let kept = shop.enqueue(1).await;

    assert_eq!(shop.relay().drain().await.unwrap(), 1);
    assert_eq!(shop.arrived(), kept);
}

#[tokio::test]
async fn a_bad_event_is_refused_before_the_transaction_is_harmed() {
    let shop = Shop::open().await;
    let mut tx = shop.pool().begin().await.unwrap();
    let bad = shop
        .outbox
        .enqueue(&mut tx, &event("Order\0Placed", 1))
        .await;
    assert!(matches!(bad, Err(outbox::Error::Invalid(_))), "{bad:?}");
    shop.outbox
        .enqueue(&mut tx, &event("OrderPlaced", 2))
        .await
        .unwrap();
    tx.commit().await.unwrap();
    assert_eq!(shop.relay().drain().await.unwrap(), 1);
}

#[tokio::test]
async fn every_statement_of_the_outbox_can_be_prepared() {
    let shop = Shop::open().await;
    let mut connection = shop.pool().acquire().await.unwrap();
    for (n, statement) in shop.outbox.statements().enumerate() {
        let prepare = format!("PREPARE s{n} AS {statement}");
        let prepared = sqlx::raw_sql(sqlx::AssertSqlSafe(prepare))
            .execute(&mut *connection)
            .await;
        assert!(prepared.is_ok(), "{prepared:?}\n{statement}");
    }
}
