//! A repeated request has one effect and gets the first answer again, byte for byte.

use futures_util::future::join_all;
use http::StatusCode;
use serde_json::json;

use crate::support::{World, body, send};

#[tokio::test]
async fn a_repetition_gets_the_same_bytes_and_changes_nothing() {
    let world = World::start().await;
    let ask = body("u", "s");
    let first = world.grant("k", &ask).await;
    world.revoke("other", &ask).await;
    // Another order of fields and other spaces: still the same request.
    let text = r#"{ "purchase_id":"order-17", "reason" : "purchase",
        "stock_keeping_unit": "s", "user_id": "u" }"#;
    let request = world
        .raw(http::Method::POST, "/v1/entitlements/grants")
        .bearer_auth(&world.key)
        .header("Idempotency-Key", "k")
        .header("Content-Type", "application/json")
        .body(text);
    let again = send(request).await;

    assert_eq!((again.status, &again.text), (first.status, &first.text));
    assert_eq!(again.headers["idempotency-replayed"], "true");
    assert!(!first.headers.contains_key("idempotency-replayed"));
    let audited = world
        .count("SELECT count(*) FROM entitlement.entitlement_audit")
        .await;
    assert_eq!(audited, 2, "one grant, one revocation");
}

#[tokio::test]
async fn a_refusal_is_kept_and_repeated_although_the_state_has_changed() {
    let world = World::start().await;
    let ask = body("u", "s");
    world.grant("k1", &ask).await;
    let refused = world.grant("k2", &ask).await;
    assert_eq!(refused.status, StatusCode::CONFLICT);
    assert_eq!(
        refused.json(),
        json!({ "code": "ENTITLEMENT_STATE_CONFLICT", "message": "already ACTIVE" })
    );
    world.revoke("k3", &ask).await;
    let again = world.grant("k2", &ask).await;
    assert_eq!((again.status, &again.text), (refused.status, &refused.text));
    let twice = world.revoke("k4", &ask).await;
    assert_eq!(twice.json()["message"], "already REVOKED");
}

#[tokio::test]
async fn the_same_key_with_another_method_path_or_body_is_a_conflict() {
    let world = World::start().await;
    world.grant("k", &body("u", "s")).await;
    for (path, ask) in [
        ("/v1/entitlements/grants", body("u", "other")),
        ("/v1/entitlements/grants", body("other", "s")),
        ("/v1/entitlements/revokes", body("u", "s")),
    ] {
        let conflict = world.post(path, "k", &ask).await;
        assert_eq!(conflict.status, StatusCode::CONFLICT, "{path}");
        assert_eq!(conflict.code(), "IDEMPOTENCY_KEY_CONFLICT");
    }
    let versions = world
        .count("SELECT count(*) FROM entitlement.entitlement_audit")
        .await;
    assert_eq!(versions, 1);
}

#[tokio::test]
async fn two_callers_may_use_the_same_key_and_never_see_each_others_answer() {
    let world = World::start().await;
    let other = world.key_with("provider-b", &["entitlement:grant"]).await;
    let mine = world.grant("k", &body("u", "s")).await;
    let request = world
        .raw(http::Method::POST, "/v1/entitlements/grants")
        .bearer_auth(other)
        .header("Idempotency-Key", "k")
        .json(&body("u2", "s2"));
    let theirs = send(request).await;
    assert_eq!(
        (mine.status, theirs.status),
        (StatusCode::OK, StatusCode::OK)
    );
    assert_eq!(theirs.json()["user_id"], "u2");
}

#[tokio::test]
async fn twins_at_the_same_moment_on_two_processes_have_one_effect_and_one_answer() {
    let world = World::start().await;
    let second = world.another().await;
    for round in 0..10 {
        let ask = body("u", &format!("s{round}"));
        let key = format!("k{round}");
        let hosts = [&world.host, &second];
        let asked = (0..16)
            .map(|index| world.post_to(hosts[index % 2], "/v1/entitlements/grants", &key, &ask));
        let answers = join_all(asked).await;
        for answer in &answers {
            assert_eq!(answer.status, StatusCode::OK, "{}", answer.text);
            assert_eq!(answer.text, answers[0].text);
        }
    }
    let changes = world
        .count("SELECT count(*) FROM entitlement.entitlement_audit")
        .await;
    assert_eq!(changes, 10);
}

#[tokio::test]
async fn a_key_is_free_again_when_its_time_is_over() {
    let world = World::start().await;
    world.grant("k", &body("u", "s")).await;
    sqlx::query("UPDATE entitlement.idempotency_keys SET expires_at = now()")
        .execute(&world.env.db.pool)
        .await
        .unwrap();
    let fresh = world.grant("k", &body("u", "other")).await;
    assert_eq!(fresh.status, StatusCode::OK, "{}", fresh.text);
}

#[tokio::test]
async fn a_request_that_is_repeated_with_a_rotated_key_is_the_same_request() {
    let world = World::start().await;
    let ask = body("u", "s");
    let scopes = ["entitlement:grant"];
    let mut answers = Vec::new();
    for _ in 0..2 {
        let key = world.key_with("provider-a", &scopes).await;
        let request = world
            .raw(http::Method::POST, "/v1/entitlements/grants")
            .bearer_auth(key)
            .header("Idempotency-Key", "k")
            .json(&ask);
        answers.push(send(request).await);
    }
    assert_eq!(answers[0].status, StatusCode::OK);
    assert_eq!(answers[1].text, answers[0].text);
    assert_eq!(answers[1].headers["idempotency-replayed"], "true");
}
