//! Bad input: a clear word that names the field, and nothing is changed.

use reqwest::Method;
use serde_json::{Value, json};

use super::{Desk, rule, saying};

async fn refused(desk: &Desk, method: Method, path: &str, body: Option<&Value>, words: &str) {
    let (status, answer, _) = desk.ask(method, path, body).await;
    assert_eq!(
        (status, &answer["code"]),
        (400, &json!("BAD_REQUEST")),
        "{path} {body:?}: {answer}"
    );
    let message = answer["message"].as_str().unwrap();
    assert!(message.contains(words), "{message} does not say {words}");
}

type Broken = (&'static str, Value, &'static str);

/// A field of a rule, what it can't be, and what is said of it.
fn broken_rules() -> Vec<Broken> {
    vec![
        ("kinds", json!([70_000]), "kinds"),
        (
            "kinds",
            json!(vec![1; 101]),
            "kinds has more than 100 values",
        ),
        ("keywords", json!([""]), "keywords is empty"),
        ("keywords", json!([]), "the rule asks for nothing"),
        ("pattern", json!("("), "pattern is no regular expression"),
        (
            "pattern",
            json!("x".repeat(1025)),
            "pattern is longer than 1024 bytes",
        ),
        (
            "pattern",
            json!("(a{1000}){1000}"),
            "pattern is no regular expression",
        ),
        ("tags", json!([["a", "b", "c"]]), "tags"),
        ("authors", json!(["me"]), "authors"),
        ("topics", json!(["a\nb"]), "topics has a control character"),
        ("label", json!("Two Words"), "label is not one word"),
        ("label", json!("x".repeat(65)), "label is not one word"),
        ("confidence", json!(1.5), "confidence is not from 0 to 1"),
        ("confidence", json!("high"), "confidence"),
        (
            "expires_in_seconds",
            json!(0),
            "expires_in_seconds is not from 1",
        ),
        (
            "expires_in_seconds",
            json!(i64::MAX),
            "expires_in_seconds is not from 1",
        ),
        ("policy_url", json!("javascript:alert(1)"), "policy_url"),
        ("policy_ref", json!("a\u{0}"), "policy_ref"),
        ("colour", json!("red"), "colour"),
    ]
}

/// The same of a label.
fn broken_labels() -> Vec<Broken> {
    vec![
        ("target", json!("pubkey:me"), "target"),
        ("target", json!("topic:a"), "target"),
        ("label", json!(""), "label is not one word"),
        ("confidence", json!(-0.1), "confidence is not from 0 to 1"),
        (
            "expires_in_seconds",
            json!(-1),
            "expires_in_seconds is not from 1",
        ),
        ("policy_url", json!("https://a b"), "policy_url"),
        ("policy_ref", json!(""), "policy_ref is empty"),
        ("topics", json!([""]), "topics has what is no topic here"),
        (
            "topics",
            json!(vec!["a"; 21]),
            "topics has more than 20 values",
        ),
        (
            "reason",
            json!("x".repeat(1001)),
            "reason is longer than 1000 bytes",
        ),
    ]
}

#[tokio::test]
async fn every_field_of_a_rule_is_checked() {
    let desk = Desk::open().await;
    for (field, value, words) in broken_rules() {
        let mut wrong = rule("buy", "spam");
        wrong[field] = value;
        let body = json!({"rule": wrong, "reason": "a test"});
        refused(
            &desk,
            Method::POST,
            "/v1/moderation/rules",
            Some(&body),
            words,
        )
        .await;
    }
    let body = json!({"rule": rule("buy", "spam"), "reason": " "});
    refused(
        &desk,
        Method::POST,
        "/v1/moderation/rules",
        Some(&body),
        "reason is empty",
    )
    .await;
    refused(
        &desk,
        Method::PUT,
        "/v1/moderation/rules/x",
        Some(&body),
        "rule_id",
    )
    .await;
    assert_eq!(
        desk.get("/v1/moderation/rules?all=true").await,
        json!({"rules": []})
    );
    assert_eq!(desk.get("/v1/moderation/audit").await["changes"], json!([]));
}

#[tokio::test]
async fn every_field_of_a_label_and_a_report_is_checked() {
    let desk = Desk::open().await;
    let key = desk.author.public_key().to_hex();
    let good = format!("pubkey:{key}");
    for (field, value, words) in broken_labels() {
        let mut wrong = saying(&good, "rude");
        wrong[field] = value;
        refused(&desk, Method::POST, "/v1/labels", Some(&wrong), words).await;
    }
    for (body, words) in [
        (json!({}), "target is required"),
        (json!({"target": good}), "reason is required"),
        (json!({"target": "x", "reason": "spam"}), "target"),
        (
            json!({"target": good, "reason": "Two Words"}),
            "reason is not one word",
        ),
        (
            json!({"target": good, "reason": "spam", "reporter": ""}),
            "reporter is empty",
        ),
        (
            json!({"target": good, "reason": "spam", "comment": "x".repeat(2001)}),
            "comment is longer",
        ),
        (
            json!({"target": good, "event": {}}),
            "event says everything",
        ),
    ] {
        refused(&desk, Method::POST, "/v1/reports", Some(&body), words).await;
    }
    for (path, words) in [
        ("/v1/labels?target=x", "target"),
        ("/v1/labels?author=x", "author"),
        ("/v1/labels?active=maybe", "active"),
        ("/v1/labels?cursor=x", "cursor"),
        ("/v1/labels?limit=501", "limit is from 1 to 500"),
        ("/v1/reports?since=today", "since"),
        ("/v1/reports?target=x", "target"),
        ("/v1/moderation/audit?cursor=1.x", "cursor"),
        ("/v1/moderation/rules?open=x", "open"),
    ] {
        refused(&desk, Method::GET, path, None, words).await;
    }
    assert_eq!(desk.rows().await, Vec::<String>::new());
    assert_eq!(desk.get("/v1/moderation/audit").await["changes"], json!([]));
}
