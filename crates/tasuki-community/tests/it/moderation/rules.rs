//! Rules: whom they label, and from when on.

use nostr::Keys;
use reqwest::Method;
use serde_json::json;

use super::{Desk, rule, target};
use crate::support::{event, id, now};

#[tokio::test]
async fn a_rule_labels_what_comes_later_and_not_what_came_before() {
    let mut desk = Desk::open().await;
    let before = desk.note("buy now").await;
    let rule = desk.rule("BUY now", "spam").await;
    let (later, other) = (desk.note("please Buy Now!").await, desk.note("hello").await);
    desk.caught_up().await;
    assert!(desk.words(&before).await.is_empty());
    assert!(desk.words(&other).await.is_empty());
    let page = desk.get("/v1/labels?active=true").await;
    let label = &page["labels"][0];
    assert_eq!(page["labels"].as_array().unwrap().len(), 1);
    for (field, wanted) in [
        ("target", json!(target(&later))),
        ("author", later["pubkey"].clone()),
        ("label", json!("spam")),
        ("origin", json!("rule")),
        ("rule_id", json!(rule)),
        ("rule_version", json!(1)),
        ("confidence", json!(0.8)),
        ("policy_url", json!("https://example.com/policy")),
        ("policy_ref", json!("3.1")),
        ("topics", json!(["a", "b"])),
    ] {
        assert_eq!(label[field], wanted, "{field}");
    }

    // Clients find it by its target, as an event that the node has signed.
    let filter = json!({"kinds": [39006], "#e": [id(&later)], "#t": ["b"]});
    let found = desk.client.subscribe("labels", &[filter]).await;
    assert_eq!(found.len(), 1);
    assert_eq!(found[0]["id"], label["event_id"]);
    let tags = found[0]["tags"].as_array().unwrap();
    let end = tags.iter().find(|tag| tag[0] == json!("exp")).unwrap()[1].clone();
    for tag in [
        json!(["d", format!("rule:spam:{}", target(&later))]),
        json!(["label", "spam"]),
        json!(["confidence", "0.8"]),
        json!(["expiration", end]),
        json!(["policy_ref", "3.1"]),
        json!(["t", "a"]),
    ] {
        assert!(tags.contains(&tag), "{tag} is not in {tags:?}");
    }
}

#[tokio::test]
async fn a_rule_that_is_changed_or_closed_labels_as_it_was_when_an_event_came() {
    let mut desk = Desk::open().await;
    let id = desk.rule("buy", "spam").await;
    let path = format!("/v1/moderation/rules/{id}");
    let first = desk.note("buy").await;
    let body = json!({"rule": rule("buy", "advert"), "reason": "a better word"});
    let (status, versions, _) = desk.ask(Method::PUT, &path, Some(&body)).await;
    assert_eq!(status, 200, "{versions}");
    let second = desk.note("buy, again").await;
    let (status, ..) = desk
        .ask(Method::DELETE, &format!("{path}?reason=done"), None)
        .await;
    assert_eq!(status, 200);
    let third = desk.note("buy, once more").await;
    desk.caught_up().await;
    let seen = [&first, &second, &third];
    let wanted: [&[&str]; 3] = [&["spam"], &["advert"], &[]];
    for (event, wanted) in seen.into_iter().zip(wanted) {
        assert_eq!(desk.words(event).await, wanted);
    }
    let versions = desk.get(&path).await;
    let versions = versions["rules"].as_array().unwrap();
    assert_eq!(versions.len(), 2);
    assert_eq!(versions[0]["active_until"], versions[1]["active_from"]);
    assert!(versions[1]["active_until"].is_string());
    let (status, refused, _) = desk.ask(Method::PUT, &path, Some(&body)).await;
    assert_eq!((status, &refused["code"]), (404, &json!("NOT_FOUND")));
    assert_eq!(desk.get("/v1/moderation/rules").await, json!({"rules": []}));

    let audit = desk.get("/v1/moderation/audit").await;
    let changes = audit["changes"].as_array().unwrap().iter();
    let changes: Vec<_> = changes
        .map(|it| {
            (
                it["action"].clone(),
                it["reason"].clone(),
                it["actor"].clone(),
            )
        })
        .collect();
    let by = json!("api-key:test");
    assert_eq!(
        changes,
        [
            (json!("RULE_CLOSED"), json!("done"), by.clone()),
            (json!("RULE_CHANGED"), json!("a better word"), by.clone()),
            (json!("RULE_ADDED"), json!("a test"), by),
        ]
    );
}

#[tokio::test]
async fn a_target_has_five_labels_at_most_and_each_word_once() {
    let mut desk = Desk::open().await;
    for label in ["a", "b", "b", "c", "d", "e", "f"] {
        desk.rule("buy", label).await;
    }
    let note = desk.note("buy").await;
    desk.caught_up().await;
    assert_eq!(desk.words(&note).await, ["a", "b", "c", "d", "e"]);
    let (status, refused, _) = desk
        .post("/v1/labels", &super::saying(&target(&note), "x"))
        .await;
    assert_eq!((status, &refused["code"]), (409, &json!("LABEL_LIMIT")));
    assert_eq!(desk.words(&note).await.len(), 5);
}

#[tokio::test]
async fn what_the_node_says_itself_is_never_labelled() {
    let mut desk = Desk::open().await;
    let everything = json!({
        "rule": {
            "kinds": [1, 5, 39005, 39006],
            "label": "seen",
            "confidence": 1,
            "expires_in_seconds": 60,
        },
        "reason": "a test",
    });
    let (status, ..) = desk.post("/v1/moderation/rules", &everything).await;
    assert_eq!(status, 201);
    let note = desk.note("hello").await;
    let report = json!({"target": target(&note), "reason": "spam"});
    let (status, ..) = desk.post("/v1/reports", &report).await;
    assert_eq!(status, 200);
    let others = event(
        &Keys::generate(),
        39_006,
        now(),
        &[&["d", "x"], &["t", "a"]],
        "",
    );
    desk.client.store(&others).await;
    desk.caught_up().await;
    assert_eq!(desk.words(&note).await, ["seen"]);
    assert_eq!(desk.words(&others).await, ["seen"]);
    assert_eq!(
        desk.get("/v1/labels").await["labels"]
            .as_array()
            .unwrap()
            .len(),
        2
    );
}
