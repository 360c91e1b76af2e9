//! Somebody stalls in the middle of a transaction: those who want the same are told in time, and
//! nobody else notices.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use http::StatusCode;
use serde_json::json;
use sqlx::{Postgres, Transaction};
use tasuki::idempotency::{LockNumber, try_lock_all};
use tasuki_testkit::{Reply, eventually};

use crate::support::{World, body};

/// How long requests wait for what is held.
const WAIT: &str = "4s";

async fn world() -> World {
    World::with(|config| {
        config
            .with_value("entitlement.idempotency.wait", WAIT)
            .unwrap()
    })
    .await
}

/// A transaction that holds an entitlement, as that of a stopped process would.
async fn stalled(world: &World, user: &str, sku: &str) -> Transaction<'static, Postgres> {
    let mut stalled = world.env.db.pool.begin().await.unwrap();
    let number = LockNumber::of(&["entitlement", "entitlement", user, sku]);
    let held = try_lock_all(&mut stalled, &[number]).await.unwrap();
    assert!(held.is_empty(), "nobody else holds it");
    stalled
}

/// A transaction that makes whoever writes into the audit stand still in the middle of its own.
async fn audit_locked(world: &World) -> Transaction<'static, Postgres> {
    let mut stalled = world.env.db.pool.begin().await.unwrap();
    sqlx::query("LOCK TABLE entitlement.entitlement_audit IN SHARE MODE")
        .execute(&mut *stalled)
        .await
        .unwrap();
    stalled
}

/// Somebody does.
async fn stands_still(world: &World) {
    eventually("somebody stands still", async || {
        let waiting = world.count(
            "SELECT count(*) FROM pg_stat_activity
             WHERE datname = current_database() AND wait_event_type = 'Lock'
                 AND query LIKE '%made_from%'",
        );
        (waiting.await == 1).then_some(())
    })
    .await;
}

fn unavailable(told: &Reply) {
    let status = StatusCode::SERVICE_UNAVAILABLE;
    assert_eq!(told.status, status, "{}", told.text);
    assert_eq!(told.code(), "UNAVAILABLE");
    assert_eq!(told.headers.get("retry-after").unwrap(), "1");
}

#[tokio::test]
async fn a_held_entitlement_is_told_as_unavailable_and_holds_up_nobody_else() {
    let world = world().await;
    world.grant("first", &body("u", "s")).await;
    let stalled = stalled(&world, "u", "s").await;

    let began = Instant::now();
    let ask = body("u", "s");
    let told = join_all(["k", "k2", "k3"].map(|key| world.revoke(key, &ask)));
    let others = async {
        // Again and again, in whatever batch the held ones are tried once more.
        for round in 0..3 {
            let asks: Vec<_> = (0..10)
                .map(|user| {
                    (
                        format!("{round}-{user}"),
                        body(&format!("u{user}"), &format!("s{round}")),
                    )
                })
                .collect();
            for answer in join_all(asks.iter().map(|(key, ask)| world.grant(key, ask))).await {
                assert_eq!(answer.status, StatusCode::OK, "{}", answer.text);
            }
        }
        began.elapsed()
    };
    let (told, others) = tokio::join!(told, others);

    let waited = began.elapsed();
    assert!(waited >= Duration::from_secs(4), "{waited:?}");
    assert!(
        others < Duration::from_secs(4),
        "others were served after {others:?}, while somebody waited"
    );
    told.iter().for_each(unavailable);

    stalled.rollback().await.unwrap();
    let done = world.revoke("k", &ask).await;
    assert_eq!(done.status, StatusCode::OK, "{}", done.text);
    assert_eq!(done.json()["version"], 2, "nothing was done or kept before");
}

