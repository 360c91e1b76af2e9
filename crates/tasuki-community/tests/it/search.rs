//! Search: in Japanese and English, by HTTP and by NIP-50, the same after a replay and a rebuild.

use nostr::Keys;
use serde_json::{Value, json};
use tasuki::seqlog::Consumers;

use crate::support::{Client, World, event, id, now};

async fn documents(world: &World) -> Vec<(String, String)> {
    sqlx::query_as(
        "SELECT encode(event_id, 'hex'), terms::text FROM cn_relay.search_documents ORDER BY 1",
    )
    .fetch_all(&world.env.db.pool)
    .await
    .unwrap()
}

async fn search(client: &mut Client, text: &str) -> Vec<String> {
    client.find(&[json!({"search": text})]).await
}

#[tokio::test]
async fn japanese_and_english_are_found_wherever_they_stand() {
    let world = World::start().await;
    let (mut client, keys, at) = (world.client().await, Keys::generate(), now());
    let said = [
        "The runners were running a long relay race in Tokyo",
        "東京で駅伝のタスキをつないだ",
        "京都の東は遠い",
        "ｔａｓｕｋｉ is ﾀｽｷ",
        "Übungen für Läufer",
    ];
    let events: Vec<Value> = said
        .iter()
        .zip(0..)
        .map(|(text, n)| event(&keys, 1, at - n, &[&["t", "Run"]], text))
        .collect();
    for event in &events {
        client.store(event).await;
    }
    let quiet = event(&keys, 7, at, &[], "東京");
    client.store(&quiet).await;
    world.caught_up("index-v1").await;
    for (text, found) in [
        ("run", &[0][..]),
        ("Runner race", &[0]),
        ("the", &[]),
        ("runs swimming", &[]),
        ("東京", &[1]),
        ("駅伝", &[1]),
        ("タスキ", &[1, 3]),
        ("京", &[1, 2]),
        ("東京都", &[]),
        ("駅伝 つない", &[1]),
        ("TASUKI", &[3]),
        ("übungen", &[4]),
        ("タスキ language:ja", &[1, 3]),
    ] {
        let wanted: Vec<_> = found.iter().map(|n: &usize| id(&events[*n])).collect();
        assert_eq!(search(&mut client, text).await, wanted, "{text}");
    }
    let among = json!({"search": "タスキ", "since": at - 2, "limit": 1});
    assert_eq!(client.find(&[among]).await, [id(&events[1])]);
    client
        .say(&json!(["COUNT", "c", {"search": "タスキ"}]))
        .await;
    assert_eq!(client.hear().await, json!(["COUNT", "c", {"count": 2}]));

    by_http(&world, &[&events[1], &events[3]]).await;
}

async fn by_http(world: &World, found: &[&Value]) {
    let key = world.key().await;
    let url = "/v1/search?q=%E3%82%BF%E3%82%B9%E3%82%AD&topic=run&limit=10";
    let answer = world.host.get_as(&key, url).await;
    assert_eq!(answer.json()["events"], json!(found), "{answer:?}");
    let elsewhere = world.host.get_as(&key, "/v1/search?q=run&topic=swim").await;
    assert_eq!(elsewhere.json()["events"], json!([]));
    for (url, words) in [
        ("/v1/search", "q"),
        ("/v1/search?q=!", "q has no words"),
        ("/v1/search?q=a&limit=0", "limit is from 1 to 500"),
        ("/v1/search?q=a&colour=red", "colour"),
    ] {
        let refused = world.host.get_as(&key, url).await;
        assert_eq!(
            (refused.status.as_u16(), refused.code().as_str()),
            (400, "BAD_REQUEST"),
            "{url}"
        );
        assert!(refused.text.contains(words), "{}", refused.text);
    }
    assert_eq!(world.host.get("/v1/search?q=a").await.status.as_u16(), 401);
}

