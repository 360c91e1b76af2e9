//! Topics: required, or given to whoever has none.

use nostr::Keys;
use serde_json::json;
use tasuki_community::rules::{Change, bans, topics};
use tasuki_testkit::eventually;

use crate::support::{World, event, note, now};

#[tokio::test]
async fn where_topics_are_required_events_and_filters_without_one_are_refused() {
    let world = World::with(|config| {
        config
            .with_value("community.topics.mode", "required")
            .unwrap()
    })
    .await;
    let mut client = world.client().await;
    let keys = Keys::generate();
    let missing = "invalid: missing topic".to_owned();
    assert_eq!(
        client.publish(&note(&keys, now())).await,
        (false, missing.clone())
    );
    for verb in ["REQ", "COUNT"] {
        assert_eq!(
            client.refused(&json!([verb, "a", {"kinds": [1]}])).await,
            missing
        );
        assert_eq!(
            client.refused(&json!([verb, "a", {"#t": ["a"]}, {}])).await,
            missing
        );
    }
    let note = event(&keys, 1, now(), &[&["t", "a"]], "");
    client.store(&note).await;
    assert_eq!(client.subscribe("a", &[json!({"#t": ["a"]})]).await, [note]);
}

#[tokio::test]
async fn only_what_has_the_namespace_is_a_topic() {
    let world = World::with(|config| {
        let config = config
            .with_value("community.topics.mode", "required")
            .unwrap();
        let config = config
            .with_value("community.topics.namespace", "kukuri:")
            .unwrap();
        config.with_value("community.topics.ids", "hex64").unwrap()
    })
    .await;
    let mut client = world.client().await;
    let keys = Keys::generate();
    let topic = format!("kukuri:{}", "Ab".repeat(32));
    for wrong in ["rust", "kukuri:", "kukuri:ab", &"ab".repeat(32)] {
        let event = event(&keys, 1, now(), &[&["t", wrong]], "");
        assert!(!client.publish(&event).await.0, "{wrong}");
    }
    client
        .store(&event(
            &keys,
            1,
            now(),
            &[&["t", "rust"], &["t", &topic]],
            "",
        ))
        .await;
    eventually("the log is numbered", async || {
        let topics: Vec<String> = sqlx::query_scalar("SELECT topic_id FROM cn_relay.events_outbox")
            .fetch_all(&world.env.db.pool)
            .await
            .unwrap();
        (topics == [topic.to_lowercase()]).then_some(())
    })
    .await;
}

#[tokio::test]
async fn an_event_has_a_row_in_the_log_for_each_topic_or_the_default_one() {
    let world = World::start().await;
    let mut client = world.client().await;
    let keys = Keys::generate();
    client
        .store(&event(
            &keys,
            1,
            now(),
            &[&["t", "B"], &["t", "a"], &["t", "b"]],
            "",
        ))
        .await;
    client.store(&note(&keys, now())).await;
    eventually("the log is numbered", async || {
        let topics: Vec<String> =
            sqlx::query_scalar("SELECT topic_id FROM cn_relay.events_outbox ORDER BY seq")
                .fetch_all(&world.env.db.pool)
                .await
                .unwrap();
        (topics == ["b", "a", "public"]).then_some(())
    })
    .await;
}

async fn make(world: &World, change: Change) -> bool {
    let mut tx = world.env.db.pool.begin().await.unwrap();
    let changed = change.make(&mut tx, "ann", "spam").await.unwrap();
    tx.commit().await.unwrap();
    changed
}

#[tokio::test]
async fn a_disabled_topic_is_restricted_until_it_is_enabled_again() {
    let world = World::start().await;
    let mut client = world.client().await;
    let keys = Keys::generate();
    let about = |n: i64| event(&keys, 1, now() - n, &[&["t", "News"]], "");
    client.store(&about(0)).await;
    assert!(make(&world, Change::Disable("news".to_owned())).await);
    let mut n = 0;
    eventually("it is restricted", async || {
        n += 1;
        let (taken, words) = client.publish(&about(n)).await;
        (!taken && words == "restricted: the topic news is disabled").then_some(())
    })
    .await;
    let words = client.refused(&json!(["REQ", "a", {"#t": ["news"]}])).await;
    assert!(words.starts_with("restricted: "), "{words}");
    client.store(&note(&keys, now())).await;
    assert!(make(&world, Change::Enable("news".to_owned())).await);
    eventually("it is enabled", async || {
        n += 1;
        client.publish(&about(n)).await.0.then_some(())
    })
    .await;
    let said = topics(&mut world.env.db.pool.acquire().await.unwrap())
        .await
        .unwrap();
    assert!(said[0].is_enabled && said[0].said.actor == "ann" && said[0].said.reason == "spam");
    assert_eq!(
        world
            .count("SELECT count(*) FROM cn_relay.rules_audit")
            .await,
        2
    );
}

#[tokio::test]
async fn who_is_banned_is_blocked_for_as_long_as_was_said() {
    let world = World::start().await;
    let mut client = world.client().await;
    let keys = Keys::generate();
    let key = || keys.public_key().to_hex().parse().unwrap();
    assert!(make(&world, Change::Ban(key(), None)).await);
    let mut n = 0;
    eventually("the key is blocked", async || {
        n += 1;
        let (taken, words) = client.publish(&note(&keys, now() - n)).await;
        (!taken && words == "blocked: this key is banned").then_some(())
    })
    .await;
    client.store(&note(&Keys::generate(), now())).await;
    assert_eq!(
        bans(&mut world.env.db.pool.acquire().await.unwrap())
            .await
            .unwrap()
            .len(),
        1
    );
    assert!(make(&world, Change::Ban(key(), Some(0.1))).await);
    eventually("its time is over", async || {
        n += 1;
        client
            .publish(&note(&keys, now() - n))
            .await
            .0
            .then_some(())
    })
    .await;

    let address = || "127.0.0.1".parse().unwrap();
    assert!(make(&world, Change::Ban(address(), None)).await);
    let url = format!("ws://{}/", world.host.api);
    eventually("the address is kept out", async || {
        let refused = tokio_tungstenite::connect_async(&url).await.err()?;
        refused.to_string().contains("403").then_some(())
    })
    .await;
    let (taken, words) = client.publish(&note(&Keys::generate(), now())).await;
    assert!(
        !taken && words == "blocked: this address is banned",
        "{words}"
    );
    assert!(make(&world, Change::Unban(address())).await);
    assert!(!make(&world, Change::Unban(address())).await);
}