#[tokio::test]
async fn a_request_whose_twin_still_runs_is_told_so_after_a_bounded_wait_and_not_stored() {
    let world = world().await;
    let second = world.another().await;
    let (path, ask) = ("/v1/entitlements/grants", body("u", "s"));
    let stalled = audit_locked(&world).await;

    let first = world.grant("k", &ask);
    let others = async {
        stands_still(&world).await;
        let twin = world.post_to(&second, path, "k", &ask);
        let other = world.post_to(&second, path, "other", &ask);
        let told = tokio::join!(twin, other);
        stalled.rollback().await.unwrap();
        told
    };
    let (first, (twin, other)) = tokio::join!(first, others);

    assert_eq!(twin.status, StatusCode::CONFLICT, "{}", twin.text);
    assert_eq!(twin.code(), "IDEMPOTENCY_KEY_IN_PROGRESS");
    assert_eq!(twin.headers["retry-after"], "1");
    // Its key is its own: only the entitlement is in use.
    unavailable(&other);
    assert_eq!(first.status, StatusCode::OK, "{}", first.text);
    let again = world.post_to(&second, path, "k", &ask).await;
    assert_eq!(again.text, first.text);
    assert_eq!(again.headers["idempotency-replayed"], "true");
}

#[tokio::test]
async fn what_was_answered_is_repeated_whoever_holds_the_entitlement() {
    let world = world().await;
    let ask = body("u", "s");
    let first = world.grant("k", &ask).await;
    let stalled = stalled(&world, "u", "s").await;

    let again = world.grant("k", &ask).await;
    assert_eq!((again.status, &again.text), (first.status, &first.text));
    let misused = world.grant("k", &body("u", "other")).await;
    assert_eq!(misused.code(), "IDEMPOTENCY_KEY_CONFLICT");
    stalled.rollback().await.unwrap();
}

#[tokio::test]
async fn a_bulk_request_that_waits_for_one_item_lets_the_others_go() {
    let world = world().await;
    let users = ["u1", "u2", "u3", "u4"];
    let items: Vec<_> = users.iter().map(|user| body(user, "s")).collect();
    let bulk = json!({ "items": items });
    let path = "/v1/entitlements/grants/bulk";
    let stalled = stalled(&world, "u1", "s").await;

    let waiting = world.post(path, "bulk", &bulk);
    let singles = join_all(items.iter().skip(1).enumerate().map(|(index, ask)| {
        let world = &world;
        async move { world.grant(&format!("k{index}"), ask).await }
    }));
    let (told, singles) = tokio::join!(waiting, singles);
    unavailable(&told);
    for answer in singles {
        assert_eq!(answer.status, StatusCode::OK, "{}", answer.text);
    }

    stalled.rollback().await.unwrap();
    let done = world.post(path, "bulk", &bulk).await;
    assert_eq!(done.status, StatusCode::OK, "{}", done.text);
    assert_eq!(done.json()["results"][0]["status"], "ACTIVE");
    assert_eq!(
        done.json()["results"][1]["error"]["message"],
        "already ACTIVE"
    );
}

#[tokio::test]
async fn a_bulk_request_that_gets_no_turn_is_told_so_in_time() {
    let world = world().await;
    let path = "/v1/entitlements/grants/bulk";
    let (one, other) = (
        json!({ "items": [body("u1", "s")] }),
        json!({ "items": [body("u2", "s")] }),
    );
    let stalled = audit_locked(&world).await;

    let first = world.post(path, "one", &one);
    let second = async {
        stands_still(&world).await;
        let told = world.post(path, "other", &other).await;
        stalled.rollback().await.unwrap();
        told
    };
    let (first, told) = tokio::join!(first, second);
    unavailable(&told);
    let message = "too many bulk requests wait, try again";
    assert_eq!(told.json()["message"], message);
    assert_eq!(first.status, StatusCode::OK, "{}", first.text);
    let done = world.post(path, "other", &other).await;
    assert_eq!(done.status, StatusCode::OK, "{}", done.text);
}

#[tokio::test]
async fn what_was_answered_is_repeated_also_while_its_own_process_stands_still() {
    let world = world().await;
    let ask = body("u", "s");
    let granted = world.grant("k", &ask).await;
    let stalled = audit_locked(&world).await;

    let running = world.revoke("r", &ask);
    let others = async {
        stands_still(&world).await;
        let again = world.grant("k", &ask);
        let twin = world.revoke("r", &ask);
        let told = tokio::join!(again, twin);
        stalled.rollback().await.unwrap();
        told
    };
    let (revoked, (again, twin)) = tokio::join!(running, others);
    assert_eq!((again.status, &again.text), (granted.status, &granted.text));
    assert_eq!(twin.code(), "IDEMPOTENCY_KEY_IN_PROGRESS");
    assert_eq!(revoked.status, StatusCode::OK, "{}", revoked.text);
}
