//! An event leaves the database if, and only if, the transaction that wrote it commits; the
//! events of one order leave in order.
//!
//! `cargo run -p tasuki --example outbox -- postgres://localhost/example [nats://localhost]`
//!
//! Without a NATS server the events go to a bus in memory, which behaves like the real one.

use std::sync::Arc;
use std::time::Duration;

use sqlx::PgPool;
use tasuki::bus::{
    ConsumerSpec, MemoryBus, NatsBus, Publisher, StreamSpec, Subscriber, Subscription,
};
use tasuki::outbox::{self, Event, Outbox, RelaySettings, Routes};
use tasuki::worker::{Error, Supervisor};
use tasuki::{Clock, Schema};
use uuid::Uuid;

#[tokio::main]
async fn main() -> Result<(), Error> {
    let mut arguments = std::env::args().skip(1);
    let url = arguments.next().ok_or("give a database URL")?;
    let pool = PgPool::connect(&url).await?;
    tasuki::migrate(&pool, "outbox_example").await?;
    let outbox = Outbox::new(&Schema::new("outbox_example")?);
    let order = format!("order:{}", Uuid::now_v7());

    // Your own writes go into the same transaction: they and the events commit together.
    let mut tx = pool.begin().await?;
    outbox
        .enqueue(&mut tx, &event("OrderPlaced", &order))
        .await?;
    outbox.enqueue(&mut tx, &event("OrderPaid", &order)).await?;
    tx.commit().await?;

    // This one never happened, and nobody will hear of it.
    let mut tx = pool.begin().await?;
    outbox.enqueue(&mut tx, &event("OrderLost", &order)).await?;
    tx.rollback().await?;

    let published = match arguments.next() {
        Some(nats) => {
            let client = async_nats::connect(nats).await?;
            let bus = NatsBus::new(client).with_stream(stream());
            relay(bus, &pool, &outbox, &order).await?
        }
        None => {
            relay(
                MemoryBus::new().with_stream(stream()),
                &pool,
                &outbox,
                &order,
            )
            .await?
        }
    };
    assert_eq!(published, ["OrderPlaced", "OrderPaid"]);
    Ok(())
}

/// The order's key keeps its events in order; other orders don't wait for them.
fn event(event_type: &str, order: &str) -> Event {
    Event::new(Uuid::now_v7(), event_type, order, r#"{"sku": "sword"}"#).ordered_by(order)
}

/// Producer and consumer say the same, and whoever comes first makes the stream.
fn stream() -> StreamSpec {
    StreamSpec::new("outbox-example", ["outbox_example.events"])
}

/// Runs the relay until both events of `order` have arrived. In production it is started with
/// the service, and runs in as many processes as you like.
async fn relay<B>(bus: B, pool: &PgPool, outbox: &Outbox, order: &str) -> Result<Vec<String>, Error>
where
    B: Publisher + Subscriber,
{
    let spec = ConsumerSpec::new(stream(), "example");
    let subscription = bus.subscribe(&spec).await?;

    let routes = Routes::to("outbox_example.events");
    let settings = RelaySettings::new("example.outbox", pool.clone(), routes);
    let relay = outbox::relay(outbox, Arc::new(bus), settings);
    let supervisor = Supervisor::new(Clock::system());
    supervisor.start(relay);

    let mut published = Vec::new();
    while published.len() < 2 {
        let batch = subscription.fetch(10, Duration::from_secs(10)).await?;
        if batch.is_empty() {
            return Err("nothing was published".into());
        }
        for delivery in batch {
            let event_type = delivery.header("event_type").unwrap_or("?");
            println!("published: {event_type} as {}", delivery.position.sequence);
            if delivery.header("aggregate_key") == Some(order) {
                published.push(event_type.to_owned());
            }
            delivery.ack().await?;
        }
    }
    println!(
        "stopped: {:?}",
        supervisor.stop(Duration::from_secs(5)).await
    );
    Ok(published)
}
