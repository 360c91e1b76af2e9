//! When the database is away: nothing is lost, and deliveries are not used up.

use std::time::Duration;

use async_nats::jetstream::stream::Stream;
use tasuki_contract::events::Message as _;
use tasuki_stack::Proxy;
use tasuki_testkit::{eventually, eventually_within};
use uuid::Uuid;

use crate::aside::{deliver, stop};
use crate::support::{World, database_address, granted};

const SENT: &str = "SELECT count(*) FROM notification.notifications WHERE status = 'SENT'";
const ASIDE: &str = "SELECT count(*) FROM notification.notification_nats_dlq";

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
            .with_value("database.idle-in-transaction-timeout", "2s")
            .unwrap()
            .with_value("notification.nats.ack-wait", "2s")
            .unwrap()
            .with_value("notification.nats.max-deliver", max_deliver)
            .unwrap()
    })
    .await;
    (world, proxy)
}

/// The stream that keeps advisories of what was `refused` or `given-up`, once it is there.
pub(crate) async fn advisories(world: &World, what: &str) -> Stream {
    let name = format!("{}-{what}", world.env.prefix());
    eventually("advisories are kept", async || {
        world.jetstream.get_stream(&name).await.ok()
    })
    .await
}

/// Somebody else refuses a message of this durable for good: the broker says so, and keeps it.
pub(crate) async fn advise(world: &World, sequence: u64, at: Option<&str>) {
    let before = advisories(world, "refused").await;
    let before = before.cached_info().state.messages;
    let advisory = serde_json::json!({
        "type": "io.nats.jetstream.advisory.v1.terminated",
        "stream": world.stream(), "consumer": world.durable(), "stream_seq": sequence,
        "deliveries": 1, "reason": "by hand",
        "timestamp": at,
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
        let stream = advisories(world, "refused").await;
        (stream.cached_info().state.messages > before).then_some(())
    })
    .await;
}

/// Whether the broker has said that it gave this message up.
pub(crate) async fn given_up_of(advisories: &Stream, sequence: u64) -> bool {
    let last = advisories.get_info().await.unwrap().state.last_sequence;
    for number in 1..=last {
        let said = advisories.get_raw_message(number).await.unwrap();
        let said: serde_json::Value = serde_json::from_slice(&said.payload).unwrap();
        let of = said.get("stream_seq").and_then(serde_json::Value::as_u64);
        if of == Some(sequence) {
            return true;
        }
    }
    false
}

