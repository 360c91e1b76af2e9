//! The relay: publishes what was committed, at least once, whatever breaks.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use tasuki::bus::{
    Consumer, ConsumerSpec, Delivery, Handler, Message, Position, PublishError, Verdict,
};
use tasuki::lease::Work;
use tasuki::retry::{Backoff, Policy};
use tasuki::worker::{self, Worker};

use super::*;

const LIVE: &str = "SELECT count(*) FROM shop.outbox_events";
const PUBLISHED: &str = "SELECT count(*) FROM shop.outbox_published";
const ATTEMPTS: &str = "SELECT coalesce(sum(attempt_count), 0) FROM shop.outbox_events";

#[tokio::test]
async fn a_published_event_carries_what_its_consumers_need_and_moves_to_the_published_ones() {
    let shop = Shop::open().await;
    let trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let cause = Uuid::from_u128(1);
    let sent = event("OrderPlaced", 7)
        .traceparent(Some(trace.to_owned()))
        .correlation_id("order:7")
        .causation_id(cause);
    shop.enqueue_these(std::slice::from_ref(&sent)).await;
    shop.relay().drain().await.unwrap();

    let (sequence, message) = shop.bus.messages(STREAM).remove(0);
    let header = |name| {
        let mut headers = message.headers.iter();
        headers
            .find(|(header, _)| *header == name)
            .map(|(_, text)| text.as_str())
    };
    assert_eq!(
        (sequence, message.id, &*message.subject),
        (1, sent.id(), SUBJECT)
    );
    assert_eq!(&message.payload[..], b"payload 7");
    assert_eq!(header("event_type"), Some("OrderPlaced"));
    assert_eq!(header("aggregate_key"), Some("order:7"));
    assert_eq!(header("traceparent"), Some(trace));
    assert_eq!(header("trace_id"), Some("4bf92f3577b34da6a3ce929d0e0e4736"));
    assert_eq!(header("correlation_id"), Some("order:7"));
    assert_eq!(header("causation_id"), Some(&*cause.to_string()));
    let length = "2026-11-15T20:00:00.000000Z".len();
    assert!(header("occurred_at").is_some_and(|at| at.ends_with('Z') && at.len() == length));
    let stored: (String, i64) =
        sqlx::query_as("SELECT stream, stream_seq FROM shop.outbox_published WHERE event_id = $1")
            .bind(sent.id())
            .fetch_one(shop.pool())
            .await
            .unwrap();
    assert_eq!(stored, (STREAM.to_owned(), 1));
    assert_eq!(shop.count(LIVE).await, 0);
}

#[tokio::test]
async fn events_go_where_their_type_says() {
    let shop = Shop::open().await;
    let bus = MemoryBus::new()
        .with_stream(stream())
        .with_stream(StreamSpec::new("pay", ["shop.payments"]));
    let mut settings = shop.settings();
    settings.routes = Routes::to(SUBJECT).route("OrderPaid", "shop.payments");
    shop.enqueue_these(&[event("OrderPaid", 1), event("OrderPlaced", 2)])
        .await;
    outbox::relay(&shop.outbox, Arc::new(bus.clone()), settings)
        .drain()
        .await
        .unwrap();
    assert_eq!(bus.messages("pay").len(), 1);
    assert_eq!(bus.messages(STREAM).len(), 1);
}

#[tokio::test]
async fn a_relay_that_dies_after_the_publish_publishes_again() {
    let shop = Shop::open().await;
    let ids = shop.enqueue(3).await;
    let dead = shop.relay();
    let mut connection = shop.pool().acquire().await.unwrap();
    let owner = Owner::on("dead");
    let claim = tasuki::lease::Claim {
        owner: &owner,
        lease: Duration::from_secs(30),
        limit: 10,
    };
    let rows = dead.work().claim(&mut connection, &claim).await.unwrap();
    dead.work().run(rows).await; // And no settlement.

    let relay = shop.relay();
    assert_eq!(relay.drain().await.unwrap(), 0, "its lease holds");
    shop.expire_leases().await;
    assert_eq!(relay.drain().await.unwrap(), 3);
    // The broker in memory has a dedupe window, as the real one has.
    assert_eq!(shop.arrived(), ids);
    assert_eq!(shop.count(PUBLISHED).await, 3);
}

