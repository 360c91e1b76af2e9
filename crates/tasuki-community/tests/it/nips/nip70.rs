//! NIP-70: who may publish what is protected.

use nostr::Keys;
use serde_json::{Value, json};

use crate::support::{Client, RELAY, World, event, now};

async fn prove(client: &mut Client, by: &Keys, challenge: &Value) {
    let challenge = challenge.as_str().unwrap();
    let tags: [&[&str]; 2] = [&["relay", RELAY], &["challenge", challenge]];
    let proof = event(by, 22_242, now(), &tags, "");
    client.say(&json!(["AUTH", proof])).await;
    assert_eq!(client.hear().await[2], json!(true));
}

#[tokio::test]
async fn what_is_protected_is_refused_until_its_author_is_here() {
    let world = World::start().await;
    let (author, other) = (Keys::generate(), Keys::generate());
    let protected = |n: i64| {
        let tags: [&[&str]; 3] = [&["d", "x"], &["-"], &["t", "a"]];
        [1, 0, 30_023, 20_001, 5].map(|kind| event(&author, kind, now() - n, &tags, ""))
    };
    let mut listener = world.client().await;
    listener.subscribe("all", &[json!({})]).await;

    let mut client = world.client().await;
    client.say(&json!(["EVENT", protected(0)[0]])).await;
    let challenge = client.hear().await[1].clone();
    assert_eq!(client.hear().await[2], json!(false));
    for event in &protected(0) {
        let (taken, words) = client.publish(event).await;
        assert!(!taken && words.starts_with("auth-required: "), "{words}");
    }
    // Somebody is here, who is not the one: to prove the same again would not help.
    prove(&mut client, &other, &challenge).await;
    for event in &protected(0) {
        let (taken, words) = client.publish(event).await;
        assert!(!taken && words.starts_with("restricted: "), "{words}");
    }
    listener.hears_nothing().await;
    prove(&mut client, &author, &challenge).await;
    for event in &protected(0) {
        client.store(event).await;
        assert_eq!(&listener.news("all").await, event);
    }
    // Now that it is known, it is still not for others to send, and everybody gets it.
    let mut stranger = world.client().await;
    stranger.say(&json!(["EVENT", protected(0)[0]])).await;
    assert_eq!(stranger.hear().await[0], json!("AUTH"));
    assert_eq!(stranger.hear().await[2], json!(false));
    assert_eq!(stranger.find(&[json!({"kinds": [1]})]).await.len(), 1);
}

#[tokio::test]
async fn a_repost_that_holds_what_is_protected_is_refused_and_one_that_names_it_is_not() {
    let world = World::start().await;
    let (author, other) = (Keys::generate(), Keys::generate());
    let mut client = world.client().await;
    let protected = event(&author, 1, now(), &[&["-"]], "mine");
    let open = event(&author, 1, now(), &[], "everybody's");
    for by in [&other, &author] {
        for kind in [6, 16] {
            let repost = |held: &str| event(by, kind, now(), &[], held);
            let (taken, words) = client.publish(&repost(&protected.to_string())).await;
            assert!(!taken && words.starts_with("blocked: "), "{words}");
            client.store(&repost(&open.to_string())).await;
            client.store(&repost("")).await;
        }
    }
    // Only in reposts is the content an event.
    let quoted = event(&other, 1, now(), &[], &protected.to_string());
    client.store(&quoted).await;
}
