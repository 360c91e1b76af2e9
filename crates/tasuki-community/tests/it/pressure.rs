//! What is held back while a consumer is behind, step by step, and what topics may bring.

use nostr::Keys;
use serde_json::{Value, json};
use sqlx::{Postgres, Transaction};
use tasuki_community::rules::{Change, IngestPolicy, PolicyChange, Priority, topics};
use tasuki_service::config::Config;
use tasuki_testkit::eventually;

use crate::moderation::{Desk, MODERATION};
use crate::support::{Client, World, event, note, now};

fn with(config: Config, settings: &[(&str, i64)]) -> Config {
    settings.iter().fold(config, |config, (name, value)| {
        let name = format!("community.pressure.{name}");
        config.with_value(&name, *value).unwrap()
    })
}

/// A step for every two events.
fn soon(config: Config) -> Config {
    let config = with(
        config,
        &[
            ("batches-at", 2),
            ("backfill-at", 4),
            ("low-at", 6),
            ("slow-at", 8),
            ("events-per-minute", 2),
        ],
    );
    config
        .with_value("community.pressure.backfill-age", "1m")
        .unwrap()
}

/// Holds the place of a consumer until it is dropped: it handles nothing meanwhile.
async fn held(world: &World, consumer: &str) -> Transaction<'static, Postgres> {
    eventually("the consumer follows", async || {
        let mut tx = world.env.db.pool.begin().await.unwrap();
        let place = "SELECT last_seq FROM cn_relay.consumer_offsets WHERE consumer = $1 FOR UPDATE";
        let held: Option<i64> = sqlx::query_scalar(place)
            .bind(consumer)
            .fetch_optional(&mut *tx)
            .await
            .unwrap();
        held.map(|_| tx)
    })
    .await
}

struct Watch<'a> {
    world: &'a World,
    key: String,
}

impl Watch<'_> {
    async fn look(&self) -> Value {
        let answer = self.world.host.get_as(&self.key, "/v1/relay/pressure");
        answer.await.json()
    }

    /// Waits until this step is taken.
    async fn step(&self, step: u8) -> Value {
        eventually("the step is taken", async || {
            let seen = self.look().await;
            (seen["step"] == json!(step)).then_some(seen)
        })
        .await
    }
}

async fn change(world: &World, topic: &str, policy: PolicyChange) {
    let mut tx = world.env.db.pool.begin().await.unwrap();
    let change = Change::Policy(topic.to_owned(), policy);
    assert!(change.make(&mut tx, "ann", "a lot of it").await.unwrap());
    tx.commit().await.unwrap();
}

const LOW: PolicyChange = PolicyChange {
    priority: Some(Priority::Low),
    takes_backfill: None,
    events_per_minute: None,
    capacity: None,
};

/// Events of one author, each once.
struct Sender {
    client: Client,
    keys: Keys,
    sent: i64,
}

impl Sender {
    async fn of(world: &World) -> Self {
        Self {
            client: world.client().await,
            keys: Keys::generate(),
            sent: 0,
        }
    }

    async fn send(&mut self, topic: &str, age: i64) -> (bool, String) {
        self.sent += 1;
        let words = self.sent.to_string();
        let made = event(&self.keys, 1, now() - age, &[&["t", topic]], &words);
        self.client.publish(&made).await
    }

    async fn taken(&mut self, topic: &str, age: i64) {
        let (taken, words) = self.send(topic, age).await;
        assert!(taken, "{words}");
    }

    async fn refused(&mut self, topic: &str, age: i64, words: &str) {
        let (taken, said) = self.send(topic, age).await;
        assert!(
            !taken && said.starts_with("rate-limited: ") && said.contains(words),
            "{said}"
        );
    }
}

#[tokio::test]
async fn more_is_held_back_with_every_step_and_all_of_it_is_taken_again_afterwards() {
    let world = World::with(soon).await;
    let watch = Watch {
        world: &world,
        key: world.key().await,
    };
    let mut sender = Sender::of(&world).await;
    change(&world, "low", LOW).await;
    sender.taken("news", 0).await;
    world.caught_up("index-v1").await;
    assert_eq!(watch.step(0).await["held_back"], "nothing");

    let held = held(&world, "index-v1").await;
    for _ in 0..2 {
        sender.taken("News", 0).await;
    }
    watch.step(1).await;
    // Nothing is refused yet.
    sender.taken("low", 100).await;
    sender.taken("first", 100).await;
    let seen = watch.step(2).await;
    assert_eq!(seen["backlog"], json!(4), "{seen}");
    let behind = json!({"name": "index-v1", "backlog": 4});
    assert!(
        seen["consumers"].as_array().unwrap().contains(&behind),
        "{seen}"
    );
    sender
        .refused("news", 100, "events older than 1m are not taken")
        .await;
    sender.taken("news", 0).await;
    sender.taken("low", 0).await;
    watch.step(3).await;
    sender
        .refused("low", 0, "topic low, which has low priority")
        .await;
    sender.taken("news", 0).await;
    sender.taken("second", 0).await;
    watch.step(4).await;
    sender
        .refused("third", 0, "new topics, as third, are not taken")
        .await;
    // Of what somebody has begun, so many a minute, however it is written.
    sender.taken("Second", 0).await;
    let (taken, words) = sender.client.publish(&note(&sender.keys, now())).await;
    assert!(taken, "no topic is no new one: {words}");
    sender
        .refused("news", 0, "more than 2 events per minute are not taken")
        .await;
    // What nobody stores holds up nobody.
    let passing = event(&sender.keys, 20_001, now() - 100, &[&["t", "fourth"]], "");
    sender.client.store(&passing).await;
    assert!(
        !sender
            .client
            .find(&[json!({"#t": ["news"]})])
            .await
            .is_empty()
    );

    held.rollback().await.unwrap();
    world.caught_up("index-v1").await;
    watch.step(0).await;
    for (topic, age) in [("low", 100), ("third", 0), ("news", 0), ("news", 100)] {
        sender.taken(topic, age).await;
    }
}

