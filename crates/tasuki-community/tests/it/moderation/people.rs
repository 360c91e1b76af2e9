//! What people say: by hand, once, with a name; and taken back.

use reqwest::Method;
use serde_json::json;

use super::{Desk, saying, target};
use crate::support::{event, id, now};

#[tokio::test]
async fn a_label_by_hand_is_given_once_per_key_and_written_down() {
    let mut desk = Desk::open().await;
    let note = desk.note("hello").await;
    let body = saying(&target(&note), "rude");
    let (status, first, replayed) = desk
        .ask_as("k", Method::POST, "/v1/labels", Some(&body))
        .await;
    assert_eq!((status, replayed), (201, false), "{first}");
    let (status, again, replayed) = desk
        .ask_as("k", Method::POST, "/v1/labels", Some(&body))
        .await;
    assert_eq!((status, replayed), (201, true));
    assert_eq!(first.to_string(), again.to_string());
    assert_eq!(first["topics"], json!(["a", "b"]));
    let (status, refused, _) = desk.post("/v1/labels", &body).await;
    assert_eq!((status, &refused["code"]), (409, &json!("LABEL_EXISTS")));
    let other = saying(&target(&note), "other");
    let (status, refused, _) = desk
        .ask_as("k", Method::POST, "/v1/labels", Some(&other))
        .await;
    assert_eq!(
        (status, &refused["code"]),
        (409, &json!("IDEMPOTENCY_KEY_CONFLICT"))
    );

    let filter = json!({"kinds": [39006], "#e": [id(&note)]});
    let published = desk.client.find(&[filter]).await;
    assert_eq!(json!(published), json!([first["event_id"]]));
    let audit = desk.get("/v1/moderation/audit").await;
    let changes = audit["changes"].as_array().unwrap();
    assert_eq!(changes.len(), 1, "{changes:?}");
    for (field, wanted) in [
        ("action", json!("LABEL_ADDED")),
        ("subject", json!(target(&note))),
        ("actor", json!("api-key:test")),
        ("reason", json!("seen")),
    ] {
        assert_eq!(changes[0][field], wanted);
    }
    assert_eq!(changes[0]["detail"]["label_id"], first["label_id"]);
}

#[tokio::test]
async fn authors_versions_and_what_is_outside_can_be_labelled() {
    let desk = Desk::open().await;
    let key = desk.author.public_key().to_hex();
    let targets = [
        (format!("pubkey:{key}"), json!(key)),
        (format!("address:30023:{key}:essay:1"), json!(key)),
        ("identifier:isbn:9780141036144".to_owned(), json!(null)),
    ];
    for (target, author) in targets {
        let (status, label, _) = desk.post("/v1/labels", &saying(&target, "rude")).await;
        assert_eq!(status, 201, "{label}");
        assert_eq!(
            (&label["target"], &label["author"]),
            (&json!(target), &author)
        );
        assert_eq!(label["topics"], json!(["public"]));
    }
}

#[tokio::test]
async fn a_label_is_withdrawn_once_and_may_be_given_again() {
    let mut desk = Desk::open().await;
    let note = desk.note("hello").await;
    let body = saying(&target(&note), "rude");
    let (_, label, _) = desk.post("/v1/labels", &body).await;
    let path = format!(
        "/v1/labels/{}?reason=mistaken",
        label["label_id"].as_str().unwrap()
    );
    let (status, withdrawn, _) = desk.ask(Method::DELETE, &path, None).await;
    assert_eq!(
        (status, &withdrawn["active"]),
        (200, &json!(false)),
        "{withdrawn}"
    );
    assert!(withdrawn["withdrawn_at"].is_string());
    let (status, refused, _) = desk.ask(Method::DELETE, &path, None).await;
    assert_eq!(
        (status, &refused["code"]),
        (409, &json!("LABEL_STATE_CONFLICT"))
    );
    let labels = json!({"kinds": [39006]});
    assert!(
        desk.client
            .find(std::slice::from_ref(&labels))
            .await
            .is_empty()
    );
    let deletions = desk
        .client
        .find(&[json!({"kinds": [5], "#e": [label["event_id"]]})])
        .await;
    assert_eq!(deletions.len(), 1);

    let (status, again, _) = desk.post("/v1/labels", &body).await;
    assert_eq!(status, 201, "{again}");
    assert_ne!(again["label_id"], label["label_id"]);
    assert_eq!(
        json!(desk.client.find(&[labels]).await),
        json!([again["event_id"]])
    );
    assert_eq!(desk.words(&note).await, ["rude", "rude"]);
    let missing = format!("/v1/labels/{}?reason=x", uuid::Uuid::nil());
    let (status, ..) = desk.ask(Method::DELETE, &missing, None).await;
    assert_eq!(status, 404);
}

#[tokio::test]
async fn people_have_the_room_that_rules_leave_however_late_the_rules_are_asked() {
    let mut desk = Desk::open().await;
    for label in ["a", "b", "c", "d"] {
        desk.rule("buy", label).await;
    }
    // The consumer knows nothing of the event yet, or does by now: it makes no difference.
    let note = desk.note("buy").await;
    let (first, ..) = desk.post("/v1/labels", &saying(&target(&note), "x")).await;
    let (second, refused, _) = desk.post("/v1/labels", &saying(&target(&note), "y")).await;
    assert_eq!((first, second), (201, 409), "{refused}");
    assert_eq!(desk.words(&note).await, ["a", "b", "c", "d", "x"]);
    desk.caught_up().await;
    assert_eq!(desk.words(&note).await, ["a", "b", "c", "d", "x"]);
}

#[tokio::test]
async fn what_people_said_before_a_target_came_leaves_less_room_for_rules() {
    let mut desk = Desk::open().await;
    for label in ["a", "b", "c", "d"] {
        desk.rule("buy", label).await;
    }
    let made = event(&desk.author, 1, now(), &[&["t", "a"]], "buy");
    for label in ["x", "y"] {
        let (status, ..) = desk
            .post("/v1/labels", &saying(&target(&made), label))
            .await;
        assert_eq!(status, 201);
    }
    desk.client.store(&made).await;
    desk.caught_up().await;
    assert_eq!(desk.words(&made).await, ["a", "b", "c", "x", "y"]);
    let labels = desk
        .client
        .find(&[json!({"kinds": [39006], "#e": [id(&made)]})])
        .await;
    assert_eq!(labels.len(), 5);
}
