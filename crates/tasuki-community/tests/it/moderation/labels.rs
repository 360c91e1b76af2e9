//! Labels: they lapse, and stay when their target goes.

use serde_json::json;
use tasuki_testkit::eventually;

use super::{Desk, target, words};
use crate::support::{event, id, now};

#[tokio::test]
async fn a_label_lapses_and_the_log_is_told() {
    let mut desk = Desk::open().await;
    let rule = json!({
        "rule": {"keywords": ["buy"], "label": "spam", "confidence": 1, "expires_in_seconds": 2},
        "reason": "a short one",
    });
    desk.post("/v1/moderation/rules", &rule).await;
    let note = desk.note("buy").await;
    desk.caught_up().await;
    let page = desk.get("/v1/labels").await;
    let label = page["labels"][0]["event_id"].as_str().unwrap().to_owned();
    eventually("the log has the end of the label", async || {
        let ends = sqlx::query_scalar::<_, i64>(
            "SELECT count(*) FROM cn_relay.events_outbox
             WHERE event_id = $1 AND op = 'delete' AND reason = 'expiration'",
        );
        let ends = ends.bind(&label).fetch_one(&desk.world.env.db.pool).await;
        // Once for each topic.
        (ends.unwrap() == 2).then_some(())
    })
    .await;
    let filter = json!({"kinds": [39006]});
    assert!(desk.client.find(&[filter]).await.is_empty());
    let held = desk.get("/v1/labels?active=true").await;
    assert!(words(&held).is_empty());
    let lapsed = desk.get("/v1/labels?active=false").await;
    assert_eq!(words(&lapsed), ["spam"]);
    assert_eq!(lapsed["labels"][0]["target"], json!(target(&note)));
}

#[tokio::test]
async fn a_label_stays_when_its_target_is_deleted_or_replaced() {
    let mut desk = Desk::open().await;
    desk.rule("buy", "spam").await;
    let note = desk.note("buy").await;
    let old = event(&desk.author, 0, now() - 5, &[&["t", "a"]], "buy from me");
    desk.client.store(&old).await;
    desk.caught_up().await;
    let gone = event(
        &desk.author,
        5,
        now(),
        &[&["e", &id(&note)], &["t", "a"]],
        "",
    );
    desk.client.store(&gone).await;
    let new = event(&desk.author, 0, now(), &[&["t", "a"]], "a runner");
    desk.client.store(&new).await;
    desk.caught_up().await;
    let stored = desk
        .client
        .find(&[json!({"ids": [id(&note), id(&old)]})])
        .await;
    assert!(stored.is_empty());
    for event in [&note, &old] {
        assert_eq!(desk.words(event).await, ["spam"]);
        let filter = json!({"kinds": [39006], "#e": [id(event)]});
        assert_eq!(desk.client.find(&[filter]).await.len(), 1);
    }
    assert!(desk.words(&new).await.is_empty());
}

#[tokio::test]
async fn labels_are_read_page_by_page_and_by_what_they_are() {
    let mut desk = Desk::open().await;
    desk.rule("buy", "spam").await;
    desk.rule("now", "advert").await;
    let mut notes = Vec::new();
    for n in 0..7 {
        notes.push(desk.note(&format!("buy now {n}")).await);
    }
    desk.caught_up().await;
    let (mut seen, mut path) = (Vec::new(), "/v1/labels?limit=4".to_owned());
    loop {
        let page = desk.get(&path).await;
        let labels = page["labels"].as_array().unwrap();
        assert!(labels.len() <= 4);
        seen.extend(labels.iter().map(|it| it["label_id"].clone()));
        let Some(next) = page["next"].as_str() else {
            break;
        };
        path = format!("/v1/labels?limit=4&cursor={next}");
    }
    assert_eq!(seen.len(), 14);
    seen.sort_by_key(ToString::to_string);
    seen.dedup();
    assert_eq!(seen.len(), 14, "none twice");
    let author = desk.author.public_key().to_hex();
    let by_author = desk
        .get(&format!("/v1/labels?author={author}&label=spam"))
        .await;
    assert_eq!(words(&by_author).len(), 7);
    let nobody = "ab".repeat(32);
    let none = desk.get(&format!("/v1/labels?author={nobody}")).await;
    assert!(words(&none).is_empty());
}
