//! When the database is away: nothing is lost, and deliveries are not used up.

use tasuki_stack::Proxy;
use tasuki_testkit::eventually;
use uuid::Uuid;

use crate::support::{World, database_address, granted};

/// A world whose service reaches its database through a proxy.
async fn behind_proxy(max_deliver: i64) -> (World, Proxy) {
    let proxy = Proxy::start(database_address().await).await.unwrap();
    let port = proxy.addr().port();
    let world = World::with(|config| {
        let mut url: reqwest::Url = config.text("database.url").parse().unwrap();
        url.set_port(Some(port)).unwrap();
        config
            .with_value("database.url", url.to_string())
            .unwrap()
            .with_value("database.acquire-timeout", "500ms")
            .unwrap()
            .with_value("notification.nats.max-deliver", max_deliver)
            .unwrap()
    })
    .await;
    (world, proxy)
}

#[tokio::test]
async fn messages_that_arrive_while_the_database_is_away_are_told_when_it_is_back() {
    let (world, proxy) = behind_proxy(3).await;
    world.tell(&granted("u", "first", 1)).await;
    let sent = "SELECT count(*) FROM notification.notifications WHERE status = 'SENT'";
    world.counts(1, sent).await;

    proxy.refuse().await.unwrap();
    proxy.reset().await.unwrap();
    for number in 0..50 {
        world.tell(&granted("u", &format!("s{number}"), 1)).await;
    }
    // Long enough for three deliveries in a row, if nothing held them back.
    let until = tokio::time::Instant::now() + std::time::Duration::from_secs(8);
    let mut most = 0;
    while tokio::time::Instant::now() < until {
        let stream = world.jetstream.get_stream(world.stream()).await.unwrap();
        let info = stream.consumer_info(&world.durable()).await.unwrap();
        most = most.max(info.num_redelivered);
        // sleep: the outage has to last, whatever happens meanwhile.
        tokio::time::sleep(std::time::Duration::from_millis(200)).await;
    }
    proxy.heal().await.unwrap();
    world.counts(51, sent).await;
    world.settled().await;
    assert_eq!(
        world
            .count("SELECT count(*) FROM notification.notification_nats_dlq")
            .await,
        0,
        "no delivery was the last one ({most} redelivered)",
    );
    let doubles = "SELECT count(*) - count(DISTINCT event_id) FROM notification.notifications";
    assert_eq!(world.count(doubles).await, 0);
}

#[tokio::test]
async fn advisories_that_come_while_the_database_is_away_are_recorded_when_it_is_back() {
    let (world, proxy) = behind_proxy(3).await;
    world.tell(&granted("u", "first", 1)).await;
    let sent = "SELECT count(*) FROM notification.notifications WHERE status = 'SENT'";
    world.counts(1, sent).await;
    let aside = "SELECT count(*) FROM notification.notification_nats_dlq WHERE kind = 'TERMINATED'";

    proxy.refuse().await.unwrap();
    proxy.reset().await.unwrap();
    // Somebody else refuses a message of this durable for good: the broker says so.
    let sequence = world
        .publish(&Uuid::now_v7().to_string(), b"\xff".to_vec())
        .await;
    let given_up = format!("{}-refused", world.env.prefix());
    let advisories = world.jetstream.get_stream(&given_up).await.unwrap();
    let advisory = serde_json::json!({
        "type": "io.nats.jetstream.advisory.v1.terminated",
        "stream": world.stream(), "consumer": world.durable(), "stream_seq": sequence,
        "deliveries": 1, "reason": "by hand",
    });
    let subject = format!(
        "$JS.EVENT.ADVISORY.CONSUMER.MSG_TERMINATED.{}.{}",
        world.stream(),
        world.durable()
    );
    let client = async_nats::connect(world.env.config.text("nats.url"))
        .await
        .unwrap();
    client
        .publish(subject, advisory.to_string().into())
        .await
        .unwrap();
    client.flush().await.unwrap();
    eventually("the advisory is kept by the broker", async || {
        let stream = world.jetstream.get_stream(&given_up).await.ok()?;
        (stream.cached_info().state.messages >= 1).then_some(())
    })
    .await;
    drop(advisories);
    assert_eq!(world.count(aside).await, 0);
    proxy.heal().await.unwrap();
    world.counts(1, aside).await;
}
