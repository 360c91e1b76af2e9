//! Who a client is (NIP-42), and what only authors may publish (NIP-70).

use nostr::Keys;
use serde_json::{Value, json};
use tasuki_service::config::Config;

use crate::support::{Client, RELAY, World, event, note, now};

fn required(config: Config) -> Config {
    let config = config
        .with_value("community.auth.mode", "required")
        .unwrap();
    config.with_value("community.auth.timeout", "2s").unwrap()
}

async fn prove(client: &mut Client, keys: &Keys, relay: &str, challenge: &str) -> (bool, String) {
    let tags: [&[&str]; 2] = [&["relay", relay], &["challenge", challenge]];
    client
        .say(&json!(["AUTH", event(keys, 22_242, now(), &tags, "")]))
        .await;
    let answer = client.hear().await;
    assert_eq!(answer[0], json!("OK"), "{answer}");
    (
        answer[2].as_bool().unwrap(),
        answer[3].as_str().unwrap().to_owned(),
    )
}

fn challenge(message: &Value) -> String {
    assert_eq!(message[0], json!("AUTH"), "{message}");
    message[1].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn where_a_proof_is_required_nothing_is_done_before() {
    let world = World::with(required).await;
    let mut client = world.client().await;
    let keys = Keys::generate();
    let challenge = challenge(&client.hear().await);

    let (taken, words) = client.publish(&note(&keys, now())).await;
    assert!(!taken && words.starts_with("auth-required: "), "{words}");
    for verb in ["REQ", "COUNT"] {
        let words = client.refused(&json!([verb, "a", {}])).await;
        assert!(words.starts_with("auth-required: "), "{words}");
    }
    let (taken, words) = prove(&mut client, &keys, RELAY, "another").await;
    assert!(!taken && words.starts_with("invalid: challenge"), "{words}");
    let (taken, words) = prove(&mut client, &keys, "wss://elsewhere.example", &challenge).await;
    assert!(!taken && words.starts_with("invalid: relay"), "{words}");
    assert!(
        client
            .refused(&json!(["REQ", "a", {}]))
            .await
            .starts_with("auth-required: ")
    );

    assert_eq!(
        prove(&mut client, &keys, RELAY, &challenge).await,
        (true, String::new())
    );
    client.store(&note(&Keys::generate(), now())).await;
    assert_eq!(client.find(&[json!({})]).await.len(), 1);
    // Proofs are nobody else's business.
    assert_eq!(
        world
            .count("SELECT count(*) FROM cn_relay.events WHERE kind = 22242")
            .await,
        0
    );
}

#[tokio::test]
async fn who_proves_nothing_in_time_is_cut_and_told_why() {
    let world = World::with(required).await;
    let mut client = world.client().await;
    challenge(&client.hear().await);
    let notice = client.hear().await;
    assert_eq!(notice[0], json!("NOTICE"), "{notice}");
    assert!(
        notice[1].as_str().unwrap().contains("auth-required"),
        "{notice}"
    );
    let frame = client.heard().await.unwrap_err().unwrap();
    assert_eq!(u16::from(frame.code), 1008);
}

#[tokio::test]
async fn who_was_there_before_it_is_required_goes_on_for_a_time_of_grace() {
    let world = World::with(|config| {
        let soon = now() + 6;
        let soon = time::OffsetDateTime::from_unix_timestamp(soon).unwrap();
        let soon = soon
            .format(&time::format_description::well_known::Rfc3339)
            .unwrap();
        let config = required(config)
            .with_value("community.auth.enforce-at", soon)
            .unwrap();
        config.with_value("community.auth.grace", "3s").unwrap()
    })
    .await;
    let mut before = world.client().await;
    challenge(&before.hear().await);
    before.store(&note(&Keys::generate(), now())).await;
    // Once it is required, who comes is refused, and who was there is not.
    tasuki_testkit::eventually("it is required", async || {
        let mut later = world.client().await;
        challenge(&later.hear().await);
        let (taken, words) = later.publish(&note(&Keys::generate(), now())).await;
        (!taken && words.starts_with("auth-required")).then_some(())
    })
    .await;
    before.store(&note(&Keys::generate(), now())).await;
    let end = loop {
        if let Err(end) = before.heard().await {
            break end;
        }
    };
    assert_eq!(end.map(|frame| u16::from(frame.code)), Some(1008));
}

#[tokio::test]
async fn only_its_author_publishes_a_protected_event_with_any_of_several_keys() {
    let world = World::start().await;
    let mut client = world.client().await;
    let (author, other) = (Keys::generate(), Keys::generate());
    let own = event(&author, 1, now(), &[&["-"]], "mine");

    client.say(&json!(["EVENT", own])).await;
    let challenge = challenge(&client.hear().await);
    let words = "auth-required: this event may only be published by its author";
    assert_eq!(client.hear().await, json!(["OK", own["id"], false, words]));
    assert!(prove(&mut client, &other, RELAY, &challenge).await.0);
    assert!(!client.publish(&own).await.0);
    assert!(prove(&mut client, &author, RELAY, &challenge).await.0);
    client.store(&own).await;
    client
        .store(&event(&other, 1, now(), &[&["-"]], "theirs"))
        .await;
    // Another connection has proven nothing.
    let mut elsewhere = world.client().await;
    let another = event(&author, 1, now() - 1, &[&["-"]], "");
    elsewhere.say(&json!(["EVENT", another])).await;
    self::challenge(&elsewhere.hear().await);
    assert_eq!(elsewhere.hear().await[2], json!(false));
}

#[tokio::test]
async fn a_relay_without_an_address_takes_no_proof_of_anybody() {
    let world = World::with(|config| config.with_value("community.relay.url", "").unwrap()).await;
    let mut client = world.client().await;
    let keys = Keys::generate();
    let own = event(&keys, 1, now(), &[&["-"]], "");
    client.say(&json!(["EVENT", own])).await;
    let challenge = challenge(&client.hear().await);
    assert_eq!(client.hear().await[2], json!(false));
    let (taken, words) = prove(&mut client, &keys, RELAY, &challenge).await;
    assert!(
        !taken && words.starts_with("invalid: this relay has no address"),
        "{words}"
    );
}