#[tokio::test]
async fn messages_that_arrive_while_the_database_is_away_are_told_when_it_is_back() {
    let (world, proxy) = behind_proxy(3).await;
    world.tell(&granted("u", "first", 1)).await;
    world.counts(1, SENT).await;

    proxy.refuse().await.unwrap();
    proxy.reset().await.unwrap();
    for number in 0..50 {
        world.tell(&granted("u", &format!("s{number}"), 1)).await;
    }
    // Long enough for three deliveries in a row, if nothing held them back.
    let until = tokio::time::Instant::now() + Duration::from_secs(8);
    let mut most = 0;
    while tokio::time::Instant::now() < until {
        let stream = world.jetstream.get_stream(world.stream()).await.unwrap();
        let info = stream.consumer_info(&world.durable()).await.unwrap();
        most = most.max(info.num_redelivered);
        // sleep: the outage has to last, whatever happens meanwhile.
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    proxy.heal().await.unwrap();
    world.counts(51, SENT).await;
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
    world.counts(1, SENT).await;
    let aside = "SELECT count(*) FROM notification.notification_nats_dlq WHERE kind = 'TERMINATED'";

    proxy.refuse().await.unwrap();
    proxy.reset().await.unwrap();
    let sequence = world
        .publish(&Uuid::now_v7().to_string(), b"\xff".to_vec())
        .await;
    advise(&world, sequence, None).await;
    assert_eq!(world.count(aside).await, 0);
    proxy.heal().await.unwrap();
    world.counts(1, aside).await;
}

#[tokio::test]
async fn a_message_that_is_given_up_while_the_database_is_away_is_recorded_when_it_is_back() {
    let (world, proxy) = behind_proxy(1).await;
    world.tell(&granted("u", "first", 1)).await;
    world.counts(1, SENT).await;
    world.settled().await;
    proxy.refuse().await.unwrap();
    proxy.reset().await.unwrap();
    // Nobody asks for another message until this one could be taken in.
    let held = world.tell(&granted("u", "held", 1)).await;
    let stream = world.jetstream.get_stream(world.stream()).await.unwrap();
    eventually("it was delivered", async || {
        let info = stream.consumer_info(&world.durable()).await.unwrap();
        (info.delivered.stream_sequence >= held).then_some(())
    })
    .await;
    let sequence = world.tell(&granted("u", "lost", 1)).await;
    // Whoever gets it now does nothing about it, and it was its only delivery.
    drop(deliver(&world).await);
    let given_up = advisories(&world, "given-up").await;
    eventually("the broker has given it up", async || {
        given_up_of(&given_up, sequence).await.then_some(())
    })
    .await;
    assert_eq!(world.count(ASIDE).await, 0);
    proxy.heal().await.unwrap();
    let recorded = "SELECT count(*) FROM notification.notification_nats_dlq
        WHERE kind = 'MAX_DELIVERIES' AND stream_seq = 3 AND message_id IS NOT NULL";
    assert_eq!(sequence, 3);
    world.counts(1, recorded).await;
}

#[tokio::test]
async fn what_a_silent_connection_holds_up_is_given_to_others_soon() {
    let (mut world, proxy) = behind_proxy(10).await;
    world.tell(&granted("u", "first", 1)).await;
    world.counts(1, SENT).await;
    world.settled().await;
    // In the middle of a transaction the network goes: no answer comes, and no end.
    let mut table = world.env.db.pool.begin().await.unwrap();
    sqlx::query("LOCK TABLE notification.notifications_live IN SHARE ROW EXCLUSIVE MODE")
        .execute(&mut *table)
        .await
        .unwrap();
    world.tell(&granted("u", "second", 1)).await;
    world
        .blocked(1, "INSERT INTO notification.notifications_live")
        .await;
    proxy.blackhole().await.unwrap();
    table.rollback().await.unwrap();
    let port = database_address().await.port();
    let mut url: reqwest::Url = world.env.config.text("database.url").parse().unwrap();
    url.set_port(Some(port)).unwrap();
    let config = world.env.config.clone();
    world.env.config = config.with_value("database.url", url.to_string()).unwrap();
    let _other = world.another().await;
    eventually_within(Duration::from_secs(90), "the other tells it", async || {
        (world.count(SENT).await == 2).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_database_that_answers_and_takes_nothing_uses_up_no_delivery() {
    let world = World::with(|config| {
        config
            .with_value("notification.nats.max-deliver", 2)
            .unwrap()
    })
    .await;
    let known = granted("u", "known", 1);
    world.tell(&known).await;
    world.counts(1, SENT).await;
    world.settled().await;
    stop(&world).await;
    world
        .execute(
            "CREATE FUNCTION notification.full_disk() RETURNS trigger LANGUAGE plpgsql AS $$
             BEGIN
                 RAISE EXCEPTION 'could not extend file: No space left on device'
                     USING ERRCODE = '53100';
             END $$;
             CREATE TRIGGER full_disk BEFORE INSERT ON notification.notifications_live
                 FOR EACH STATEMENT EXECUTE FUNCTION notification.full_disk()",
        )
        .await;
    // The first of the batch goes in without a write, which says nothing of the others.
    world.publish("copy", known.encode_to_vec()).await;
    for number in 0..3 {
        world.tell(&granted("u", &format!("s{number}"), 1)).await;
    }
    let _again = world.another().await;
    // sleep: long enough for the second and last delivery, if nothing held it back.
    tokio::time::sleep(Duration::from_secs(3)).await;
    world
        .execute("DROP TRIGGER full_disk ON notification.notifications_live")
        .await;
    world.counts(4, SENT).await;
    world.settled().await;
    assert_eq!(world.count(ASIDE).await, 0, "no delivery was the last one");
}
