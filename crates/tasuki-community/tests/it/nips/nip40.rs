//! NIP-40: nobody gets what has expired, and it is not taken.

use nostr::Keys;
use serde_json::json;
use tasuki_testkit::eventually;

use crate::support::{World, event, id, now};

#[tokio::test]
async fn what_has_expired_is_in_no_answer_before_and_after_it_is_put_away() {
    let world = World::start().await;
    let mut client = world.client().await;
    let (keys, end) = (Keys::generate(), now() + 4);
    let ends = end.to_string();
    let tags: [&[&str]; 2] = [&["expiration", &ends], &["d", "x"]];
    // Long ones are read when they are sent.
    let long = format!("word {}", "x".repeat(10_000));
    let events = [
        event(&keys, 1, now(), &tags, "word"),
        event(&keys, 1, now() - 1, &tags, &long),
        event(&keys, 0, now(), &tags, r#"{"about":"word"}"#),
        event(&keys, 30_023, now(), &tags, "word"),
    ];
    for event in &events {
        client.store(event).await;
    }
    let lasting = event(&keys, 1, now() - 2, &[], "word");
    client.store(&lasting).await;
    world.caught_up("index-v1").await;
    let ids: Vec<_> = events.iter().map(id).collect();
    let filters = [
        json!({"ids": ids}),
        json!({"authors": [keys.public_key().to_hex()]}),
        json!({"kinds": [0, 1, 30_023]}),
        json!({"#d": ["x"]}),
        json!({"search": "word"}),
        json!({}),
    ];
    if now() < end - 1 {
        assert_eq!(client.find(&filters[..1]).await.len(), 4);
    }
    eventually("it is over", async || (now() >= end).then_some(())).await;
    let mut check = async || {
        for filter in &filters {
            let found = client.find(std::slice::from_ref(filter)).await;
            assert!(found.iter().all(|found| *found == id(&lasting)), "{filter}");
            client.say(&json!(["COUNT", "c", filter])).await;
            let counted = client.hear().await;
            assert_eq!(counted[2]["count"], json!(found.len()), "{filter}");
        }
        for event in &events {
            let refused = (false, "invalid: expired".to_owned());
            assert_eq!(client.publish(event).await, refused);
        }
    };
    check().await;
    eventually("it is put away", async || {
        let count = "SELECT count(*) FROM cn_relay.events_outbox WHERE reason = 'expiration'";
        (world.count(count).await == 4).then_some(())
    })
    .await;
    check().await;
}

#[tokio::test]
async fn an_end_that_is_over_is_refused_and_one_that_can_not_be_read_is_none() {
    let world = World::start().await;
    let (mut client, mut listener) = (world.client().await, world.client().await);
    listener.subscribe("all", &[json!({})]).await;
    let (keys, at) = (Keys::generate(), now());
    for kind in [1, 0, 20_001, 30_000] {
        for end in [at - 1, 0, 1] {
            let end = end.to_string();
            let over = event(&keys, kind, at, &[&["expiration", &end], &["d", "x"]], "");
            let refused = (false, "invalid: expired".to_owned());
            assert_eq!(client.publish(&over).await, refused, "{kind}");
        }
    }
    listener.hears_nothing().await;
    let later = (at + 600).to_string();
    for tags in [
        [&["expiration", "soon"][..]],
        [&["expiration"][..]],
        [&["expiration", ""][..]],
        [&["expiration", "1.5"][..]],
        [&["expires", "1"][..]],
        [&["expiration", &later][..]],
    ] {
        let event = event(&keys, 1, at, &tags, "");
        client.store(&event).await;
        assert_eq!(listener.news("all").await, event);
    }
    // An ephemeral event with an end is told, and stored as little as any other.
    let passing = event(&keys, 20_001, at, &[&["expiration", &later]], "");
    client.store(&passing).await;
    assert_eq!(listener.news("all").await, passing);
    let ids = json!({"ids": [id(&passing)]});
    assert!(client.find(&[ids]).await.is_empty());
}