#[tokio::test]
async fn a_relay_that_lost_its_claim_settles_nothing() {
    let shop = Shop::open().await;
    shop.enqueue(2).await;
    let stale = shop.relay();
    let mut connection = shop.pool().acquire().await.unwrap();
    let owner = Owner::on("here"); // The same host: its name must not help.
    let claim = tasuki::lease::Claim {
        owner: &owner,
        lease: Duration::from_secs(30),
        limit: 10,
    };
    let rows = stale.work().claim(&mut connection, &claim).await.unwrap();
    let ended = stale.work().run(rows).await;
    shop.expire_leases().await;
    let again = stale.work().claim(&mut connection, &claim).await.unwrap();
    assert_eq!(again.len(), 2, "reclaimed, by the very same relay");

    let done: Vec<_> = ended
        .into_iter()
        .map(|(fence, outcome)| match outcome {
            tasuki::lease::Outcome::Done(done) => (fence, done),
            other => panic!("{other:?}"),
        })
        .collect();
    let settled = stale.work().settle(&mut connection, &done).await.unwrap();
    assert!(settled.is_empty(), "{settled:?}");
    assert_eq!(shop.count(PUBLISHED).await, 0);
    let fences: Vec<_> = done.iter().map(|(fence, _)| *fence).collect();
    let leases = stale.work().leases();
    let renewed = leases
        .renew(&mut connection, &fences, Duration::from_secs(30))
        .await
        .unwrap();
    assert!(renewed.is_empty(), "{renewed:?}");
    let failed: Vec<(_, tasuki::lease::Outcome<()>)> = fences
        .iter()
        .map(|fence| {
            (
                *fence,
                tasuki::lease::Outcome::Dead {
                    error: "stale".to_owned(),
                },
            )
        })
        .collect();
    let buried = leases.put_back(&mut connection, &failed).await.unwrap();
    assert!(buried.is_empty(), "{buried:?}");
    assert_eq!(
        shop.count("SELECT count(*) FROM shop.dead_letters").await,
        0
    );
}

#[tokio::test]
async fn an_event_that_comes_up_behind_the_watermark_is_found() {
    let shop = Shop::open().await;
    let supervisor = worker::Supervisor::new(Clock::system());
    let mut settings = shop.settings();
    settings.poll = Duration::from_millis(20);
    let relay = outbox::relay(&shop.outbox, Arc::clone(&shop.bus), settings);
    supervisor.start(relay);
    let mut late = shop.pool().begin().await.unwrap();
    let left_behind = event("OrderPlaced", 0);
    shop.outbox.enqueue(&mut late, &left_behind).await.unwrap();
    sqlx::query("UPDATE shop.outbox_events SET next_retry_at = now() - interval '1 h'")
        .execute(&mut *late)
        .await
        .unwrap();
    let first = shop.enqueue(1).await;
    tasuki_testkit::eventually("the first is published", async || {
        (shop.arrived() == first).then_some(())
    })
    .await;

    late.commit().await.unwrap();
    tasuki_testkit::eventually("the other one, too", async || {
        shop.arrived().contains(&left_behind.id()).then_some(())
    })
    .await;
    assert_eq!(
        supervisor.stop(Duration::from_secs(5)).await,
        worker::Stopped::Finished
    );
}

#[tokio::test]
async fn a_broker_that_is_away_costs_no_attempt_and_the_relay_is_back_within_seconds() {
    let shop = Shop::open().await;
    shop.enqueue(2000).await;
    shop.bus.disconnect();
    let supervisor = worker::Supervisor::new(Clock::system());
    let mut settings = shop.settings();
    settings.poll = Duration::from_millis(50);
    let relay = outbox::relay(&shop.outbox, Arc::clone(&shop.bus), settings);
    supervisor.start(relay);
    // sleep: the outage itself; a broker that comes back at once would prove nothing
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(shop.count(ATTEMPTS).await, 0);
    assert_eq!(shop.count(LIVE).await, 2000);

    shop.bus.reconnect();
    tasuki_testkit::eventually_within(Duration::from_secs(8), "all are published", async || {
        (shop.count(PUBLISHED).await == 2000).then_some(())
    })
    .await;
    assert_eq!(
        supervisor.stop(Duration::from_secs(5)).await,
        worker::Stopped::Finished
    );
    assert_eq!(shop.arrived().len(), 2000);
}

