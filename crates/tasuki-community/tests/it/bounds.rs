//! What one event and one request may cost everybody else.

use nostr::Keys;
use serde_json::{Value, json};

use crate::support::{World, event, now};

#[tokio::test]
async fn an_event_writes_a_bounded_number_of_rows_of_bounded_size() {
    let world = World::start().await;
    let (mut client, keys, at) = (world.client().await, Keys::generate(), now());
    let topics: Vec<String> = (0..33).map(|n| format!("topic-{n}")).collect();
    let tags: Vec<Vec<&str>> = topics.iter().map(|it| vec!["t", it]).collect();
    let tags: Vec<&[&str]> = tags.iter().map(Vec::as_slice).collect();
    let long = "d".repeat(513);
    for (tags, words) in [
        (&tags[..], "invalid: the event has more than 32 topics"),
        (&[&["d", &*long][..]], "invalid: d is longer than 512 bytes"),
        (&[&["d", "a\0b"][..]], "invalid: d has a NUL"),
    ] {
        let kind = if tags.len() == 1 { 30_000 } else { 1 };
        let refused = client.publish(&event(&keys, kind, at, tags, "")).await;
        assert_eq!(refused, (false, words.to_owned()));
    }
    client.store(&event(&keys, 1, at, &tags[..32], "")).await;
    let most = event(&keys, 30_000, at, &[&["d", &long[1..]]], "");
    client.store(&most).await;
    let rows = "SELECT (SELECT count(*) FROM cn_relay.events_outbox_pending)
        + (SELECT count(*) FROM cn_relay.events_outbox)";
    assert_eq!(world.count(rows).await, 33);
}

#[tokio::test]
async fn a_filter_asks_for_a_bounded_number_of_tags() {
    let world = World::start().await;
    let mut client = world.client().await;
    let filter = |names: &str| {
        let tags = names.chars().map(|it| (format!("#{it}"), json!(["x"])));
        Value::Object(tags.collect())
    };
    let refused = client.refused(&json!(["REQ", "s", filter("abcdfg")])).await;
    assert_eq!(refused, "invalid: more than 5 tags");
    assert!(client.subscribe("s", &[filter("abcdf")]).await.is_empty());
}

#[tokio::test]
async fn requests_are_counted_by_address_whatever_connection_they_come_on() {
    let world = World::with(|config| {
        config
            .with_value("community.limits.reqs-per-minute", 3)
            .unwrap()
    })
    .await;
    for _ in 0..3 {
        let mut client = world.client().await;
        client.subscribe("s", &[json!({"kinds": [1]})]).await;
    }
    let mut client = world.client().await;
    let refused = client.refused(&json!(["REQ", "s", {"kinds": [1]}])).await;
    assert_eq!(refused, "rate-limited: more than 3 requests per minute");
}
