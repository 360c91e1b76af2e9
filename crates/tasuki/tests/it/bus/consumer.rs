//! The worker that consumes: acknowledged after the handler, retried with growing delays,
//! kept alive, given back, and not fooled by a stream that lost its memory.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tasuki::bus::conformance::Fixture;
use tasuki::bus::{
    Consumer, ConsumerSpec, Delivery, Handler, MemoryBus, Message, Publisher, StreamSpec, Streams,
    Subscriber, Subscription, Verdict,
};
use tasuki::migrate::library;
use tasuki::retry::Backoff;
use tasuki::worker::{Error, Stopped, Supervisor, Tick, Worker, drain};
use tasuki::{Clock, Schema};
use tasuki_testkit::{TestDb, eventually};
use tokio::sync::Notify;
use uuid::Uuid;

use super::{OnNats, id};

const SHORT: Duration = Duration::from_millis(50);

/// Does what a test says with every message, and remembers which ones were done.
struct Scripted<F> {
    script: F,
    done: Arc<Mutex<Vec<Uuid>>>,
}

impl<F> Handler for Scripted<F>
where
    F: Fn(&Delivery) -> Result<Verdict, Error> + Send + Sync + 'static,
{
    async fn handle(&self, batch: &[Delivery]) -> Result<Vec<Verdict>, Error> {
        let verdicts = batch.iter().map(&self.script);
        let verdicts: Vec<_> = verdicts.collect::<Result<_, _>>()?;
        let judged = batch.iter().zip(&verdicts);
        let done = judged.filter(|(_, verdict)| **verdict == Verdict::Done);
        let ids = done.filter_map(|(delivery, _)| delivery.id);
        self.done.lock().unwrap().extend(ids);
        Ok(verdicts)
    }
}

fn spec() -> ConsumerSpec {
    ConsumerSpec::new(StreamSpec::new("orders", ["orders.>"]), "billing")
}

fn message() -> Message {
    Message::new(id(), "orders.placed", "payload")
}

fn messages(count: usize) -> Vec<Message> {
    (0..count).map(|_| message()).collect()
}

fn ids(messages: &[Message]) -> Vec<Uuid> {
    messages.iter().map(|message| message.id).collect()
}

type Done = Arc<Mutex<Vec<Uuid>>>;

fn consumer<B, F>(bus: &B, spec: ConsumerSpec, script: F) -> (Consumer<B, Scripted<F>>, Done)
where
    B: Subscriber + Streams + Clone,
    F: Fn(&Delivery) -> Result<Verdict, Error> + Send + Sync + 'static,
{
    let done = Done::default();
    let handler = Scripted {
        script,
        done: Arc::clone(&done),
    };
    let consumer = Consumer::new("test.billing", bus.clone(), spec, handler).with_wait(SHORT);
    (consumer, done)
}

fn taken(done: &Done) -> Vec<Uuid> {
    std::mem::take(&mut *done.lock().unwrap())
}