#[tokio::test]
async fn a_day_of_outage_makes_nothing_fail() {
    let shop = Shop::open().await;
    shop.enqueue(5).await;
    shop.bus.disconnect();
    for _ in 0..30 {
        // Every attempt is by a relay that has seen nothing yet, as after a restart; and the
        // stored times move as if the better part of an hour had passed.
        shop.relay().drain().await.unwrap();
        shop.execute(
            "UPDATE shop.outbox_events SET created_at = created_at - interval '50 min',
             next_retry_at = next_retry_at - interval '50 min'",
        )
        .await;
    }
    assert_eq!(shop.count(ATTEMPTS).await, 0);
    assert_eq!(
        shop.count("SELECT count(*) FROM shop.dead_letters").await,
        0
    );
    shop.bus.reconnect();
    assert_eq!(shop.relay().drain().await.unwrap(), 5);
}

/// The trace of whoever enqueues in the test below.
fn trace() -> Option<String> {
    Some("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".to_owned())
}

static PUBLISHES: Mutex<Vec<String>> = Mutex::new(Vec::new());
static BATCHES: Mutex<Vec<String>> = Mutex::new(Vec::new());

#[tokio::test]
async fn a_trace_goes_from_the_enqueueing_through_the_publish_to_the_consumer() {
    struct Done;
    impl Handler for Done {
        async fn handle(&self, batch: &[Delivery]) -> Result<Vec<Verdict>, worker::Error> {
            Ok(batch.iter().map(|_| Verdict::Done).collect())
        }
    }
    let shop = Shop::open().await;
    let outbox = shop.outbox.clone().with_trace(trace);
    let own = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let traced = event("OrderPlaced", 0).traceparent(Some(own.to_owned()));
    let mut tx = shop.pool().begin().await.unwrap();
    outbox
        .enqueue(&mut tx, &event("OrderPlaced", 1))
        .await
        .unwrap();
    let events = [event("OrderPlaced", 2), traced];
    outbox.enqueue_all(&mut tx, &events).await.unwrap();
    tx.commit().await.unwrap();

    let mut settings = shop.settings();
    settings.link = |_, traceparent| PUBLISHES.lock().unwrap().push(traceparent.to_owned());
    let relay = outbox::relay(&outbox, Arc::clone(&shop.bus), settings);
    relay.drain().await.unwrap();
    let spec = ConsumerSpec::new(stream(), "traced");
    let consumer = Consumer::new("shop.traced", (*shop.bus).clone(), spec, Done)
        .with_wait(Duration::from_millis(50))
        .linking_traces(|_, traceparent| BATCHES.lock().unwrap().push(traceparent.to_owned()));
    worker::drain(&consumer).await.unwrap();
    for seen in [&PUBLISHES, &BATCHES] {
        let mut seen = seen.lock().unwrap();
        seen.sort_unstable();
        assert_eq!(*seen, [trace().unwrap(), own.to_owned()]);
    }
}

#[tokio::test]
async fn an_event_that_can_never_be_sent_is_dead_at_once() {
    let shop = Shop::open().await;
    let large = vec![b'x'; 2 * 1024 * 1024];
    let event = Event::new(Uuid::now_v7(), "OrderPlaced", "order:1", large);
    shop.enqueue_these(&[event]).await;
    shop.relay().drain().await.unwrap();
    let died =
        "SELECT count(*) FROM shop.outbox_events JOIN shop.dead_letters ON source_id = event_id
         WHERE status = 'FAILED' AND outbox_events.attempt_count = 1";
    assert_eq!(shop.count(died).await, 1);
}

