//! What gets attention: whose counts, how much, for how long, and where.

use nostr::Keys;
use serde_json::{Value, json};
use tasuki::seqlog::Consumers;

use crate::support::{Client, World, event, id, now};

const INDEX: &str = "index-v1";

/// A relay, and somebody who asks what is trending there.
struct Crowd {
    world: World,
    client: Client,
    key: String,
}

impl Crowd {
    async fn gather() -> Self {
        let world = World::start().await;
        Self {
            client: world.client().await,
            key: world.key().await,
            world,
        }
    }

    async fn store(&mut self, event: Value) -> Value {
        self.client.store(&event).await;
        event
    }

    async fn note(&mut self, by: &Keys, topic: &str, words: &str) -> Value {
        self.store(event(by, 1, now() - 60, &[&["t", topic]], words))
            .await
    }

    /// Somebody reacts, in no topic, as ordinary clients do.
    async fn like(&mut self, by: &Keys, target: &Value, age: i64) -> Value {
        self.give(by, 7, target, age).await
    }

    async fn give(&mut self, by: &Keys, kind: u16, target: &Value, age: i64) -> Value {
        let made = event(by, kind, now() - age, &[&["e", &id(target)]], "+");
        self.store(made).await
    }

    async fn delete(&mut self, by: &Keys, what: &Value) {
        self.store(event(by, 5, now(), &[&["e", &id(what)]], ""))
            .await;
    }

    async fn asked(&self, question: &str) -> Value {
        self.world.caught_up(INDEX).await;
        let url = format!("/v1/trending{question}");
        let answer = self.world.host.get_as(&self.key, &url).await;
        assert_eq!(answer.status.as_u16(), 200, "{}", answer.text);
        answer.json()
    }

    /// Ids, scores in tenths, and how many people.
    async fn trending(&self, question: &str) -> Vec<(String, i64, i64)> {
        let answer = self.asked(question).await;
        let ids = answer["events"].as_array().unwrap().iter().map(id);
        let got = answer["attention"].as_array().unwrap().iter();
        let found: Vec<_> = ids
            .zip(got)
            .map(|(id, got)| {
                assert_eq!(got["event_id"], json!(id));
                let score = got["score"].as_f64().unwrap() * 10.0;
                #[expect(clippy::cast_possible_truncation, reason = "tenths of a few")]
                let tenths = score.round() as i64;
                (id, tenths, got["people"].as_i64().unwrap())
            })
            .collect();
        assert_eq!(found.len(), answer["attention"].as_array().unwrap().len());
        found
    }

    async fn rows(&self) -> Vec<String> {
        sqlx::query_scalar(
            "SELECT to_jsonb(given)::text FROM cn_relay.attention AS given ORDER BY 1",
        )
        .fetch_all(&self.world.env.db.pool)
        .await
        .unwrap()
    }

    async fn run(&self, sql: &'static str) {
        let done = sqlx::query(sql).execute(&self.world.env.db.pool).await;
        done.unwrap();
    }
}

fn people<const N: usize>() -> [Keys; N] {
    std::array::from_fn(|_| Keys::generate())
}

#[tokio::test]
async fn what_others_answer_pass_on_and_react_to_is_trending_and_each_of_them_counts_once() {
    let mut crowd = Crowd::gather().await;
    let [ann, bob, carol, dave] = people();
    let a = crowd.note(&ann, "Run", "a").await;
    let b = crowd.note(&ann, "run", "b").await;
    let c = crowd.note(&ann, "swim", "c").await;
    crowd.note(&ann, "run", "nobody cares").await;
    // Twice the same, and once more with another weight: the strongest counts.
    for _ in 0..2 {
        crowd.like(&bob, &a, 0).await;
    }
    crowd.like(&carol, &a, 1).await;
    crowd.like(&carol, &b, 0).await;
    crowd.give(&carol, 6, &b, 0).await;
    crowd.give(&dave, 16, &b, 0).await;
    crowd.give(&bob, 1, &c, 0).await;
    // One's own counts for nothing, and neither does what is far away.
    crowd.like(&ann, &c, 0).await;
    let far = json!({"id": "ab".repeat(32)});
    crowd.like(&bob, &far, 0).await;
    let (a, b, c) = (id(&a), id(&b), id(&c));
    let run = [(b.clone(), 40, 2), (a.clone(), 20, 2)];
    assert_eq!(crowd.trending("?topic=RUN").await, run);
    assert_eq!(crowd.trending("?topic=run&limit=1").await, run[..1]);
    let all = crowd.trending("").await;
    let ids: Vec<_> = all.iter().map(|(id, ..)| id.clone()).collect();
    assert_eq!(all.len(), 3, "{all:?}");
    assert!(
        ids[0] == b && ids.contains(&a) && ids.contains(&c),
        "{all:?}"
    );
    assert_eq!(crowd.trending("?topic=nothing").await, []);
    assert_eq!(crowd.asked("").await["window"], json!("24h"));

    for (question, words) in [
        ("?window=2h", "window is 1h, 24h or 7d"),
        ("?limit=0", "limit is from 1 to 100"),
        ("?limit=101", "limit is from 1 to 100"),
        ("?topic=", "topic is empty"),
        ("?colour=red", "colour"),
    ] {
        let url = format!("/v1/trending{question}");
        let refused = crowd.world.host.get_as(&crowd.key, &url).await;
        assert_eq!(refused.status.as_u16(), 400, "{question}");
        assert!(refused.text.contains(words), "{}", refused.text);
    }
    let nobody = crowd.world.host.get("/v1/trending").await;
    assert_eq!(nobody.status.as_u16(), 401);
}

