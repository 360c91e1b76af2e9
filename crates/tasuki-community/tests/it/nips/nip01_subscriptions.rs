//! NIP-01, subscriptions: their names, their ends, and whose they are.

use nostr::Keys;
use serde_json::json;

use crate::support::{World, event, note, now};

#[tokio::test]
async fn names_have_1_to_64_characters_and_a_longer_one_touches_no_other() {
    let world = World::start().await;
    let mut client = world.client().await;
    let longest = "é".repeat(64);
    for name in ["a", " ", "\u{0}", "日本", &longest] {
        client.subscribe(name, &[json!({"kinds": [7]})]).await;
    }
    for name in [String::new(), format!("{longest}é"), "x".repeat(65)] {
        for verb in ["REQ", "COUNT"] {
            let words = client.refused(&json!([verb, name, {}])).await;
            assert!(words.starts_with("invalid: the name"), "{words}");
        }
    }
    // Neither is the one closed with which the longer one begins.
    let reaction = event(&Keys::generate(), 7, now(), &[], "+");
    world.client().await.store(&reaction).await;
    let mut names = Vec::new();
    for _ in 0..5 {
        let heard = client.hear().await;
        assert_eq!(heard[2], reaction);
        names.push(heard[1].as_str().unwrap().to_owned());
    }
    assert!(names.contains(&longest), "{names:?}");
}

#[tokio::test]
async fn a_name_is_that_of_its_connection() {
    let world = World::start().await;
    let (mut one, mut other) = (world.client().await, world.client().await);
    one.subscribe("a", &[json!({"kinds": [1]})]).await;
    other.subscribe("a", &[json!({"kinds": [7]})]).await;
    let reaction = event(&Keys::generate(), 7, now(), &[], "+");
    let note = note(&Keys::generate(), now());
    let mut sender = world.client().await;
    sender.store(&reaction).await;
    sender.store(&note).await;
    assert_eq!(one.news("a").await, note);
    assert_eq!(other.news("a").await, reaction);
    other.say(&json!(["CLOSE", "a"])).await;
    other.subscribe("b", &[json!({"kinds": [2]})]).await;
    let next = event(&Keys::generate(), 1, now(), &[], "next");
    sender.store(&next).await;
    assert_eq!(one.news("a").await, next);
    other.hears_nothing().await;
}

#[tokio::test]
async fn closing_what_is_not_open_is_nothing() {
    let world = World::start().await;
    let mut client = world.client().await;
    for name in ["never was", "", &"x".repeat(1_000)] {
        client.say(&json!(["CLOSE", name])).await;
    }
    client.subscribe("a", &[json!({})]).await;
    client.say(&json!(["CLOSE", "a"])).await;
    client.say(&json!(["CLOSE", "a"])).await;
    client.hears_nothing().await;
    client.store(&note(&Keys::generate(), now())).await;
}

#[tokio::test]
async fn a_request_that_is_refused_ends_the_subscription_of_its_name() {
    let world = World::start().await;
    let mut client = world.client().await;
    client.subscribe("a", &[json!({})]).await;
    let words = client.refused(&json!(["REQ", "a", {"limit": -1}])).await;
    assert!(words.starts_with("invalid: limit"), "{words}");
    let mut sender = world.client().await;
    sender.store(&note(&Keys::generate(), now())).await;
    client.hears_nothing().await;
    assert_eq!(client.subscribe("a", &[json!({})]).await.len(), 1);
}

#[tokio::test]
async fn news_are_never_of_a_subscription_that_was_replaced() {
    let world = World::start().await;
    let (mut listener, mut sender) = (world.client().await, world.client().await);
    let keys = Keys::generate();
    for n in 0..50 {
        sender.store(&event(&keys, 1, now() - n, &[], "")).await;
    }
    // Both at once: of the first there may be some events, and one end at most.
    listener.say(&json!(["REQ", "a", {"kinds": [1]}])).await;
    listener.say(&json!(["REQ", "a", {"kinds": [7]}])).await;
    let reaction = event(&keys, 7, now(), &[], "+");
    let mut is_sent = false;
    loop {
        let heard = listener.hear().await;
        if heard[0] == json!("EVENT") && heard[2] == reaction {
            break;
        }
        if heard[0] == json!("EOSE") && !is_sent {
            sender.store(&event(&keys, 1, now(), &[], "")).await;
            sender.store(&reaction).await;
            is_sent = true;
        }
    }
    sender.store(&event(&keys, 1, now(), &[], "late")).await;
    let last = event(&keys, 7, now(), &[], "-");
    sender.store(&last).await;
    loop {
        let heard = listener.hear().await;
        if heard[0] == json!("EVENT") {
            assert_eq!(heard[2], last);
            break;
        }
    }
}