#[tokio::test]
async fn a_poison_event_dies_after_its_attempts_and_delays_nobody() {
    let shop = Shop::open().await;
    let poison = event("Poison", 0);
    let mut events: Vec<Event> = (1..10_000).map(|n| event("OrderPlaced", n)).collect();
    events.insert(17, poison.clone());
    shop.enqueue_these(&events).await;
    let id = poison.id();
    shop.bus.refuse(move |message| message.id == id);

    let hours = Backoff::exponential(Duration::from_secs(3600), Duration::from_secs(7200));
    let relay = || {
        let mut settings = shop.settings();
        settings.policy = Policy::new(10, hours.clone());
        outbox::relay(&shop.outbox, Arc::clone(&shop.bus), settings)
    };
    relay().drain().await.unwrap();
    assert_eq!(
        shop.count(PUBLISHED).await,
        9_999,
        "the others did not wait for it"
    );
    for attempt in 2..=10 {
        assert_eq!(shop.count(ATTEMPTS).await, attempt - 1);
        shop.execute("UPDATE shop.outbox_events SET next_retry_at = now()")
            .await;
        relay().drain().await.unwrap();
    }
    let row: (String, i32, Option<String>) =
        sqlx::query_as("SELECT status, attempt_count, last_error FROM shop.outbox_events")
            .fetch_one(shop.pool())
            .await
            .unwrap();
    assert_eq!((row.0.as_str(), row.1), ("FAILED", 10));
    let letter: (Uuid, String, String, Vec<u8>) =
        sqlx::query_as("SELECT source_id, source, kind, payload FROM shop.dead_letters")
            .fetch_one(shop.pool())
            .await
            .unwrap();
    assert_eq!(
        letter,
        (
            id,
            "outbox_events".to_owned(),
            "Poison".to_owned(),
            b"payload 0".to_vec()
        )
    );
    assert_eq!(
        relay().drain().await.unwrap(),
        0,
        "a dead event is not claimed"
    );
}

/// A publisher one of whose streams is away.
struct HalfAway(MemoryBus);

impl Publisher for HalfAway {
    async fn publish(&self, batch: Vec<Message>) -> Vec<Result<Position, PublishError>> {
        let mut results = Vec::new();
        for message in batch {
            results.push(if &*message.subject == "shop.payments" {
                Err(PublishError::Unreachable("no leader".into()))
            } else {
                self.0.publish(vec![message]).await.remove(0)
            });
        }
        results
    }
}

#[tokio::test]
async fn a_stream_that_is_away_holds_up_its_own_events_and_no_others() {
    let shop = Shop::open().await;
    let stuck: Vec<Event> = (0..1_500).map(|n| event("OrderPaid", n)).collect();
    shop.enqueue_these(&stuck).await;
    let ids = shop.enqueue(100).await;
    let mut settings = shop.settings();
    settings.routes = Routes::to(SUBJECT).route("OrderPaid", "shop.payments");
    settings.poll = Duration::from_millis(50);
    let bus = Arc::new(HalfAway((*shop.bus).clone()));
    let relay = outbox::relay(&shop.outbox, bus, settings);
    let supervisor = worker::Supervisor::new(Clock::system());
    supervisor.start(relay);
    // One that is known to be there makes the other a stream that is away, not a broker.
    tasuki_testkit::eventually("the others are published", async || {
        (shop.count(PUBLISHED).await == 100).then_some(())
    })
    .await;
    assert_eq!(shop.count(ATTEMPTS).await, 0);
    assert_same(shop.arrived(), ids);
    let stopped = supervisor.stop(Duration::from_secs(5)).await;
    assert_eq!(stopped, worker::Stopped::Finished);
}

/// A publisher that panics for some events.
struct Panics(MemoryBus, AtomicUsize);

impl Publisher for Panics {
    async fn publish(&self, batch: Vec<Message>) -> Vec<Result<Position, PublishError>> {
        assert!(
            self.1.fetch_add(1, Ordering::SeqCst) > 0,
            "the first publish panics"
        );
        self.0.publish(batch).await
    }
}

#[tokio::test]
async fn a_publish_that_panics_costs_an_attempt_and_the_relay_goes_on() {
    let shop = Shop::open().await;
    shop.enqueue(3).await;
    let relay = shop.relay_to(Arc::new(Panics((*shop.bus).clone(), AtomicUsize::new(0))));
    relay.drain().await.unwrap();
    assert_eq!(shop.count(ATTEMPTS).await, 3);
    shop.execute("UPDATE shop.outbox_events SET next_retry_at = now()")
        .await;
    relay.drain().await.unwrap();
    assert_eq!(shop.count(PUBLISHED).await, 3);
}

