//! Reports: each counts once, and for good.

use nostr::Keys;
use serde_json::json;

use super::{Desk, MODERATION, target};
use crate::support::{event, id, now};

#[tokio::test]
async fn a_report_counts_once_whatever_its_topics_and_becomes_of_it() {
    let mut desk = Desk::open().await;
    let note = desk.note("hello").await;
    let (ann, bob) = (Keys::generate(), Keys::generate());
    let topics: [&[&str]; 2] = [&["t", "a"], &["t", "b"]];
    let first = event(
        &ann,
        39_005,
        now(),
        &[
            &["d", "1"],
            &["target", &target(&note)],
            &["reason", "spam"],
            topics[0],
            topics[1],
        ],
        "",
    );
    let second = event(
        &bob,
        1984,
        now(),
        &[
            &["e", &id(&note), "illegal"],
            &["p", &desk.author.public_key().to_hex()],
            topics[0],
        ],
        "",
    );
    let noise = event(&bob, 39_005, now(), &[&["d", "2"], topics[0]], "no target");
    for report in [&first, &second, &noise] {
        desk.client.store(report).await;
    }
    desk.caught_up().await;
    let path = format!("/v1/reports?target={}", target(&note));
    let counted = desk.get(&path).await;
    let seen = &counted["targets"][0];
    assert_eq!(
        (&seen["reports"], &seen["reporters"]),
        (&json!(2), &json!(2))
    );
    assert_eq!(seen["reasons"], json!(["illegal", "spam"]));

    let gone = event(&ann, 5, now(), &[&["e", &id(&first)], topics[0]], "");
    desk.client.store(&gone).await;
    desk.replay().await;
    assert_eq!(desk.get(&path).await, counted);
    let since = desk.get("/v1/reports?since=2100-01-01T00:00:00Z").await;
    assert_eq!(since["targets"], json!([]));
}

#[tokio::test]
async fn the_node_signs_for_those_who_have_no_key_and_counts_them_once() {
    let mut desk = Desk::open().await;
    let note = desk.note("hello").await;
    let report = |reporter: &str| {
        json!({
            "target": target(&note),
            "reason": "spam",
            "comment": "I have seen this before",
            "reporter": reporter,
        })
    };
    let (status, first, _) = desk.post("/v1/reports", &report("user-1")).await;
    assert_eq!((status, &first["new"]), (200, &json!(true)), "{first}");
    let (_, again, _) = desk.post("/v1/reports", &report("user-1")).await;
    assert_eq!(
        (&again["event_id"], &again["new"]),
        (&first["event_id"], &json!(false))
    );
    desk.post("/v1/reports", &report("user-2")).await;
    desk.caught_up().await;
    let counted = desk.get("/v1/reports").await;
    let seen = &counted["targets"][0];
    assert_eq!(
        (&seen["reports"], &seen["reporters"]),
        (&json!(2), &json!(2))
    );

    let found = desk
        .client
        .subscribe("r", &[json!({"ids": [first["event_id"]]})])
        .await;
    let tags = found[0]["tags"].as_array().unwrap();
    assert_eq!(
        (&found[0]["kind"], &found[0]["content"]),
        (&json!(39_005), &json!("I have seen this before"))
    );
    for tag in [
        json!(["reporter", "user-1"]),
        json!(["e", id(&note)]),
        json!(["t", "b"]),
    ] {
        assert!(tags.contains(&tag), "{tag} is not in {tags:?}");
    }
}

#[tokio::test]
async fn nobody_reports_in_anothers_name() {
    let mut desk = Desk::open().await;
    let note = desk.note("hello").await;
    let forger = Keys::generate();
    let forged = event(
        &forger,
        39_005,
        now(),
        &[
            &["d", "1"],
            &["target", &target(&note)],
            &["reporter", "user-1"],
            &["t", "a"],
        ],
        "",
    );
    desk.client.store(&forged).await;
    desk.caught_up().await;
    let reporter: String = sqlx::query_scalar("SELECT reporter FROM cn_relay.reports")
        .fetch_one(&desk.world.env.db.pool)
        .await
        .unwrap();
    assert_eq!(reporter, forger.public_key().to_hex());
}

#[tokio::test]
async fn a_signed_report_is_taken_as_from_a_client_or_refused_with_the_reason() {
    let desk = Desk::open().await;
    let key = "ab".repeat(32);
    let by = Keys::generate();
    let tags: [&[&str]; 3] = [&["d", "1"], &["p", &key], &["t", "a"]];
    let report = event(&by, 39_005, now(), &tags, "");
    let (status, taken, _) = desk.post("/v1/reports", &json!({"event": report})).await;
    assert_eq!(
        (status, &taken),
        (200, &json!({"event_id": id(&report), "new": true}))
    );
    let (status, taken, _) = desk.post("/v1/reports", &json!({"event": report})).await;
    assert_eq!((status, &taken["new"]), (200, &json!(false)));
    let mut broken = report.clone();
    broken["content"] = json!("other words");
    let expired = event(
        &by,
        39_005,
        now(),
        &[tags[0], tags[1], &["expiration", "1"]],
        "",
    );
    for (event, words) in [
        (broken, "id is not the hash"),
        (expired, "expired"),
        (event(&by, 1, now(), &tags, ""), "event is no report"),
        (
            event(&by, 39_005, now(), &[&["d", "1"]], ""),
            "event is no report",
        ),
        (json!("x"), "event"),
    ] {
        let (status, refused, _) = desk.post("/v1/reports", &json!({"event": event})).await;
        assert_eq!(status, 400, "{refused}");
        assert!(
            refused["message"].as_str().unwrap().contains(words),
            "{refused}"
        );
    }
    desk.world.caught_up(MODERATION).await;
    let counted = desk.get("/v1/reports").await;
    assert_eq!(counted["targets"].as_array().unwrap().len(), 1);
}