#[tokio::test]
async fn moderation_handles_more_together_while_it_is_behind_and_ends_in_the_same_rows() {
    let steps = [("batches-at", 150), ("batch", 300)];
    let mut desk = Desk::with(|config| with(config, &steps)).await;
    desk.rule("buy", "spam").await;
    for making in [
        "CREATE TABLE cn_relay.moves (rows bigint)",
        "CREATE FUNCTION cn_relay.moved() RETURNS trigger LANGUAGE plpgsql AS $$
         BEGIN INSERT INTO cn_relay.moves VALUES (new.last_seq - old.last_seq); RETURN NULL; END $$",
        "CREATE TRIGGER moved AFTER UPDATE ON cn_relay.consumer_offsets FOR EACH ROW
         WHEN (new.consumer = 'moderation-v1') EXECUTE FUNCTION cn_relay.moved()",
    ] {
        desk.run(making).await;
    }
    let held = held(&desk.world, MODERATION).await;
    // Of two topics each: two rows.
    for n in 0..150 {
        desk.note(&format!("buy {n}")).await;
    }
    let watch = Watch {
        world: &desk.world,
        key: desk.world.key().await,
    };
    watch.step(1).await;
    held.rollback().await.unwrap();
    desk.caught_up().await;
    let most = "SELECT max(rows) FROM cn_relay.moves";
    let most = desk.world.count(most).await;
    assert!(most > 100, "{most} rows were handled together at most");
    let rows = desk.rows().await;
    assert_eq!(rows.len(), 150, "each is labelled once");
    desk.rebuild().await;
    assert_eq!(desk.rows().await, rows);
}

#[tokio::test]
async fn a_topic_brings_what_its_policy_says_and_no_more() {
    let world = World::with(|config| {
        config
            .with_value("community.pressure.backfill-age", "1m")
            .unwrap()
    })
    .await;
    let mut sender = Sender::of(&world).await;
    let policy = PolicyChange {
        takes_backfill: Some(false),
        events_per_minute: Some(3),
        ..PolicyChange::default()
    };
    change(&world, "news", policy).await;
    // Once the second is known, the first is, and nothing of it has been used up.
    change(&world, "weather", policy).await;
    let words = "restricted: the topic weather takes no events older than 1m";
    eventually("old events are refused", async || {
        let (taken, said) = sender.send("weather", 100).await;
        (!taken && said == words).then_some(())
    })
    .await;
    let (taken, said) = sender.send("news", 100).await;
    assert_eq!((taken, said), (false, words.replace("weather", "news")));
    sender.taken("sport", 100).await;
    // Neither what is known nor what is wrong uses anything up.
    let known = event(&sender.keys, 1, now(), &[&["t", "News"]], "known");
    let mut wrong = event(&sender.keys, 1, now(), &[&["t", "news"]], "wrong");
    wrong["sig"] = json!("00".repeat(64));
    for _ in 0..3 {
        assert!(sender.client.publish(&known).await.0);
        assert!(!sender.client.publish(&wrong).await.0);
    }
    let words = "more than 3 events per minute of the topic news";
    sender.taken("news", 0).await;
    sender.taken("news", 0).await;
    sender.refused("news", 0, words).await;
    sender.taken("sport", 0).await;
    // One of several topics is enough.
    let both = event(
        &sender.keys,
        1,
        now(),
        &[&["t", "sport"], &["t", "news"]],
        "",
    );
    let (taken, said) = sender.client.publish(&both).await;
    assert!(!taken && said.contains(words), "{said}");
    stays_as_it_was(&world, sender).await;
}

/// What is not said of a policy is not changed.
async fn stays_as_it_was(world: &World, mut sender: Sender) {
    let free = PolicyChange {
        events_per_minute: Some(0),
        ..PolicyChange::default()
    };
    change(world, "news", free).await;
    eventually("there is no limit", async || {
        sender.send("news", 0).await.0.then_some(())
    })
    .await;
    let said = topics(&mut world.env.db.pool.acquire().await.unwrap()).await;
    let wanted = IngestPolicy {
        priority: Priority::Normal,
        takes_backfill: false,
        events_per_minute: 0,
        capacity: 0,
    };
    assert_eq!(said.unwrap()[0].policy, wanted);
    let audit = "SELECT count(*) FROM cn_relay.rules_audit
        WHERE action = 'POLICY' AND detail IN ('backfill=false rate=3', 'rate=0')";
    assert_eq!(world.count(audit).await, 3);
}

#[tokio::test]
async fn a_topic_has_so_many_events_waiting_and_no_more() {
    let world = World::start().await;
    let mut sender = Sender::of(&world).await;
    let policy = PolicyChange {
        capacity: Some(2),
        ..PolicyChange::default()
    };
    change(&world, "news", policy).await;
    let held = held(&world, "index-v1").await;
    eventually("two wait", async || {
        let (taken, words) = sender.send("news", 0).await;
        (!taken && words.ends_with("events of the topic news are waiting")).then_some(())
    })
    .await;
    sender.taken("sport", 0).await;
    held.rollback().await.unwrap();
    eventually("none waits", async || {
        sender.send("news", 0).await.0.then_some(())
    })
    .await;
}