#[tokio::test]
async fn attention_fades_and_ends_with_its_window() {
    let mut crowd = Crowd::gather().await;
    let [ann, bob, carol] = people();
    let old = crowd.note(&ann, "run", "old").await;
    let new = crowd.note(&ann, "run", "new").await;
    let hour = 60 * 60;
    for by in [&bob, &carol] {
        crowd.like(by, &old, 12 * hour).await;
    }
    crowd.like(&bob, &new, 0).await;
    let (old, new) = (id(&old), id(&new));
    // Half after a quarter of the window: 12 hours are two quarters of a day.
    let day = [(new.clone(), 10, 1), (old.clone(), 5, 2)];
    assert_eq!(crowd.trending("?window=24h").await, day);
    assert_eq!(crowd.trending("?window=1h").await, [(new.clone(), 10, 1)]);
    let week = crowd.trending("?window=7d").await;
    assert_eq!(week, [(old, 16, 2), (new, 10, 1)]);
}

#[tokio::test]
async fn what_is_gone_trends_no_more_and_what_comes_late_does() {
    let mut crowd = Crowd::gather().await;
    let [ann, bob, carol] = people();
    let note = crowd.note(&ann, "run", "a").await;
    let likes = [
        crowd.like(&bob, &note, 0).await,
        crowd.like(&carol, &note, 0).await,
    ];
    // They are here before what they are about.
    let late = event(&ann, 1, now() - 9, &[&["t", "run"]], "late");
    crowd.like(&bob, &late, 0).await;
    crowd.world.caught_up(INDEX).await;
    crowd.store(late.clone()).await;
    let (note_id, late_id) = (id(&note), id(&late));
    let both = [(note_id.clone(), 20, 2), (late_id.clone(), 10, 1)];
    assert_eq!(crowd.trending("?topic=run").await, both);

    crowd.delete(&bob, &likes[0]).await;
    let ids: Vec<_> = crowd.trending("?topic=run").await;
    assert!(ids.contains(&(note_id, 10, 1)), "{ids:?}");
    crowd.delete(&ann, &note).await;
    assert_eq!(crowd.trending("?topic=run").await, [(late_id, 10, 1)]);
    // The index has not heard of it yet.
    crowd
        .run("UPDATE cn_relay.events SET hidden_at = now() WHERE kind = 1")
        .await;
    assert_eq!(crowd.trending("").await, []);
}

#[tokio::test]
async fn attention_is_the_same_after_a_replay_from_anywhere_and_a_rebuild() {
    let mut crowd = Crowd::gather().await;
    let [ann, bob, carol] = people();
    let notes = [
        crowd.note(&ann, "run", "a").await,
        crowd.note(&bob, "swim", "b").await,
        event(&ann, 1, now() - 9, &[&["t", "run"], &["t", "swim"]], "late"),
    ];
    let mut given = Vec::new();
    for note in &notes {
        for by in [&ann, &bob, &carol] {
            given.push(crowd.like(by, note, 0).await);
        }
    }
    crowd.world.caught_up(INDEX).await;
    crowd.store(notes[2].clone()).await;
    crowd.delete(&carol, &given[2]).await;
    crowd.delete(&bob, &notes[1]).await;
    crowd.world.caught_up(INDEX).await;
    let rows = crowd.rows().await;
    assert!(rows.len() > 10, "{rows:?}");

    let consumers = Consumers::new(&crowd.world.tables.schema);
    let pool = &crowd.world.env.db.pool;
    for to in [0, 5] {
        let mut tx = pool.begin().await.unwrap();
        let replayed = consumers.replay(&mut tx, INDEX, to, "ann", "a test");
        replayed.await.unwrap();
        tx.commit().await.unwrap();
        crowd.world.caught_up(INDEX).await;
        assert_eq!(crowd.rows().await, rows, "after a replay from {to}");
    }
    crowd
        .run("UPDATE cn_relay.attention SET counts = NOT counts, kind = 0")
        .await;
    let mut tx = pool.begin().await.unwrap();
    let rebuilt = consumers.rebuild(&mut tx, INDEX, "ann", "all are wrong");
    rebuilt.await.unwrap();
    tx.commit().await.unwrap();
    crowd.world.caught_up(INDEX).await;
    assert_eq!(crowd.rows().await, rows, "after a rebuild");
    // It goes on from there.
    crowd.like(&carol, &notes[0], 0).await;
    assert_eq!(crowd.trending("?topic=run").await.len(), 2);
    assert!(crowd.rows().await.len() > rows.len());
}