async fn publish(bus: &impl Publisher, batch: Vec<Message>) {
    for result in bus.publish(batch).await {
        result.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_consumer_makes_what_is_missing_and_hands_over_every_message_once() {
    let bus = MemoryBus::new();
    let (consumer, done) = consumer(&bus, spec(), |_| Ok(Verdict::Done));
    assert_eq!(consumer.tick().await.unwrap(), Tick::Idle);
    let batch = messages(1200);
    let expected = ids(&batch);
    publish(&bus, batch).await;
    assert_eq!(drain(&consumer).await.unwrap(), 3);
    assert_eq!(taken(&done), expected);
    assert_eq!(drain(&consumer).await.unwrap(), 0);
}

#[tokio::test(start_paused = true)]
async fn every_message_gets_the_verdict_that_it_was_given() {
    let bus = MemoryBus::new();
    let (consumer, done) = consumer(&bus, spec(), |delivery| {
        Ok(match (&*delivery.subject, delivery.deliveries) {
            ("orders.bad", _) => Verdict::Reject {
                reason: "bad".to_owned(),
            },
            ("orders.later", 1) => Verdict::Retry {
                after: Some(Duration::from_secs(90)),
            },
            _ => Verdict::Done,
        })
    });
    let batch = ["placed", "bad", "later", "placed"]
        .map(|rest| Message::new(id(), format!("orders.{rest}"), "x"));
    let sent = ids(&batch);
    assert_eq!(consumer.tick().await.unwrap(), Tick::Idle);
    publish(&bus, batch.to_vec()).await;
    assert_eq!(drain(&consumer).await.unwrap(), 1);
    assert_eq!(taken(&done), [sent[0], sent[3]]);

    tokio::time::advance(Duration::from_secs(80)).await;
    assert_eq!(drain(&consumer).await.unwrap(), 0);
    tokio::time::advance(Duration::from_secs(10)).await;
    assert_eq!(drain(&consumer).await.unwrap(), 1);
    assert_eq!(taken(&done), [sent[2]]);
}

#[tokio::test(start_paused = true)]
async fn an_outage_of_the_handler_costs_few_deliveries_and_no_message() {
    let bus = MemoryBus::new();
    let away = Arc::new(AtomicBool::new(true));
    let most = Arc::new(AtomicUsize::new(0));
    let (is_away, counted) = (Arc::clone(&away), Arc::clone(&most));
    let (consumer, done) = consumer(&bus, spec(), move |delivery| {
        let deliveries = usize::try_from(delivery.deliveries).unwrap();
        counted.fetch_max(deliveries, Ordering::SeqCst);
        if is_away.load(Ordering::SeqCst) {
            return Err("the database is away".into());
        }
        Ok(Verdict::Done)
    });
    let mut expected = Vec::new();
    let supervisor = Supervisor::new(Clock::system());
    bus.ensure_stream(&spec().stream).await.unwrap();
    supervisor.start(consumer);
    for _ in 0..10 {
        let batch = messages(10);
        expected.extend(ids(&batch));
        publish(&bus, batch).await;
        // sleep: the outage lasts thirty seconds of paused time.
        tokio::time::sleep(Duration::from_secs(3)).await;
    }
    assert!(most.load(Ordering::SeqCst) <= 8, "{most:?}");

    away.store(false, Ordering::SeqCst);
    let mut found = Vec::new();
    while found.len() < expected.len() {
        // sleep: paused time, which passes at once; the retries take up to a minute and a half.
        tokio::time::sleep(Duration::from_secs(1)).await;
        found.extend(taken(&done));
    }
    found.sort_unstable();
    expected.sort_unstable();
    assert_eq!(found, expected);
    assert_eq!(
        supervisor.stop(Duration::from_secs(10)).await,
        Stopped::Finished
    );
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_is_not_ready_after_a_failed_batch_is_given_no_other() {
    struct Gated {
        away: Arc<AtomicBool>,
        batches: Arc<AtomicUsize>,
    }
    impl Handler for Gated {
        async fn handle(&self, batch: &[Delivery]) -> Result<Vec<Verdict>, Error> {
            self.batches.fetch_add(1, Ordering::SeqCst);
            self.ready().await?;
            Ok(vec![Verdict::Done; batch.len()])
        }

        async fn ready(&self) -> Result<(), Error> {
            match self.away.load(Ordering::SeqCst) {
                true => Err("the database is away".into()),
                false => Ok(()),
            }
        }
    }
    let bus = MemoryBus::new().with_stream(spec().stream);
    publish(&bus, messages(2)).await;
    let away = Arc::new(AtomicBool::new(true));
    let batches = Arc::new(AtomicUsize::new(0));
    let handler = Gated {
        away: Arc::clone(&away),
        batches: Arc::clone(&batches),
    };
    let consumer = Consumer::new("test.billing", bus, spec(), handler).with_wait(SHORT);
    for _ in 0..5 {
        consumer.tick().await.unwrap_err();
        // Longer than any delay: what was given back would come again.
        tokio::time::advance(Duration::from_secs(120)).await;
    }
    assert_eq!(batches.load(Ordering::SeqCst), 1, "asked, and not tried");

    away.store(false, Ordering::SeqCst);
    assert_eq!(drain(&consumer).await.unwrap(), 1);
    assert_eq!(batches.load(Ordering::SeqCst), 2);
}

#[tokio::test(start_paused = true)]
async fn a_message_comes_again_after_the_delay_that_its_consumer_was_given() {
    let bus = MemoryBus::new().with_stream(spec().stream);
    let (consumer, done) = consumer(&bus, spec(), |delivery| {
        Ok(match delivery.deliveries {
            1 => Verdict::Retry { after: None },
            _ => Verdict::Done,
        })
    });
    let hour = Duration::from_secs(3600);
    let consumer = consumer.with_backoff(Backoff::exponential(hour, hour).jitter(1.0, 1.0));
    let one = message();
    publish(&bus, vec![one.clone()]).await;
    assert_eq!(drain(&consumer).await.unwrap(), 1);
    tokio::time::advance(hour - Duration::from_secs(10)).await;
    assert_eq!(drain(&consumer).await.unwrap(), 0);
    tokio::time::advance(Duration::from_secs(10)).await;
    assert_eq!(drain(&consumer).await.unwrap(), 1);
    assert_eq!(taken(&done), [one.id]);
}

#[tokio::test(start_paused = true)]
async fn a_panic_or_a_wrong_number_of_verdicts_is_a_retry_of_the_batch() {
    struct Clumsy(AtomicUsize);
    impl Handler for Clumsy {
        async fn handle(&self, batch: &[Delivery]) -> Result<Vec<Verdict>, Error> {
            match self.0.fetch_add(1, Ordering::SeqCst) {
                0 => panic!("on purpose"),
                1 => Ok(vec![Verdict::Done]),
                _ => Ok(vec![Verdict::Done; batch.len()]),
            }
        }
    }
    let bus = MemoryBus::new().with_stream(spec().stream);
    publish(&bus, messages(2)).await;
    let clumsy = Clumsy(AtomicUsize::new(0));
    let consumer = Consumer::new("test.billing", bus, spec(), clumsy).with_wait(SHORT);
    for expected in ["the handler panicked", "1 verdicts for 2 messages"] {
        // Together again: within a spread of the delays.
        tokio::time::advance(Duration::from_secs(10)).await;
        let error = consumer.tick().await.unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
    tokio::time::advance(Duration::from_secs(10)).await;
    assert_eq!(drain(&consumer).await.unwrap(), 1);
    tokio::time::advance(Duration::from_secs(1000)).await;
    assert_eq!(drain(&consumer).await.unwrap(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_batch_that_takes_long_is_not_delivered_to_another() {
    struct Slow(Arc<AtomicUsize>);
    impl Handler for Slow {
        async fn handle(&self, batch: &[Delivery]) -> Result<Vec<Verdict>, Error> {
            self.0.fetch_add(batch.len(), Ordering::SeqCst);
            // sleep: the work itself, in paused time; four times the time for a delivery.
            tokio::time::sleep(Duration::from_secs(120)).await;
            Ok(vec![Verdict::Done; batch.len()])
        }
    }
    let bus = MemoryBus::new().with_stream(spec().stream);
    publish(&bus, messages(5)).await;
    let handled = Arc::new(AtomicUsize::new(0));
    let pods: Vec<_> = (0..2)
        .map(|_| {
            Consumer::new(
                "test.billing",
                bus.clone(),
                spec(),
                Slow(Arc::clone(&handled)),
            )
        })
        .collect();
    let both = pods.iter().map(|pod| async { drain(pod).await.unwrap() });
    let worked: usize = futures_util::future::join_all(both).await.iter().sum();
    assert_eq!((worked, handled.load(Ordering::SeqCst)), (1, 5));
}

#[tokio::test]
async fn what_a_stop_cuts_off_is_given_back_at_once() {
    struct Stuck(Arc<Notify>);
    impl Handler for Stuck {
        async fn handle(&self, _batch: &[Delivery]) -> Result<Vec<Verdict>, Error> {
            self.0.notify_one();
            std::future::pending().await
        }
    }
    let bus = MemoryBus::new().with_stream(spec().stream);
    let batch = messages(3);
    publish(&bus, batch.clone()).await;
    let entered = Arc::new(Notify::new());
    let supervisor = Supervisor::new(Clock::system());
    let stuck = Stuck(Arc::clone(&entered));
    supervisor.start(Consumer::new("test.billing", bus.clone(), spec(), stuck));
    entered.notified().await;
    assert_eq!(supervisor.stop(SHORT).await, Stopped::Cut);

    let next = bus.subscribe(&spec()).await.unwrap();
    let again = next.fetch(10, Duration::ZERO).await.unwrap();
    let found: Vec<_> = again.iter().filter_map(|delivery| delivery.id).collect();
    assert_eq!(found, ids(&batch));
    assert!(again.iter().all(|delivery| delivery.deliveries == 2));
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_was_made_again_is_read_from_its_beginning() {
    let bus = MemoryBus::new();
    let (consumer, done) = consumer(&bus, spec(), |_| Ok(Verdict::Done));
    drain(&consumer).await.unwrap();
    publish(&bus, messages(5)).await;
    drain(&consumer).await.unwrap();
    taken(&done);

    bus.recreate_stream("orders");
    let batch = messages(2);
    publish(&bus, batch.clone()).await;
    // The first tick meets a durable that is gone.
    consumer.tick().await.unwrap_err();
    drain(&consumer).await.unwrap();
    assert_eq!(taken(&done), ids(&batch));
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_lost_its_end_and_used_the_numbers_again_is_read_again() {
    let bus = MemoryBus::new();
    let (consumer, done) = consumer(&bus, spec(), |_| Ok(Verdict::Done));
    drain(&consumer).await.unwrap();
    publish(&bus, messages(5)).await;
    drain(&consumer).await.unwrap();
    taken(&done);

    // Numbers 3 to 5 are lost, and given to others before anybody looks; the durable stands
    // at 6.
    bus.truncate("orders", 2);
    let batch = messages(4);
    publish(&bus, batch.clone()).await;
    tokio::time::advance(Duration::from_secs(10)).await;
    drain(&consumer).await.unwrap();
    let found = taken(&done);
    assert_eq!(found[found.len() - 4..], ids(&batch));
    assert_eq!(found.len(), 6, "what was left of the old ones comes again");
}

#[tokio::test]
async fn a_process_that_has_just_started_knows_a_stream_that_lost_its_end_and_grew_again() {
    let schema = Schema::new("app").unwrap();
    let db = TestDb::new(&[library(&schema)]).await;
    let bus = MemoryBus::new();
    let started = || {
        let (consumer, done) = consumer(&bus, spec(), |_| Ok(Verdict::Done));
        (consumer.remembering(db.pool.clone(), &schema), done)
    };
    let (before, done) = started();
    drain(&before).await.unwrap();
    publish(&bus, messages(5)).await;
    drain(&before).await.unwrap();
    assert_eq!(taken(&done).len(), 5);
    drop(before);

    // Numbers 3 to 5 are lost and given to others, and more come, before anybody looks.
    bus.truncate("orders", 2);
    let batch = messages(4);
    publish(&bus, batch.clone()).await;
    let (after, done) = started();
    drain(&after).await.unwrap();
    let found = taken(&done);
    assert_eq!(found[found.len() - 4..], ids(&batch));
    drop(after);

    let (once_more, done) = started();
    drain(&once_more).await.unwrap();
    assert!(taken(&done).is_empty(), "it is as it was left");
}

#[tokio::test(start_paused = true)]
async fn a_broker_that_is_away_is_waited_for() {
    let bus = MemoryBus::new().with_stream(spec().stream);
    let (consumer, done) = consumer(&bus, spec(), |_| Ok(Verdict::Done));
    bus.disconnect();
    consumer.tick().await.unwrap_err();
    bus.reconnect();
    let batch = messages(2);
    publish(&bus, batch.clone()).await;
    drain(&consumer).await.unwrap();
    assert_eq!(taken(&done), ids(&batch));
}

#[tokio::test(start_paused = true)]
async fn duplicates_reach_the_handler_which_has_an_inbox() {
    let bus = MemoryBus::new().with_stream(spec().stream);
    let (consumer, done) = consumer(&bus, spec(), |_| Ok(Verdict::Done));
    bus.deliver_twice();
    let one = message();
    publish(&bus, vec![one.clone()]).await;
    drain(&consumer).await.unwrap();
    assert_eq!(taken(&done), [one.id, one.id]);
}

#[tokio::test]
async fn on_jetstream_a_consumer_survives_its_stream() {
    let on = OnNats::new().await;
    let spec = ConsumerSpec::new(on.spec(), "billing");
    let bus = on.bus(vec![on.spec()]);
    let (consumer, done) = consumer(&bus, spec.clone(), |_| Ok(Verdict::Done));
    let supervisor = Supervisor::new(Clock::system());
    supervisor.start(consumer);
    let first = on.messages(600);
    publish(&bus, first.clone()).await;
    let mut found = Vec::new();
    eventually("the first messages are done", async || {
        found.extend(taken(&done));
        (found.len() == 600).then_some(())
    })
    .await;
    assert_eq!(found, ids(&first));

    on.delete_stream(&spec.stream.name).await.unwrap();
    let second = on.messages(5);
    eventually("the stream is there again", async || {
        let results = bus.publish(second.clone()).await;
        results.iter().all(Result::is_ok).then_some(())
    })
    .await;
    let mut found = Vec::new();
    eventually("the new messages are done", async || {
        found.extend(taken(&done));
        (found.len() >= 5).then_some(())
    })
    .await;
    assert_eq!(found, ids(&second));
    assert_eq!(
        supervisor.stop(Duration::from_secs(10)).await,
        Stopped::Finished
    );
}