#[tokio::test]
async fn what_is_gone_is_not_found_and_a_replay_and_a_rebuild_end_in_the_same_index() {
    let world = World::start().await;
    let (mut client, keys) = (world.client().await, Keys::generate());
    let notes: Vec<_> = (0..30)
        .map(|n| event(&keys, 1, now() - n, &[], &format!("number {n} 駅伝")))
        .collect();
    for note in &notes {
        client.store(note).await;
    }
    let old = event(
        &keys,
        0,
        now() - 9,
        &[],
        r#"{"name":"Ann","about":"駅伝 fan"}"#,
    );
    let new = event(&keys, 0, now(), &[], r#"{"name":"Ann","about":"retired"}"#);
    client.store(&old).await;
    client.store(&new).await;
    client
        .store(&event(&keys, 5, now(), &[&["e", &id(&notes[7])]], ""))
        .await;
    world.caught_up("index-v1").await;
    let found = search(&mut client, "駅伝").await;
    assert_eq!(found.len(), 29);
    assert!(!found.contains(&id(&notes[7])) && !found.contains(&id(&old)));
    assert_eq!(search(&mut client, "retired").await, [id(&new)]);

    let before = documents(&world).await;
    assert_eq!(before.len(), 30);
    let consumers = Consumers::new(&world.tables.schema);
    sqlx::query("DELETE FROM cn_relay.search_documents WHERE event_id < '\\x80'")
        .execute(&world.env.db.pool)
        .await
        .unwrap();
    let mut tx = world.env.db.pool.begin().await.unwrap();
    consumers
        .replay(&mut tx, "index-v1", 0, "ann", "some are missing")
        .await
        .unwrap();
    tx.commit().await.unwrap();
    world.caught_up("index-v1").await;
    assert_eq!(documents(&world).await, before, "after a replay");

    sqlx::query("UPDATE cn_relay.search_documents SET terms = ''")
        .execute(&world.env.db.pool)
        .await
        .unwrap();
    let mut tx = world.env.db.pool.begin().await.unwrap();
    consumers
        .rebuild(&mut tx, "index-v1", "ann", "all are wrong")
        .await
        .unwrap();
    tx.commit().await.unwrap();
    world.caught_up("index-v1").await;
    assert_eq!(documents(&world).await, before, "after a rebuild");
    // It goes on from there, and searches that were planned before find it.
    let next = event(&keys, 1, now(), &[], "one more 駅伝");
    client.store(&next).await;
    world.caught_up("index-v1").await;
    assert_eq!(search(&mut client, "駅伝").await.len(), 30);
}

/// The n-th of words of 64 letters, of an alphabet of 26 letters that begins with `first`.
fn long_word(first: char, mut n: u32) -> String {
    let mut letters = vec![first; 64];
    for letter in letters.iter_mut().rev() {
        *letter = char::from_u32(u32::from(first) + n % 26).unwrap();
        n /= 26;
    }
    letters.into_iter().collect()
}

#[tokio::test]
async fn a_text_that_is_larger_than_the_index_can_hold_is_found_by_its_beginning_and_rebuilt() {
    let world = World::with(|config| {
        let limits = [("message", "16MiB"), ("event", "8MiB")];
        limits.into_iter().fold(config, |config, (of, size)| {
            let name = format!("community.limits.{of}");
            config.with_value(&name, size).unwrap()
        })
    })
    .await;
    let (mut client, keys) = (world.client().await, Keys::generate());
    // Words of English letters, and of letters that are four bytes long: each kind alone is too much.
    for first in ['a', '\u{10428}'] {
        let words = (0..16_000).map(|n| long_word(first, n));
        let text = words.collect::<Vec<_>>().join(" ");
        let text = format!("駅伝 {} {text}", u32::from(first));
        client
            .store(&event(&keys, 1, now(), &[&["t", "Run"]], &text))
            .await;
    }
    world.caught_up("index-v1").await;
    let set_aside = "SELECT count(*) FROM cn_relay.seqlog_set_aside";
    assert_eq!(world.count(set_aside).await, 0);
    assert_eq!(search(&mut client, "駅伝").await.len(), 2);
    assert_eq!(search(&mut client, "97").await.len(), 1);
    assert_eq!(search(&mut client, &long_word('a', 77)).await.len(), 1);

    let before = documents(&world).await;
    let mut tx = world.env.db.pool.begin().await.unwrap();
    let rebuilt = Consumers::new(&world.tables.schema);
    let rebuilt = rebuilt.rebuild(&mut tx, "index-v1", "ann", "larger events");
    rebuilt.await.unwrap();
    tx.commit().await.unwrap();
    world.caught_up("index-v1").await;
    assert!(documents(&world).await == before, "after a rebuild");
}

#[tokio::test]
async fn a_word_that_is_in_thousands_of_events_finds_the_newest_that_can_be_seen() {
    let world = World::start().await;
    for filling in [
        "INSERT INTO cn_relay.events (event_id, ingested_at, pubkey, created_at, kind, topics, body)
         SELECT decode(lpad(to_hex(n), 64, '0'), 'hex'), now(), '', n, 1, '{run}', format('{\"n\":%s}', n)
         FROM generate_series(1, 3500) AS n",
        "INSERT INTO cn_relay.search_documents (event_id, created_at, terms)
         SELECT event_id, created_at, '''駅伝'':3 ''伝'':4'::tsvector FROM cn_relay.events",
    ] {
        let filled = sqlx::query(filling).execute(&world.env.db.pool).await;
        assert_eq!(filled.unwrap().rows_affected(), 3_500);
    }
    let key = world.key().await;
    let newest = async || {
        let url = "/v1/search?q=%E9%A7%85%E4%BC%9D&limit=3";
        world.host.get_as(&key, url).await.json()["events"].clone()
    };
    assert_eq!(
        newest().await,
        json!([{"n": 3500}, {"n": 3499}, {"n": 3498}])
    );

    // The index has not heard of it yet.
    sqlx::query("UPDATE cn_relay.events SET hidden_at = now() WHERE created_at = 3499")
        .execute(&world.env.db.pool)
        .await
        .unwrap();
    assert_eq!(
        newest().await,
        json!([{"n": 3500}, {"n": 3498}, {"n": 3497}])
    );
}
