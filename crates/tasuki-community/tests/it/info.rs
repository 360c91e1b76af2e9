//! What the relay says of itself (NIP-11).

use serde_json::json;

use crate::support::World;

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
    assert_eq!(answer.headers()["access-control-allow-origin"], "*");
    let info: serde_json::Value = answer.json().await.unwrap();
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
    let words = client.refused(&serde_json::Value::Array(message)).await;
    assert_eq!(words, "invalid: more than 7 filters");
}

#[tokio::test]
async fn pages_of_others_may_ask_and_people_get_a_word() {
    let world = World::start().await;
    let url = format!("http://{}/", world.host.api);
    let client = reqwest::Client::new();
    let asked = client
        .request(reqwest::Method::OPTIONS, &url)
        .send()
        .await
        .unwrap();
    assert_eq!(asked.headers()["access-control-allow-headers"], "*");
    let page = client.get(&url).send().await.unwrap().text().await.unwrap();
    assert!(page.contains("Nostr"), "{page}");
}
