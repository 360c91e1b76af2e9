//! A consumer reads a stream: some messages are done, one has to wait, one is hopeless. The broker
//! is in memory, as in a unit test, and goes away in the middle.
//!
//! `cargo run -p tasuki --example bus`

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tasuki::Clock;
use tasuki::bus::{
    Consumer, ConsumerSpec, Delivery, Handler, MemoryBus, Message, Publisher, StreamSpec, Verdict,
};
use tasuki::worker::{Error, Supervisor};
use uuid::Uuid;

static DONE: AtomicUsize = AtomicUsize::new(0);

struct Post;

impl Handler for Post {
    /// One verdict for each message. With a database, all that must hold is committed here, and
    /// the ids are recorded in the inbox: the same message may come again.
    async fn handle(&self, batch: &[Delivery]) -> Result<Vec<Verdict>, Error> {
        let mut verdicts = Vec::with_capacity(batch.len());
        for delivery in batch {
            let verdict = match (&delivery.payload[..], delivery.deliveries) {
                (b"to nobody", _) => Verdict::Reject {
                    reason: "no such address".to_owned(),
                },
                (b"to bob", 1) => Verdict::Retry {
                    after: Some(Duration::from_millis(100)),
                },
                _ => Verdict::Done,
            };
            let letter = String::from_utf8_lossy(&delivery.payload);
            println!("{letter}, delivery {}: {verdict:?}", delivery.deliveries);
            if verdict == Verdict::Done {
                DONE.fetch_add(1, Ordering::Relaxed);
            }
            verdicts.push(verdict);
        }
        Ok(verdicts)
    }
}

async fn send(bus: &MemoryBus, letter: &'static str) {
    let message = Message::new(Uuid::now_v7(), "post.letters", letter);
    for result in bus.publish(vec![message]).await {
        match result {
            Ok(at) => println!("{letter}: message {} of {}", at.sequence, at.stream),
            Err(error) => println!("{letter}: {error}"),
        }
    }
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    let stream = StreamSpec::new("letters", ["post.letters"]);
    let bus = MemoryBus::new().with_stream(stream.clone()); // `NatsBus` in production.
    let supervisor = Supervisor::new(Clock::system());
    let consumer = Consumer::new(
        "post.letters",
        bus.clone(),
        ConsumerSpec::new(stream, "post"),
        Post,
    );
    supervisor.start(consumer.with_wait(Duration::from_millis(50)));

    for letter in ["to ada", "to bob", "to nobody"] {
        send(&bus, letter).await;
    }
    bus.disconnect();
    send(&bus, "to carol").await; // An outbox would keep it, and try again.
    bus.reconnect();
    send(&bus, "to carol").await;

    while DONE.load(Ordering::Relaxed) < 3 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let stopped = supervisor.stop(Duration::from_secs(5)).await;
    println!(
        "delivered: {}, stopped: {stopped:?}",
        DONE.load(Ordering::Relaxed)
    );
    Ok(())
}