#[tokio::test]
async fn a_ring_after_the_commit_wakes_the_relay_long_before_its_poll() {
    let shop = Shop::open().await;
    let supervisor = worker::Supervisor::new(Clock::system());
    let mut settings = shop.settings();
    settings.poll = Duration::from_secs(3600);
    let relay = outbox::relay(&shop.outbox, Arc::clone(&shop.bus), settings);
    supervisor.start(relay);
    for n in 1..=3 {
        shop.enqueue(1).await;
        shop.outbox.ring();
        tasuki_testkit::eventually("it is published", async || {
            (shop.arrived().len() == n).then_some(())
        })
        .await;
    }
    assert_eq!(
        supervisor.stop(Duration::from_secs(5)).await,
        worker::Stopped::Finished
    );
}

#[tokio::test]
async fn a_relay_of_another_process_hears_the_ring_through_the_database() {
    let shop = Shop::open().await;
    let elsewhere = Outbox::new(&Schema::new("shop").unwrap()); // Another process's handle.
    let supervisor = worker::Supervisor::new(Clock::system());
    let mut settings = shop.settings();
    settings.poll = Duration::from_secs(3600);
    let relay = outbox::relay(&elsewhere, Arc::clone(&shop.bus), settings);
    supervisor.start(relay);
    supervisor.start(elsewhere.listener(shop.pool()));
    supervisor.start(shop.outbox.ringer(shop.pool()));
    shop.enqueue(1).await;
    tasuki_testkit::eventually("it is published", async || {
        shop.outbox.ring(); // The listener may not have been listening yet.
        (shop.arrived().len() == 1).then_some(())
    })
    .await;
    assert_eq!(
        supervisor.stop(Duration::from_secs(5)).await,
        worker::Stopped::Finished
    );
}

#[tokio::test]
async fn the_clock_of_the_process_decides_nothing() {
    let shop = Shop::open().await;
    let off = Clock::held_at(time::OffsetDateTime::UNIX_EPOCH);
    let past = Event::new(tasuki::uuid_v7(&off), "OrderPlaced", "order:1", "past");
    off.advance(Duration::from_secs(4_000_000_000));
    let future = Event::new(tasuki::uuid_v7(&off), "OrderPlaced", "order:2", "future");
    let first = shop.enqueue_these(&[future]).await;
    let second = shop.enqueue_these(&[past]).await;
    shop.relay().drain().await.unwrap();
    assert_eq!(
        shop.arrived(),
        [first, second].concat(),
        "in the order in which they came"
    );
}

#[tokio::test]
async fn four_relays_share_the_work_and_publish_everything_once() {
    let shop = Shop::open().await;
    let ids = shop.enqueue(5_000).await;
    let relays: Vec<_> = (0..4)
        .map(|_| {
            let mut settings = shop.settings();
            settings.batch = 50;
            outbox::relay(&shop.outbox, Arc::clone(&shop.bus), settings)
        })
        .collect();
    let drained = futures_util::future::join_all(relays.iter().map(Runner::drain)).await;
    let all: usize = drained.into_iter().map(Result::unwrap).sum();
    assert_eq!(all, 5_000);
    assert_same(shop.arrived(), ids);
    assert_eq!(shop.count(LIVE).await, 0);
}

#[tokio::test]
async fn a_stop_gives_back_at_once_what_it_can_not_finish() {
    let shop = Shop::open().await;
    shop.enqueue(10).await;
    let relay = shop.relay_to(Arc::new(Stuck));
    assert_eq!(relay.tick().await.unwrap(), worker::Tick::Idle);
    assert_eq!(
        shop.count("SELECT count(*) FROM shop.outbox_events WHERE status = 'IN_FLIGHT'")
            .await,
        10
    );
    relay.release().await;
    let free = "SELECT count(*) FROM shop.outbox_events WHERE status = 'PENDING' AND attempt_count = 0 AND next_retry_at <= now()";
    assert_eq!(shop.count(free).await, 10);
}

/// A publisher that never comes back.
struct Stuck;

impl Publisher for Stuck {
    async fn publish(&self, _batch: Vec<Message>) -> Vec<Result<Position, PublishError>> {
        std::future::pending().await
    }
}
