//! NIP-42: who proves a key, how, and what it is good for.

use nostr::Keys;
use serde_json::{Value, json};
use tasuki_service::config::Config;

use crate::support::{Client, World, event, id, note, now};

const HERE: &str = "wss://relay.example:7447/inbox/";

fn required(config: Config) -> Config {
    let config = config
        .with_value("community.auth.mode", "required")
        .unwrap();
    let config = config.with_value("community.auth.timeout", "60s").unwrap();
    config.with_value("community.relay.url", HERE).unwrap()
}

async fn challenge(client: &mut Client) -> String {
    let message = client.hear().await;
    assert_eq!(message[0], json!("AUTH"), "{message}");
    message[1].as_str().unwrap().to_owned()
}

fn proof(by: &Keys, kind: u16, at: i64, relay: &str, challenge: &str) -> Value {
    let tags: [&[&str]; 2] = [&["relay", relay], &["challenge", challenge]];
    event(by, kind, at, &tags, "")
}

async fn prove(client: &mut Client, proof: &Value) -> (bool, String) {
    client.say(&json!(["AUTH", proof])).await;
    let answer = client.hear().await;
    assert_eq!((&answer[0], &answer[1]), (&json!("OK"), &proof["id"]));
    (
        answer[2].as_bool().unwrap(),
        answer[3].as_str().unwrap().to_owned(),
    )
}

/// Proofs with one thing wrong, and its name.
fn wrong_proofs(keys: &Keys, challenge: &str, foreign: &str) -> Vec<(Value, &'static str)> {
    let at = now();
    let of = |kind, at, relay, challenge| proof(keys, kind, at, relay, challenge);
    let mut forged = of(22_242, at, HERE, challenge);
    forged["sig"] = json!("00".repeat(64));
    let mut changed = of(22_242, at, HERE, foreign);
    changed["tags"][1][1] = json!(challenge);
    let elsewhere = [
        "",
        "relay.example:7447/inbox",
        "wss://relay.example/inbox",
        "wss://relay.example:7448/inbox",
        "wss://relay.example:7447",
        "wss://relay.example:7447/outbox",
        "wss://x.relay.example:7447/inbox",
        "wss://relay.example.evil:7447/inbox",
    ];
    let elsewhere = elsewhere.map(|relay| (of(22_242, at, relay, challenge), "relay"));
    let others = [
        (of(1, at, HERE, challenge), "kind"),
        (of(22_243, at, HERE, challenge), "kind"),
        (of(22_242, at - 700, HERE, challenge), "created_at"),
        (of(22_242, at + 700, HERE, challenge), "created_at"),
        (of(22_242, at, HERE, foreign), "challenge"),
        (of(22_242, at, HERE, ""), "challenge"),
        (event(keys, 22_242, at, &[], ""), "challenge"),
        (forged, "sig"),
        (changed, "id"),
    ];
    elsewhere.into_iter().chain(others).collect()
}

#[tokio::test]
async fn a_proof_is_for_this_relay_this_connection_and_now() {
    let world = World::with(required).await;
    let mut client = world.client().await;
    let challenge = challenge(&mut client).await;
    let mut elsewhere = world.client().await;
    let foreign = self::challenge(&mut elsewhere).await;
    assert_ne!(challenge, foreign);
    let (keys, at) = (Keys::generate(), now());
    for (wrong, words) in wrong_proofs(&keys, &challenge, &foreign) {
        let (taken, said) = prove(&mut client, &wrong).await;
        assert!(
            !taken && said.starts_with(&format!("invalid: {words} ")),
            "{said}"
        );
        let (taken, said) = client.publish(&note(&keys, at)).await;
        assert!(!taken && said.starts_with("auth-required: "), "{said}");
    }
    let near = "WSS://Relay.Example:7447/inbox";
    for relay in [HERE, near, "ws://relay.example:7447/inbox?from=here"] {
        for time in [at - 590, at + 590] {
            let right = proof(&Keys::generate(), 22_242, time, relay, &challenge);
            assert_eq!(
                prove(&mut client, &right).await,
                (true, String::new()),
                "{relay}"
            );
        }
    }
}

