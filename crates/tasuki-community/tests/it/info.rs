//! What the relay says of itself (NIP-11).

use nostr::Keys;
use serde_json::{Value, json};

use crate::support::{World, event, note, now};

#[tokio::test]
async fn the_document_tells_the_limits_that_hold() {
    let world = World::with(|config| {
        let config = config
            .with_value("community.relay.name", "a relay")
            .unwrap();
        let config = config
            .with_value("community.relay.pubkey", "ab".repeat(32))
            .unwrap();
        config.with_value("community.limits.filters", 7).unwrap()
    })
    .await;
    let url = format!("http://{}/", world.host.api);
    let client = reqwest::Client::new();
    let asked = client
        .get(&url)
        .header("accept", "application/nostr+json")
        .send();
    let answer = asked.await.unwrap();
    assert_eq!(answer.headers()["content-type"], "application/nostr+json");
    may_be_read(&answer);
    let info: Value = answer.json().await.unwrap();
    assert_eq!(
        (&info["name"], &info["pubkey"]),
        (&json!("a relay"), &json!("ab".repeat(32)))
    );
    assert_eq!(
        info["supported_nips"],
        json!([1, 9, 11, 40, 42, 45, 50, 70])
    );
    let limitation = &info["limitation"];
    for (limit, value) in [
        ("max_filters", json!(7)),
        ("max_limit", json!(1000)),
        ("max_event_tags", json!(200)),
        ("max_message_length", json!(262_144)),
        ("max_subid_length", json!(64)),
        ("created_at_upper_limit", json!(900)),
        ("auth_required", json!(false)),
        ("restricted_writes", json!(false)),
    ] {
        assert_eq!(limitation[limit], value, "{limit}");
    }
    let mut client = world.client().await;
    let mut message = vec![json!("REQ"), json!("a")];
    message.extend((0..8).map(|_| json!({})));
    let words = client.refused(&Value::Array(message)).await;
    assert_eq!(words, "invalid: more than 7 filters");
}

#[tokio::test]
async fn a_proof_is_required_from_when_on_it_is() {
    use time::format_description::well_known::Rfc3339;
    let hour = 60 * 60;
    for (enforced_in, is_required) in [(hour, false), (-hour, true)] {
        let from = time::OffsetDateTime::from_unix_timestamp(now() + enforced_in).unwrap();
        let from = from.format(&Rfc3339).unwrap();
        let world = World::with(|config| {
            let config = config.with_value("community.auth.mode", "required");
            let config = config.unwrap();
            config
                .with_value("community.auth.enforce-at", from)
                .unwrap()
        })
        .await;
        let asked = reqwest::Client::new()
            .get(format!("http://{}/", world.host.api))
            .header("accept", "application/nostr+json");
        let info: Value = asked.send().await.unwrap().json().await.unwrap();
        assert_eq!(info["limitation"]["auth_required"], json!(is_required));
        // Who comes is asked for one, and does without it until then.
        let mut client = world.client().await;
        assert_eq!(client.hear().await[0], json!("AUTH"));
        let (taken, words) = client.publish(&note(&Keys::generate(), now())).await;
        assert_eq!(taken, !is_required, "{words}");
    }
}

#[tokio::test]
async fn pages_of_others_may_ask_and_people_get_a_word() {
    let world = World::start().await;
    let url = format!("http://{}/", world.host.api);
    let client = reqwest::Client::new();
    let asked = client
        .request(reqwest::Method::OPTIONS, &url)
        .header("origin", "https://client.example")
        .header("access-control-request-method", "GET")
        .header("access-control-request-headers", "accept")
        .send()
        .await
        .unwrap();
    assert_eq!(asked.status().as_u16(), 204);
    may_be_read(&asked);
    let page = client.get(&url).send().await.unwrap().text().await.unwrap();
    assert!(page.contains("Nostr"), "{page}");
}

/// Whether pages of others may read it: each of these MUST be there (NIP-11).
fn may_be_read(answer: &reqwest::Response) {
    for (name, value) in [
        ("origin", "*"),
        ("headers", "*"),
        ("methods", "GET, OPTIONS"),
    ] {
        let name = format!("access-control-allow-{name}");
        assert_eq!(answer.headers()[&name], value, "{name}");
    }
}

#[tokio::test]
async fn what_the_document_says_is_so() {
    let world = World::with(|config| {
        let config = config
            .with_value("community.limits.subscriptions", 3)
            .unwrap();
        config.with_value("community.limits.limit", 5).unwrap()
    })
    .await;
    let url = format!("http://{}/", world.host.api);
    let asked = reqwest::Client::new()
        .get(&url)
        .header("accept", "application/json;q=0.5, application/nostr+json");
    let info: Value = asked.send().await.unwrap().json().await.unwrap();
    // It would have to be the address of a page, and there is none.
    assert!(info.get("software").is_none());
    let limit = |name: &str| usize::try_from(info["limitation"][name].as_u64().unwrap()).unwrap();
    let (mut client, keys, at) = (world.client().await, Keys::generate(), now());
    let about = |tags: usize| event(&keys, 1, at, &vec![&["x"][..]; tags], "");
    client.store(&about(limit("max_event_tags"))).await;
    assert!(!client.publish(&about(limit("max_event_tags") + 1)).await.0);
    let ahead = i64::try_from(limit("created_at_upper_limit")).unwrap();
    client.store(&note(&keys, at + ahead - 5)).await;
    assert!(!client.publish(&note(&keys, at + ahead + 60)).await.0);
    for n in 0..10 {
        client.store(&note(&keys, at - n)).await;
    }
    for asked in [json!({}), json!({"limit": 1_000_000})] {
        let most = limit("max_limit").min(limit("default_limit"));
        assert_eq!(client.find(&[asked]).await.len(), most);
    }
    for n in 0..limit("max_subscriptions") {
        client
            .subscribe(&n.to_string(), &[json!({"limit": 0})])
            .await;
    }
    let words = client.refused(&json!(["REQ", "more", {}])).await;
    assert!(words.starts_with("rate-limited: "), "{words}");
    // From bracket to bracket, in bytes.
    let most = limit("max_message_length");
    let message = |length: usize| format!("[\"CLOSE\",\"{}\"]", "x".repeat(length - 12));
    assert_eq!(message(most).len(), most);
    let last = note(&keys, at - 100);
    client.say_raw(&message(most)).await;
    client.say(&json!(["CLOSE", "0"])).await;
    client.say(&json!(["CLOSE", "1"])).await;
    client.say(&json!(["CLOSE", "2"])).await;
    client.store(&last).await;
    client.say_raw(&message(most + 1)).await;
    let end = loop {
        if let Err(end) = client.heard().await {
            break end;
        }
    };
    assert!(end.is_none_or(|frame| u16::from(frame.code) == 1009));
}
