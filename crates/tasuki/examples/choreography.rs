//! Three services, each in a schema of its own, that only react to each other's events; and the
//! story of one order, put together from what each of them knows.
//!
//! `cargo run -p tasuki --example choreography -- postgres://localhost/example`

use std::sync::Arc;
use std::time::Duration;

use sqlx::{PgConnection, PgPool};
use tasuki::Schema;
use tasuki::bus::{Consumer, ConsumerSpec, Delivery, MemoryBus, StreamSpec};
use tasuki::choreography::{Choreography, Reaction, Reactor, Story};
use tasuki::jobs::Failure;
use tasuki::outbox::{self, Event, Outbox, RelaySettings, Routes};
use tasuki::worker::{self, Error};
use uuid::Uuid;

/// Hears of one kind of event and tells another.
struct Answers {
    consumer: &'static str,
    to: &'static str,
    with: &'static str,
}

impl Reaction for Answers {
    fn consumer(&self) -> &str {
        self.consumer
    }

    async fn react(
        &self,
        _tx: &mut PgConnection,
        delivery: &Delivery,
    ) -> Result<Vec<Event>, Failure> {
        if delivery.header("event_type") != Some(self.to) {
            return Ok(Vec::new());
        }
        // Your own writes go into `_tx`: they and the events commit together.
        let about = delivery.header("aggregate_key").unwrap_or("order");
        Ok(vec![Event::new(Uuid::now_v7(), self.with, about, "{}")])
    }
}

struct Service {
    name: &'static str,
    pool: PgPool,
    outbox: Outbox,
    part: Choreography,
    bus: Arc<MemoryBus>,
}

impl Service {
    async fn open(name: &'static str, pool: &PgPool, bus: &Arc<MemoryBus>) -> Result<Self, Error> {
        let schema = Schema::new(&format!("choreography_{name}"))?;
        tasuki::migrate(pool, schema.as_str()).await?;
        let outbox = Outbox::new(&schema);
        Ok(Self {
            name,
            pool: pool.clone(),
            part: Choreography::new(&schema, name, &outbox),
            outbox,
            bus: Arc::clone(bus),
        })
    }

    /// Under a supervisor the relay ticks by itself. Here it runs until nothing is left.
    async fn publish(&self) -> Result<(), Error> {
        let routes = Routes::to(&format!("{}.events", self.name));
        let settings = RelaySettings::new("example.outbox", self.pool.clone(), routes);
        let relay = outbox::relay(&self.outbox, Arc::clone(&self.bus), settings);
        relay.drain().await?;
        Ok(())
    }

    /// And so does the consumer.
    async fn hear(&self, to: &'static str, with: &'static str) -> Result<(), Error> {
        let consumer = self.name;
        let reaction = Answers { consumer, to, with };
        let reactor = Reactor::new(self.part.clone(), self.pool.clone(), reaction);
        let spec = ConsumerSpec::new(stream(), consumer);
        let consumer = Consumer::new(
            "example.consumer",
            MemoryBus::clone(&self.bus),
            spec,
            reactor,
        )
        .with_wait(Duration::from_millis(50));
        worker::drain(&consumer).await?;
        Ok(())
    }
}

fn stream() -> StreamSpec {
    StreamSpec::new("orders", ["*.events"])
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    let url = std::env::args().nth(1).ok_or("give a database URL")?;
    let pool = PgPool::connect(&url).await?;
    let bus = Arc::new(MemoryBus::new().with_stream(stream()));
    bus.deliver_twice();
    let shop = Service::open("shop", &pool, &bus).await?;
    let payment = Service::open("payment", &pool, &bus).await?;
    let shipping = Service::open("shipping", &pool, &bus).await?;

    // The order, in the transaction of a request. Its id names the whole chain.
    let order = format!("order:{}", Uuid::now_v7());
    let mut tx = tasuki::begin(&pool).await?;
    let placed = Event::new(Uuid::now_v7(), "OrderPlaced", order.as_str(), "{}");
    shop.part.begin(&mut tx, &order, vec![placed]).await?;
    tx.commit().await?;

    shop.publish().await?;
    payment.hear("OrderPlaced", "OrderPaid").await?;
    payment.publish().await?;
    shipping.hear("OrderPaid", "ShipmentSent").await?;

    // Each service tells its own part; over HTTP, say. An entry travels as JSON.
    let mut entries = Vec::new();
    for service in [&shop, &payment, &shipping] {
        let mut connection = pool.acquire().await?;
        entries.extend(service.part.part(&mut connection, &order).await?);
    }
    let story = Story::of(entries);
    print!("{story}");
    assert_eq!(story.turns().len(), 3);
    Ok(())
}
