//! Ordering keys: in order within a key, and no key waits for another.

use std::collections::HashMap;
use std::sync::Mutex;

use tasuki::bus::{Message, Position, PublishError};

use super::*;

fn keyed(key: usize, n: usize) -> Event {
    let id = tasuki::uuid_v7(&Clock::system());
    Event::new(id, "Moved", format!("k{key}"), format!("{n}")).ordered_by(format!("key-{key}"))
}

/// The payloads that arrived first, by key, in the order of their first arrival.
fn first_arrivals(messages: &[Message]) -> HashMap<String, Vec<usize>> {
    let mut by_key: HashMap<String, Vec<usize>> = HashMap::new();
    for message in messages {
        let key = message.ordering_key.as_deref().unwrap_or("").to_owned();
        let n: usize = std::str::from_utf8(&message.payload)
            .unwrap()
            .parse()
            .unwrap();
        let arrived = by_key.entry(key).or_default();
        if !arrived.contains(&n) {
            arrived.push(n);
        }
    }
    by_key
}

fn arrivals(shop: &Shop) -> HashMap<String, Vec<usize>> {
    let messages: Vec<Message> = shop
        .bus
        .messages(STREAM)
        .into_iter()
        .map(|(_, m)| m)
        .collect();
    first_arrivals(&messages)
}

#[tokio::test]
async fn events_of_one_key_are_published_in_the_order_in_which_they_were_enqueued() {
    let shop = Shop::open().await;
    for n in 0..30 {
        let events: Vec<Event> = (0..20).map(|key| keyed(key, n)).collect();
        shop.enqueue_these(&events).await;
    }
    shop.relay().drain().await.unwrap();
    let arrived = arrivals(&shop);
    assert_eq!(arrived.len(), 20);
    for (key, order) in arrived {
        assert_eq!(order, (0..30).collect::<Vec<_>>(), "{key}");
    }
}

#[tokio::test]
async fn a_busy_key_does_not_hold_up_the_others() {
    let shop = Shop::open().await;
    let busy: Vec<Event> = (0..3_000).map(|n| keyed(0, n)).collect();
    shop.enqueue_these(&busy).await;
    shop.enqueue_these(&[keyed(1, 0), keyed(2, 0), event("Free", 1)])
        .await;
    shop.relay().drain().await.unwrap();
    let messages = shop.bus.messages(STREAM);
    assert_eq!(messages.len(), 3_003);
    let late = messages
        .iter()
        .filter(|(_, message)| message.ordering_key.as_deref() != Some("key-0"))
        .map(|(sequence, _)| *sequence)
        .max();
    assert!(
        late <= Some(200),
        "the last of the others was number {late:?}"
    );
}

#[tokio::test]
async fn many_busy_keys_do_not_hold_up_one_that_comes_after_them() {
    let shop = Shop::open().await;
    for key in 100..130 {
        let busy: Vec<Event> = (0..300).map(|n| keyed(key, n)).collect();
        shop.enqueue_these(&busy).await;
    }
    shop.enqueue_these(&[keyed(999, 0)]).await;
    shop.relay().drain().await.unwrap();
    let messages = shop.bus.messages(STREAM);
    assert_eq!(messages.len(), 9_001);
    let late = messages
        .iter()
        .position(|(_, message)| message.ordering_key.as_deref() == Some("key-999"));
    // In the first round: no key was served twice before it.
    assert!(late <= Some(3_000), "it was number {late:?}");
}

#[tokio::test]
async fn a_claim_of_ordered_events_scans_no_table() {
    let shop = Shop::open().await;
    let free: Vec<Event> = (0..20_000).map(|n| event("Free", n)).collect();
    shop.enqueue_these(&free).await;
    let ordered: Vec<Event> = (0..300).map(|key| keyed(key, 0)).collect();
    shop.enqueue_these(&ordered).await;
    shop.execute("VACUUM ANALYZE shop.outbox_events").await;
    let mut connection = shop.pool().acquire().await.unwrap();
    let scans = "SELECT seq_scan FROM pg_stat_xact_user_tables WHERE relname = 'outbox_events'";
    let owner = Owner::on("here");
    let claim = tasuki::lease::Claim {
        owner: &owner,
        lease: Duration::from_secs(30),
        limit: 500,
    };
    let relay = shop.relay();
    let mut tx = sqlx::Connection::begin(&mut *connection).await.unwrap();
    // More often than the driver's plans are made for the values at hand.
    for _ in 0..8 {
        let rows = tasuki::lease::Work::claim(relay.work(), &mut tx, &claim)
            .await
            .unwrap();
        assert!(rows.len() >= 500);
    }
    let scans: i64 = sqlx::query_scalar(scans).fetch_one(&mut *tx).await.unwrap();
    assert_eq!(scans, 0);
}

#[tokio::test]
async fn an_event_that_is_refused_holds_up_its_own_key_and_no_other() {
    let shop = Shop::open().await;
    let mut events = Vec::new();
    for n in 0..5 {
        events.extend([keyed(0, n), keyed(1, n)]);
    }
    shop.enqueue_these(&events).await;
    shop.bus.refuse(|message| {
        message.ordering_key.as_deref() == Some("key-0") && &message.payload[..] == b"2"
    });
    let relay = shop.relay();
    relay.drain().await.unwrap();
    let arrived = arrivals(&shop);
    assert_eq!(arrived.get("key-0"), Some(&vec![0, 1]));
    assert_eq!(arrived.get("key-1"), Some(&vec![0, 1, 2, 3, 4]));

    shop.bus.refuse_nothing();
    shop.execute("UPDATE shop.outbox_events SET next_retry_at = now()")
        .await;
    relay.drain().await.unwrap();
    assert_eq!(arrivals(&shop).get("key-0"), Some(&vec![0, 1, 2, 3, 4]));
}

