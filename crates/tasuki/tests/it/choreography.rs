//! Services that react to each other's events, and the story that their parts make.

use std::sync::Arc;
use std::time::Duration;

use sqlx::{AssertSqlSafe, PgConnection, PgPool};
use tasuki::bus::{Consumer, ConsumerSpec, Delivery, MemoryBus, StreamSpec};
use tasuki::choreography::{Cause, Choreography, Entry, Error, Reacted, Reaction, Reactor, Story};
use tasuki::jobs::Failure;
use tasuki::outbox::{self, Event, Outbox, Reconciler, RelaySettings, Routes};
use tasuki::worker;
use tasuki::{Clock, Schema, uuid_v7};
use tasuki_testkit::{TestDb, eventually};
use tokio::task::JoinSet;
use uuid::Uuid;

use crate::dropped;

const STREAM: &str = "events";
const TRACE: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
/// Of whoever hears many things at once: no event's business.
const BATCH: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

/// A service: its own schema, outbox and part, on a bus that all share.
struct Service {
    name: &'static str,
    pool: PgPool,
    outbox: Outbox,
    part: Choreography,
    bus: Arc<MemoryBus>,
}

fn stream() -> StreamSpec {
    StreamSpec::new(STREAM, ["events.>"])
}

/// Services of these names in one database, each in its schema.
async fn services<const N: usize>(names: [&'static str; N]) -> (TestDb, [Service; N]) {
    let schemas = names.map(|name| Schema::new(name).unwrap());
    let plans: Vec<_> = schemas.iter().map(tasuki::migrate::library).collect();
    let db = TestDb::new(&plans).await;
    for name in names {
        let sql = format!("CREATE TABLE {name}.effects (event_id uuid NOT NULL)");
        sqlx::query(AssertSqlSafe(sql))
            .execute(&db.pool)
            .await
            .unwrap();
    }
    let bus = Arc::new(MemoryBus::new().with_stream(stream()));
    let services = names.map(|name| Service::open(name, &db, &bus));
    (db, services)
}

impl Service {
    fn open(name: &'static str, db: &TestDb, bus: &Arc<MemoryBus>) -> Self {
        let schema = Schema::new(name).unwrap();
        let outbox = Outbox::new(&schema).with_trace(|| Some(BATCH.to_owned()));
        Self {
            name,
            pool: db.pool.clone(),
            part: Choreography::new(&schema, name, &outbox),
            outbox,
            bus: Arc::clone(bus),
        }
    }

    async fn publish(&self) {
        let routes = Routes::to(&format!("events.{}", self.name));
        let settings = RelaySettings::new("test.outbox", self.pool.clone(), routes);
        let relay = outbox::relay(&self.outbox, Arc::clone(&self.bus), settings);
        relay.drain().await.unwrap();
    }

    /// Hears everything there is, as `consumer`, and answers as `answer` says.
    async fn hear(&self, consumer: &'static str, answer: Answer) {
        let reaction = Answers {
            service: self.name,
            consumer,
            answer,
        };
        let reactor = Reactor::new(self.part.clone(), self.pool.clone(), reaction);
        let spec = ConsumerSpec::new(stream(), consumer);
        let consumer = Consumer::new("test.consumer", MemoryBus::clone(&self.bus), spec, reactor)
            .with_wait(Duration::from_millis(20));
        worker::drain(&consumer).await.unwrap();
    }

    async fn entries(&self, correlation_id: &str) -> Vec<Entry> {
        let mut connection = self.pool.acquire().await.unwrap();
        let part = self.part.part(&mut connection, correlation_id).await;
        part.unwrap()
    }

    async fn count(&self, table: &str) -> i64 {
        let sql = format!("SELECT count(*) FROM {}.{table}", self.name);
        let count = sqlx::query_scalar(AssertSqlSafe(sql));
        count.fetch_one(&self.pool).await.unwrap()
    }

    /// Reacts to `cause` with an effect and one event.
    async fn react(&self, cause: &Cause, id: Uuid) -> Result<Reacted, Error> {
        let work = async |tx: &mut PgConnection| {
            effect(tx, self.name, id).await?;
            Ok(vec![event(id, "Answered")])
        };
        self.part.react(&self.pool, "test", cause, work).await
    }
}

async fn effect(tx: &mut PgConnection, service: &str, id: Uuid) -> sqlx::Result<()> {
    let sql = format!("INSERT INTO {service}.effects VALUES ($1)");
    sqlx::query(AssertSqlSafe(sql)).bind(id).execute(tx).await?;
    Ok(())
}

type Answer = fn(&str) -> Result<Option<&'static str>, Failure>;

/// Has an effect for each event, and tells what `answer` makes of its type.
struct Answers {
    service: &'static str,
    consumer: &'static str,
    answer: Answer,
}

impl Reaction for Answers {
    fn consumer(&self) -> &str {
        self.consumer
    }

    fn wants(&self, delivery: &Delivery) -> bool {
        delivery.header("event_type") != Some("Boring")
    }

    async fn react(
        &self,
        tx: &mut PgConnection,
        delivery: &Delivery,
    ) -> Result<Vec<Event>, Failure> {
        let heard = delivery.header("event_type").unwrap_or_default();
        effect(tx, self.service, delivery.id.unwrap()).await?;
        let told = (self.answer)(heard)?;
        Ok(told.map(|told| event(id(), told)).into_iter().collect())
    }
}

fn id() -> Uuid {
    uuid_v7(&Clock::system())
}

fn event(id: Uuid, event_type: &str) -> Event {
    Event::new(id, event_type, "order:17", "{}")
}

/// The events of a story, by their depth.
fn told(story: &Story) -> Vec<(&str, usize, &str)> {
    let turns = story.turns().iter();
    turns
        .map(|turn| {
            let by = turn.told.as_ref().map_or("?", |told| told.service.as_str());
            (turn.event_type.as_str(), turn.depth, by)
        })
        .collect()
}

#[tokio::test]
async fn a_chain_through_three_services_is_one_story_though_everything_comes_twice() {
    let (_db, [shop, payment, shipping]) = services(["shop", "payment", "shipping"]).await;
    shop.bus.deliver_twice();
    let mut tx = tasuki::begin(&shop.pool).await.unwrap();
    let placed = event(id(), "OrderPlaced").traceparent(Some(TRACE.to_owned()));
    shop.part
        .begin(&mut tx, "order:17", vec![placed])
        .await
        .unwrap();
    tx.commit().await.unwrap();
    shop.publish().await;

    let pays: Answer = |heard| Ok((heard == "OrderPlaced").then_some("OrderPaid"));
    let ships: Answer = |heard| Ok((heard == "OrderPaid").then_some("OrderShipped"));
    let ends: Answer = |_| Ok(None);
    payment.hear("payment", pays).await;
    payment.publish().await;
    shipping.hear("shipping", ships).await;
    shipping.publish().await;
    shop.hear("shop", ends).await;

    let mut entries = Vec::new();
    for service in [&shop, &payment, &shipping] {
        entries.extend(service.entries("order:17").await);
    }
    let story = Story::of(entries);
    assert_eq!(
        told(&story),
        [
            ("OrderPlaced", 0, "shop"),
            ("OrderPaid", 1, "payment"),
            ("OrderShipped", 2, "shipping"),
        ]
    );
    // Each has heard everything, and once.
    let heard: Vec<usize> = story.turns().iter().map(|it| it.reactions.len()).collect();
    assert_eq!(heard, [3, 2, 1]);
    for (service, effects) in [(&shop, 3), (&payment, 1), (&shipping, 2)] {
        assert_eq!(service.count("effects").await, effects, "{}", service.name);
    }
    // The trace of the first goes through all, and so does the chain, on the wire.
    for (_, message) in shop.bus.messages(STREAM) {
        let has = |name, value: &str| message.headers.contains(&(name, value.to_owned()));
        assert!(has("correlation_id", "order:17"), "{message:?}");
        assert!(has("traceparent", TRACE), "{message:?}");
    }
}

#[tokio::test]
async fn an_event_without_a_chain_begins_one_with_its_own_id() {
    let (_db, [shop]) = services(["shop"]).await;
    let (first, second) = (id(), id());
    for bad in ["", "a\nb", &"x".repeat(256)] {
        assert_eq!(
            Cause::new(first, "Said").correlation_id(bad),
            Cause::new(first, "Said")
        );
    }
    let reacted = shop.react(&Cause::new(first, "Said"), second).await;
    assert_eq!(reacted.unwrap(), Reacted::Now(vec![second]));

    let story = Story::of(shop.entries(&first.to_string()).await);
    assert_eq!(told(&story), [("Said", 0, "?"), ("Answered", 1, "shop")]);
    assert_eq!(story.turns()[1].causation_id, Some(first));
    assert!(shop.entries("a\0b").await.is_empty());
}

#[tokio::test]
async fn a_reaction_that_fails_leaves_nothing_and_its_event_is_new_again() {
    let (_db, [shop]) = services(["shop"]).await;
    let (cause, bad) = (Cause::new(id(), "Said"), "Answered\0");
    let failed = shop
        .part
        .react(&shop.pool, "test", &cause, async |tx| {
            effect(tx, "shop", id()).await?;
            Ok::<_, Error>(vec![event(id(), "Answered"), event(id(), bad)])
        })
        .await;
    assert!(
        matches!(failed, Err(Error::Outbox(outbox::Error::Invalid(_)))),
        "{failed:?}"
    );
    for table in ["effects", "outbox_events", "stories", "processed_events"] {
        assert_eq!(shop.count(table).await, 0, "{table}");
    }

    let reacted = shop.react(&cause, id()).await.unwrap();
    assert!(matches!(reacted, Reacted::Now(_)));
    assert_eq!(shop.react(&cause, id()).await.unwrap(), Reacted::Before);
    assert_eq!(shop.count("effects").await, 1);
    assert_eq!(shop.count("outbox_events").await, 1);
    assert_eq!(shop.count("stories").await, 2);
}

#[tokio::test]
async fn work_that_swallows_a_failed_statement_is_not_called_a_reaction() {
    let (_db, [shop]) = services(["shop"]).await;
    let cause = Cause::new(id(), "Said");
    let failed = shop
        .part
        .react(&shop.pool, "test", &cause, async |tx| {
            let failed = sqlx::query("SELECT 1 / 0").execute(tx).await;
            assert!(failed.is_err());
            Ok::<_, Error>(Vec::new())
        })
        .await;
    assert!(failed.is_err(), "{failed:?}");
    assert_eq!(shop.count("processed_events").await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_that_arrives_many_times_at_once_is_answered_once() {
    let (_db, [shop]) = services(["shop"]).await;
    let (shop, cause) = (Arc::new(shop), Cause::new(id(), "Said"));
    let mut tasks = JoinSet::new();
    for _ in 0..16 {
        let (shop, cause) = (Arc::clone(&shop), cause.clone());
        tasks.spawn(async move { shop.react(&cause, id()).await.unwrap() });
    }
    let reacted = tasks.join_all().await;
    let now = reacted.iter().filter(|it| **it != Reacted::Before).count();
    assert_eq!(now, 1);
    assert_eq!(shop.count("outbox_events").await, 1);
    assert_eq!(shop.count("stories").await, 2);
}

#[tokio::test]
async fn a_reaction_that_is_dropped_at_any_await_leaves_nothing_and_can_be_repeated() {
    let (_db, [shop]) = services(["shop"]).await;
    let (mut polls, mut drops, mut answered) = (1, 0, 0);
    loop {
        let (cause, answer) = (Cause::new(id(), "Said"), id());
        let first = dropped::after(polls, shop.react(&cause, answer)).await;
        dropped::no_transaction_is_left(&shop.pool).await;
        shop.react(&cause, answer).await.unwrap();
        answered += 1;
        for (table, rows) in [("effects", 1), ("outbox_events", 1), ("stories", 2)] {
            assert_eq!(
                shop.count(table).await,
                rows * answered,
                "{table}, {polls} polls"
            );
        }
        drops += usize::from(first.is_none());
        if first.is_some() && polls >= dropped::ROUNDS {
            break;
        }
        polls += 1;
    }
    assert!(drops > 0, "it was never dropped");
}

#[tokio::test]
async fn a_message_that_fails_comes_again_and_one_that_never_can_does_not() {
    let (_db, [shop, payment]) = services(["shop", "payment"]).await;
    tell_all(&shop, &["Good", "Bad", "Hopeless"]).await;
    let fails: Answer = |heard| match heard {
        "Good" => Ok(Some("Answered")),
        "Bad" => Err(Failure::retry_after(Duration::ZERO, "not now")),
        _ => Err(Failure::reject("never")),
    };
    let reaction = Answers {
        service: "payment",
        consumer: "payment",
        answer: fails,
    };
    let reactor = Reactor::new(payment.part.clone(), payment.pool.clone(), reaction);
    let spec = ConsumerSpec::new(stream(), "payment");
    let consumer = Consumer::new(
        "test.consumer",
        MemoryBus::clone(&payment.bus),
        spec,
        reactor,
    )
    .with_wait(Duration::from_millis(20));
    worker::Worker::tick(&consumer).await.unwrap();
    assert_eq!(payment.count("effects").await, 1);
    assert_eq!(payment.count("outbox_events").await, 1);
    drop(consumer);

    // What failed is still there for one who can; the rest is settled.
    payment.hear("payment", |_| Ok(None)).await;
    assert_eq!(payment.count("effects").await, 2);
    let heard = payment.entries("order:17").await;
    let heard = heard.iter().filter(|entry| entry.consumer.is_some());
    let heard: Vec<&str> = heard.map(|entry| entry.event_type.as_str()).collect();
    assert_eq!(heard, ["Good", "Bad"]);
}

/// Tells these, and returns their ids.
async fn tell_all(shop: &Service, types: &[&str]) -> Vec<Uuid> {
    let mut tx = tasuki::begin(&shop.pool).await.unwrap();
    let events = types.iter().map(|it| event(id(), it)).collect();
    let told = shop.part.begin(&mut tx, "order:17", events).await.unwrap();
    tx.commit().await.unwrap();
    shop.publish().await;
    told
}

/// Transactions in which payment had an effect.
async fn commits(payment: &Service) -> i64 {
    let count = sqlx::query_scalar("SELECT count(DISTINCT xmin::text) FROM payment.effects");
    count.fetch_one(&payment.pool).await.unwrap()
}

#[tokio::test]
async fn messages_that_come_together_share_a_commit() {
    let (_db, [shop, payment]) = services(["shop", "payment"]).await;
    tell_all(&shop, &["Good"; 70]).await;
    payment.hear("payment", |_| Ok(Some("Answered"))).await;
    assert_eq!(payment.count("effects").await, 70);
    assert_eq!(payment.count("outbox_events").await, 70);
    assert_eq!(payment.entries("order:17").await.len(), 140);
    assert_eq!(commits(&payment).await, 1);
}

#[tokio::test]
async fn one_message_that_fails_costs_those_that_came_with_it_nothing() {
    let (_db, [shop, payment]) = services(["shop", "payment"]).await;
    tell_all(&shop, &["Good", "Hopeless", "Good", "Good"]).await;
    let fails: Answer = |heard| match heard {
        "Good" => Ok(Some("Answered")),
        _ => Err(Failure::reject("never")),
    };
    payment.hear("payment", fails).await;
    assert_eq!(payment.count("effects").await, 3);
    assert_eq!(payment.count("outbox_events").await, 3);
    assert_eq!(payment.count("processed_events").await, 3);
    assert_eq!(commits(&payment).await, 3);
}

#[tokio::test]
async fn a_lock_that_somebody_holds_keeps_only_the_message_that_needs_it() {
    let (_db, [shop, payment]) = services(["shop", "payment"]).await;
    let told = tell_all(&shop, &["Good"; 3]).await;
    let held = "INSERT INTO payment.processed_events (event_id, consumer) VALUES ($1, 'payment')";
    let mut holder = payment.pool.begin().await.unwrap();
    let hold = sqlx::query(held).bind(told[1]);
    hold.execute(&mut *holder).await.unwrap();

    let hears = payment.hear("payment", |_| Ok(Some("Answered")));
    let lets_go = async {
        eventually("the first is done", async || {
            (payment.count("effects").await == 1).then_some(())
        })
        .await;
        holder.rollback().await.unwrap();
    };
    tokio::join!(hears, lets_go);
    assert_eq!(payment.count("effects").await, 3);
    assert_eq!(payment.count("outbox_events").await, 3);
}

#[tokio::test]
async fn what_a_service_does_not_want_to_hear_leaves_no_trace() {
    let (_db, [shop, payment]) = services(["shop", "payment"]).await;
    tell_all(&shop, &["Boring", "Good", "Boring", "Good", "Boring"]).await;
    payment.hear("payment", |_| Ok(None)).await;
    for table in ["effects", "processed_events", "stories"] {
        assert_eq!(payment.count(table).await, 2, "{table}");
    }
    // They are settled: nobody hears of them again.
    payment.hear("payment", |_| Ok(None)).await;
    assert_eq!(payment.count("effects").await, 2);
}

#[tokio::test]
async fn a_chain_that_the_broker_lost_is_sent_again_with_its_headers() {
    let (_db, [shop]) = services(["shop"]).await;
    shop.react(&Cause::new(id(), "Said").correlation_id("c"), id())
        .await
        .unwrap();
    shop.publish().await;
    let headers = || {
        let (_, message) = shop.bus.messages(STREAM).pop().unwrap();
        let mut headers = message.headers;
        headers.sort();
        headers
    };
    let before = headers();
    assert!(before.contains(&("correlation_id", "c".to_owned())));
    shop.bus.recreate_stream(STREAM);

    let (bus, streams) = (Arc::clone(&shop.bus), vec![stream()]);
    let name = "test.reconcile";
    let reconciler = Reconciler::new(name, &shop.outbox, bus, shop.pool.clone(), streams);
    worker::drain(&reconciler).await.unwrap();
    shop.publish().await;
    assert_eq!(headers(), before);
}

#[tokio::test]
async fn a_reaction_in_the_callers_transaction_is_undone_with_it() {
    let (_db, [shop]) = services(["shop"]).await;
    let cause = Cause::new(id(), "Said");
    let mut tx = tasuki::begin(&shop.pool).await.unwrap();
    let answer = async |_: &mut PgConnection| Ok::<_, Error>(vec![event(id(), "Answered")]);
    let reacted = shop.part.react_in(&mut tx, "test", &cause, answer).await;
    assert!(matches!(reacted, Ok(Reacted::Now(_))));
    let reacted = shop.part.react_in(&mut tx, "test", &cause, answer).await;
    assert_eq!(reacted.unwrap(), Reacted::Before);
    tx.rollback().await.unwrap();
    assert_eq!(shop.count("stories").await, 0);
    assert_eq!(shop.count("processed_events").await, 0);
}

#[tokio::test]
async fn a_service_that_can_not_be_named_is_refused_before_the_database() {
    let (_db, [shop]) = services(["shop"]).await;
    for name in ["", "a\0b", &"x".repeat(129)] {
        let part = Choreography::new(&Schema::new("shop").unwrap(), name, &shop.outbox);
        let mut connection = shop.pool.acquire().await.unwrap();
        let refused = part.begin(&mut connection, "c", Vec::new()).await;
        assert!(matches!(refused, Err(Error::InvalidService)), "{name:?}");
    }
}

#[tokio::test]
async fn every_statement_of_the_choreography_can_be_prepared() {
    let (_db, [shop]) = services(["shop"]).await;
    let mut connection = shop.pool.acquire().await.unwrap();
    for (n, statement) in shop.part.statements().enumerate() {
        let prepare = AssertSqlSafe(format!("PREPARE s{n} AS {statement}"));
        let prepared = sqlx::raw_sql(prepare).execute(&mut *connection).await;
        assert!(prepared.is_ok(), "{prepared:?}\n{statement}");
    }
}
