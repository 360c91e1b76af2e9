//! A message that is delivered twice has one effect: the inbox knows it.
//!
//! `cargo run -p tasuki --example inbox -- postgres://localhost/example`

use std::time::Duration;

use sqlx::PgPool;
use tasuki::Schema;
use tasuki::bus::{
    Consumer, ConsumerSpec, Delivery, Handler, MemoryBus, Message, Publisher, StreamSpec, Verdict,
};
use tasuki::inbox::{Arrival, Inbox};
use tasuki::worker::{self, Error};
use uuid::Uuid;

/// Counts payments: wrong by one for every message that counts twice.
struct Billing {
    pool: PgPool,
    inbox: Inbox,
}

impl Handler for Billing {
    /// One transaction for the whole batch: the ids, the effect, and only then the verdicts.
    /// For one message at a time there is [`Inbox::once`].
    async fn handle(&self, batch: &[Delivery]) -> Result<Vec<Verdict>, Error> {
        let ids: Vec<Uuid> = batch.iter().filter_map(|delivery| delivery.id).collect();
        let mut tx = self.pool.begin().await?;
        let arrivals = self.inbox.record_all(&mut tx, "billing", &ids).await?;
        let new = arrivals.iter().filter(|arrival| **arrival == Arrival::New);
        let new = i64::try_from(new.count())?;
        sqlx::query("UPDATE inbox_example.payments SET counted = counted + $1")
            .bind(new)
            .execute(&mut *tx)
            .await?;
        tx.commit().await?;

        println!("delivered: {}, new: {new}", batch.len());
        let verdict = |delivery: &Delivery| match delivery.id {
            Some(_) => Verdict::Done,
            None => Verdict::Reject {
                reason: "a message without an id".to_owned(),
            },
        };
        Ok(batch.iter().map(verdict).collect())
    }
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    let url = std::env::args().nth(1).ok_or("give a database URL")?;
    let pool = PgPool::connect(&url).await?;
    let schema = Schema::new("inbox_example")?;
    tasuki::migrate(&pool, schema.as_str()).await?;
    for sql in [
        "DROP TABLE IF EXISTS inbox_example.payments",
        "CREATE TABLE inbox_example.payments (counted bigint NOT NULL)",
        "INSERT INTO inbox_example.payments VALUES (0)",
    ] {
        sqlx::query(sql).execute(&pool).await?;
    }

    // A broker at its worst: everything comes twice.
    let stream = StreamSpec::new("payments", ["payments.>"]);
    let bus = MemoryBus::new().with_stream(stream.clone());
    bus.deliver_twice();
    let payment = || Message::new(Uuid::now_v7(), "payments.made", "{}");
    for result in bus.publish(vec![payment(), payment(), payment()]).await {
        result?;
    }

    // Under a supervisor the consumer ticks by itself. Here it runs until nothing is left.
    let billing = Billing {
        pool: pool.clone(),
        inbox: Inbox::new(&schema),
    };
    let spec = ConsumerSpec::new(stream, "billing");
    let wait = Duration::from_millis(50);
    let consumer = Consumer::new("example.billing", bus, spec, billing).with_wait(wait);
    worker::drain(&consumer).await?;

    let counted: i64 = sqlx::query_scalar("SELECT counted FROM inbox_example.payments")
        .fetch_one(&pool)
        .await?;
    println!("payments: {counted}");
    assert_eq!(counted, 3);
    Ok(())
}
