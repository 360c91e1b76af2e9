//! The bus on a server that goes away: killed, silent, restarted, emptied.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use tasuki::bus::conformance::Fixture;
use tasuki::bus::{
    ConsumerSpec, Message, NatsBus, PublishError, Publisher, StreamError, Streams, Subscriber,
    Subscription,
};
use tasuki_stack::Nats;
use tasuki_testkit::{breakable, eventually};
use uuid::Uuid;

use super::OnNats;

async fn connect(nats: &Nats) -> OnNats {
    let options = nats.connect_options().retry_on_initial_connect();
    OnNats::on(options.connect(nats.url()).await.unwrap())
}

fn all_unreachable(results: &[Result<tasuki::bus::Position, PublishError>]) -> bool {
    let mut results = results.iter();
    results.all(|result| matches!(result, Err(PublishError::Unreachable(_))))
}

#[tokio::test]
async fn a_bus_can_be_made_and_used_before_the_broker_is_there() {
    let nats = Nats::start(&breakable("nats-late")).await.unwrap();
    nats.stop().await.unwrap();
    let on = connect(&nats).await;
    let bus = on.bus(vec![on.spec()]);
    let batch = on.messages(3);

    let results = bus.publish(batch.clone()).await;
    assert!(all_unreachable(&results), "{results:?}");
    let stream = bus.ensure_stream(&on.spec()).await;
    assert!(matches!(stream, Err(StreamError::Unreachable(_))));

    nats.start().await.unwrap();
    eventually("the batch is stored", async || {
        let results = bus.publish(batch.clone()).await;
        results.iter().all(Result::is_ok).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_broker_that_says_nothing_is_unreachable_within_the_timeout() {
    let nats = Nats::start(&breakable("nats-silent")).await.unwrap();
    let on = connect(&nats).await;
    let limit = Duration::from_secs(1);
    let bus = NatsBus::new(on.client.clone())
        .with_stream(on.spec())
        .with_ack_timeout(limit);
    assert!(bus.publish(on.messages(2)).await.iter().all(Result::is_ok));
    let subscription = bus.subscribe(&ConsumerSpec::new(on.spec(), "reader")).await;
    let subscription = subscription.unwrap();

    nats.pause().await.unwrap();
    for size in [1, 100] {
        let started = Instant::now();
        let results = bus.publish(on.messages(size)).await;
        assert!(all_unreachable(&results), "{results:?}");
        assert!(started.elapsed() < 2 * limit, "{:?}", started.elapsed());
    }
    let started = Instant::now();
    let fetched = subscription.fetch(10, Duration::from_millis(100)).await;
    assert!(matches!(fetched, Err(StreamError::Unreachable(_))));
    let asked = bus.ids_between(&on.spec().name, 1, 2).await;
    assert!(matches!(asked, Err(StreamError::Unreachable(_))));
    assert!(started.elapsed() < 4 * limit, "{:?}", started.elapsed());
    nats.resume().await.unwrap();
}

/// Publishes what is not confirmed yet until everything is, as the relay does.
async fn publish_until_stored(bus: &NatsBus, batch: Vec<Message>) -> HashMap<Uuid, u64> {
    let mut stored = HashMap::new();
    let mut left = batch;
    eventually("every message is stored", async || {
        let results = bus.publish(left.clone()).await;
        let sent = std::mem::take(&mut left);
        for (message, result) in sent.into_iter().zip(results) {
            match result {
                Ok(position) => drop(stored.insert(message.id, position.sequence)),
                Err(error) => {
                    assert!(!matches!(error, PublishError::Refused(_)), "{error:?}");
                    left.push(message);
                }
            }
        }
        left.is_empty().then_some(())
    })
    .await;
    stored
}

#[tokio::test]
async fn a_server_that_is_killed_under_load_costs_no_message_and_no_order() {
    let nats = Nats::start(&breakable("nats-killed")).await.unwrap();
    let on = connect(&nats).await;
    let bus = on.bus(vec![on.spec()]);
    bus.ensure_stream(&on.spec()).await.unwrap();
    let batches: Vec<Vec<Message>> = (0..8)
        .map(|lane| {
            let key = format!("key-{lane}");
            let messages = on.messages(1500).into_iter();
            messages
                .map(|message| message.in_order_of(key.as_str()))
                .collect()
        })
        .collect();
    let order: Vec<Vec<Uuid>> = batches
        .iter()
        .map(|batch| batch.iter().map(|message| message.id).collect())
        .collect();

    let publishing = join_all(batches.into_iter().map(|batch| {
        let bus = bus.clone();
        async move {
            let mut stored = HashMap::new();
            for chunk in batch.chunks(100) {
                stored.extend(publish_until_stored(&bus, chunk.to_vec()).await);
            }
            stored
        }
    }));
    let breaking = async {
        for _ in 0..2 {
            let name = on.spec().name;
            let before = bus.stream(&name).await.ok().flatten();
            let before = before.map_or(0, |stream| stream.last_sequence);
            eventually("some more messages are stored", async || {
                let stream = bus.stream(&name).await.ok().flatten()?;
                (stream.last_sequence > before + 500).then_some(())
            })
            .await;
            nats.kill().await.unwrap();
            nats.start().await.unwrap();
        }
    };
    let (stored, ()) = tokio::join!(publishing, breaking);

    for (stored, order) in stored.iter().zip(order) {
        let sequences: Vec<_> = order.iter().map(|id| stored[id]).collect();
        assert!(
            sequences.is_sorted(),
            "a later message stands before an earlier one"
        );
        let found = bus.ids_at(&on.spec().name, &sequences).await.unwrap();
        let expected: Vec<_> = order.into_iter().map(Some).collect();
        assert_eq!(found, expected);
    }
}

#[tokio::test]
async fn a_store_that_was_wiped_is_noticed_and_made_again() {
    let nats = Nats::start(&breakable("nats-wiped")).await.unwrap();
    let on = connect(&nats).await;
    let spec = on.spec().storage(tasuki::bus::Storage::Memory);
    let bus = on.bus(vec![spec.clone()]);
    let before = bus.publish(on.messages(5)).await.pop().unwrap().unwrap();
    // A memory stream does not outlive its server.
    nats.restart().await.unwrap();

    let after = eventually("messages are stored again", async || {
        bus.publish(on.messages(2)).await.pop()?.ok()
    })
    .await;
    assert_eq!((before.sequence, after.sequence), (5, 2));
    assert!(after.stream_created_at > before.stream_created_at);
    let stream = bus.stream(&spec.name).await.unwrap().unwrap();
    assert_eq!(stream.created_at, after.stream_created_at);
}