#[tokio::test]
async fn a_dead_event_lets_its_successors_pass() {
    let shop = Shop::open().await;
    shop.enqueue_these(&[keyed(0, 0), keyed(0, 1), keyed(0, 2)])
        .await;
    shop.bus.refuse(|message| &message.payload[..] == b"0");
    for _ in 0..10 {
        shop.relay().drain().await.unwrap();
        shop.execute(
            "UPDATE shop.outbox_events SET next_retry_at = now() WHERE status <> 'FAILED'",
        )
        .await;
    }
    shop.relay().drain().await.unwrap();
    assert_eq!(arrivals(&shop).get("key-0"), Some(&vec![1, 2]));
}

#[tokio::test]
async fn many_more_keys_than_one_claim_looks_at_are_all_served() {
    let shop = Shop::open().await;
    // The first 700 keys are waiting for their retry: they must not hide the others.
    let waiting: Vec<Event> = (0..700).map(|key| keyed(key, 0)).collect();
    shop.enqueue_these(&waiting).await;
    shop.execute("UPDATE shop.outbox_events SET next_retry_at = now() + interval '1 h'")
        .await;
    let fresh: Vec<Event> = (900..2_500).map(|key| keyed(key, 0)).collect();
    shop.enqueue_these(&fresh).await;
    shop.relay().drain().await.unwrap();
    assert_eq!(arrivals(&shop).len(), 1_600);
}

#[tokio::test]
async fn whoever_keeps_an_event_from_the_middle_of_a_run_holds_up_what_is_behind_it() {
    let shop = Shop::open().await;
    let events: Vec<Event> = (0..8).map(|n| keyed(0, n)).collect();
    shop.enqueue_these(&events).await;
    let relay = shop.relay();
    let mut connection = shop.pool().acquire().await.unwrap();
    let owner = Owner::on("elsewhere");
    let claim = tasuki::lease::Claim {
        owner: &owner,
        lease: Duration::from_secs(30),
        limit: 8,
    };
    let theirs = tasuki::lease::Work::claim(relay.work(), &mut connection, &claim);
    assert_eq!(theirs.await.unwrap().len(), 8);
    drop(connection);
    shop.expire_leases().await;
    // Their renewal comes late, and gets hold of two of them while we are about to claim all.
    let mut renewal = shop.pool().begin().await.unwrap();
    let renew = "UPDATE shop.outbox_events SET lease_until = now() + interval '1 h'
        WHERE payload IN ('3', '5')";
    sqlx::query(renew).execute(&mut *renewal).await.unwrap();
    let kept = async {
        tasuki_testkit::eventually("our claim waits for their renewal", async || {
            let waiting = "SELECT count(*) FROM pg_stat_activity
                WHERE datname = current_database() AND wait_event_type = 'Lock'";
            (shop.count(waiting).await > 0).then_some(())
        })
        .await;
        renewal.commit().await.unwrap();
    };

    let (drained, ()) = tokio::join!(relay.drain(), kept);

    drained.unwrap();
    assert_eq!(arrivals(&shop).get("key-0"), Some(&vec![0, 1, 2]));
}

/// Passes on to the bus in memory, fails some of the time, and keeps what arrived.
struct Shaky {
    bus: MemoryBus,
    log: Mutex<Vec<Message>>,
}

impl Publisher for Shaky {
    async fn publish(&self, batch: Vec<Message>) -> Vec<Result<Position, PublishError>> {
        let dice = fastrand::u8(0..10);
        if dice == 0 {
            let away = || PublishError::Unreachable("cut before".into());
            return batch.iter().map(|_| Err(away())).collect();
        }
        tokio::task::yield_now().await;
        let results = self.bus.publish(batch.clone()).await;
        let stored = batch
            .iter()
            .zip(&results)
            .filter(|(_, result)| result.is_ok());
        self.log
            .lock()
            .unwrap()
            .extend(stored.map(|(message, _)| message.clone()));
        if dice == 1 {
            let lost = || PublishError::Unreachable("the answer was lost".into());
            return batch.iter().map(|_| Err(lost())).collect();
        }
        results
    }
}

#[tokio::test]
async fn four_relays_that_crash_and_retry_keep_the_order_of_every_key() {
    let shop = Shop::open().await;
    for n in 0..40 {
        let events: Vec<Event> = (0..25).map(|key| keyed(key, n)).collect();
        shop.enqueue_these(&events).await;
    }
    let bus = Arc::new(Shaky {
        bus: (*shop.bus).clone(),
        log: Mutex::default(),
    });
    let supervisor = tasuki::worker::Supervisor::new(Clock::system());
    for _ in 0..4 {
        let mut settings = shop.settings();
        settings.batch = 10;
        settings.poll = Duration::from_millis(20);
        settings.lease = Duration::from_secs(2);
        let relay = outbox::relay(&shop.outbox, Arc::clone(&bus), settings);
        supervisor.start(relay);
    }
    tasuki_testkit::eventually_within(Duration::from_secs(60), "all are published", async || {
        // Now and then a relay is taken to be dead, in the middle of whatever it does.
        if fastrand::u8(0..5) == 0 {
            shop.expire_leases().await;
        }
        (shop.count("SELECT count(*) FROM shop.outbox_events").await == 0).then_some(())
    })
    .await;
    assert_eq!(
        supervisor.stop(Duration::from_secs(5)).await,
        tasuki::worker::Stopped::Finished
    );
    let log = bus.log.lock().unwrap().clone();
    let arrived = first_arrivals(&log);
    assert_eq!(arrived.len(), 25);
    for (key, order) in arrived {
        assert_eq!(order, (0..40).collect::<Vec<_>>(), "{key}");
    }
}