#[tokio::test]
async fn whoever_is_asked_for_a_proof_tries_again_with_it() {
    let world = World::with(required).await;
    let mut client = world.client().await;
    let challenge = challenge(&mut client).await;
    let (keys, at) = (Keys::generate(), now());
    let said = note(&keys, at);
    assert!(client.publish(&said).await.1.starts_with("auth-required: "));
    for verb in ["REQ", "COUNT"] {
        let words = client.refused(&json!([verb, "a", {}])).await;
        assert!(words.starts_with("auth-required: "), "{words}");
    }
    let right = proof(&keys, 22_242, at, HERE, &challenge);
    assert!(prove(&mut client, &right).await.0);
    client.store(&said).await;
    assert_eq!(client.subscribe("a", &[json!({})]).await, [said]);
    client.say(&json!(["COUNT", "a", {}])).await;
    assert_eq!(client.hear().await, json!(["COUNT", "a", {"count": 1}]));
    // It is good for as long as the connection, and for no other.
    let mut again = world.client().await;
    self::challenge(&mut again).await;
    assert!(!prove(&mut again, &right).await.0);
}

#[tokio::test]
async fn a_proof_counts_for_all_that_is_said_after_it_without_waiting_for_an_answer() {
    let world = World::with(required).await;
    let mut client = world.client().await;
    let challenge = challenge(&mut client).await;
    let keys = Keys::generate();
    let right = proof(&keys, 22_242, now(), HERE, &challenge);
    let own = event(&keys, 1, now(), &[&["-"]], "");
    for message in [
        json!(["AUTH", right]),
        json!(["EVENT", own]),
        json!(["COUNT", "a", {"kinds": [7]}]),
    ] {
        client.say(&message).await;
    }
    assert_eq!(client.hear().await, json!(["OK", id(&right), true, ""]));
    let mut answers = [client.hear().await, client.hear().await];
    answers.sort_by_key(ToString::to_string);
    let counted = json!(["COUNT", "a", {"count": 0}]);
    assert_eq!(answers, [counted, json!(["OK", id(&own), true, ""])]);
}

#[tokio::test]
async fn the_challenge_comes_before_the_refusal_and_once() {
    let world = World::with(|config| config.with_value("community.relay.url", HERE).unwrap()).await;
    let (mut client, keys) = (world.client().await, Keys::generate());
    let own = event(&keys, 1, now(), &[&["-"]], "");
    client.say(&json!(["EVENT", own])).await;
    let challenge = challenge(&mut client).await;
    let refusal = client.hear().await;
    let words = "auth-required: this event may only be published by its author";
    assert_eq!(refusal, json!(["OK", id(&own), false, words]));
    let (taken, said) = client.publish(&own).await;
    assert_eq!((taken, &*said), (false, words));
    let right = proof(&keys, 22_242, now(), HERE, &challenge);
    assert!(prove(&mut client, &right).await.0);
    client.store(&own).await;
}

#[tokio::test]
async fn a_proof_is_nobody_elses_business_however_it_is_sent() {
    let world = World::with(required).await;
    let (mut client, keys) = (world.client().await, Keys::generate());
    let challenge = challenge(&mut client).await;
    let right = proof(&keys, 22_242, now(), HERE, &challenge);
    assert!(prove(&mut client, &right).await.0);
    client.subscribe("all", &[json!({})]).await;
    let (taken, words) = client.publish(&right).await;
    assert!(!taken && words.starts_with("invalid: "), "{words}");
    assert!(prove(&mut client, &right).await.0);
    client.hears_nothing().await;
    for filter in [json!({"kinds": [22_242]}), json!({"ids": [id(&right)]})] {
        assert!(client.find(&[filter]).await.is_empty());
    }
    for table in [
        "SELECT count(*) FROM cn_relay.events",
        "SELECT count(*) FROM cn_relay.event_dedupe",
        "SELECT count(*) FROM cn_relay.events_outbox_pending",
    ] {
        assert_eq!(world.count(table).await, 0, "{table}");
    }
}
