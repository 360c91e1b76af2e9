//! Ends, quantities, and many at once.

use futures_util::future::join_all;
use http::StatusCode;
use serde_json::{Value, json};
use tasuki_contract::events::entitlement::EventType;
use tasuki_testkit::eventually;

use crate::support::{World, body};

fn some(user: &str, sku: &str, field: &str, value: Value) -> Value {
    let mut body = body(user, sku);
    body.as_object_mut()
        .unwrap()
        .insert(field.to_owned(), value);
    body
}

#[tokio::test]
async fn an_entitlement_that_runs_out_is_revoked_with_an_event_of_its_own() {
    let world = World::start().await;
    let in_an_hour = world.env.clock.now() + std::time::Duration::from_secs(3600);
    let end = tasuki_contract::timestamp::format(in_an_hour).unwrap();
    let granted = world
        .grant("k", &some("u", "pass", "expires_at", json!(end)))
        .await;
    assert_eq!(granted.json()["expires_at"], end);
    let check = world.get("/v1/users/u/entitlements/pass").await.json();
    assert_eq!(check["allowed"], true);

    // The hour passes.
    sqlx::query("UPDATE entitlement.entitlements SET expires_at = now()")
        .execute(&world.env.db.pool)
        .await
        .unwrap();
    let check = world.get("/v1/users/u/entitlements/pass").await.json();
    assert_eq!(check["allowed"], false, "at once, not at the next sweep");
    eventually("it is revoked", async || {
        let now = world.get("/v1/users/u/entitlements/pass").await.json();
        (now["entitlement"]["status"] == "REVOKED").then_some(())
    })
    .await;
    let told = world.published(2).await;
    assert_eq!(told[1].event.event_type(), EventType::EntitlementRevoked);
    assert_eq!(
        (&*told[1].event.source, told[1].event.version),
        ("expired", 2)
    );
    let history = world
        .get("/v1/users/u/entitlements/pass/history")
        .await
        .json();
    assert_eq!(history["history"][0]["action"], "EXPIRE");
    assert_eq!(history["history"][0]["caller"], "entitlement");
}

#[tokio::test]
async fn what_can_not_be_revoked_holds_up_nothing_else_that_has_run_out() {
    let world = World::start().await;
    let pool = &world.env.db.pool;
    // More than go into one transaction, and all of them before the good one.
    sqlx::query(
        "INSERT INTO entitlement.entitlements
             (user_id, stock_keeping_unit, status, version, expires_at, source, source_id, updated_at)
         SELECT E'bad\\n' || number, 's', 'ACTIVE', 1, now() - interval '1 hour', 'a', 'b', now()
         FROM generate_series(1, 600) AS bad (number)",
    )
    .execute(pool)
    .await
    .unwrap();
    world.grant("held", &body("u", "held")).await;
    world.grant("good", &body("u", "good")).await;
    let number = tasuki::idempotency::LockNumber::of(&["entitlement", "entitlement", "u", "held"]);
    let mut stalled = pool.begin().await.unwrap();
    let locks = tasuki::idempotency::try_lock_all(&mut stalled, &[number]).await;
    assert!(locks.unwrap().is_empty());
    sqlx::query(
        "UPDATE entitlement.entitlements SET expires_at = now() - interval '1 minute' WHERE user_id = 'u'",
    )
    .execute(pool)
    .await
    .unwrap();

    eventually("the good one is revoked", async || {
        let now = world.get("/v1/users/u/entitlements/good").await.json();
        (now["entitlement"]["status"] == "REVOKED").then_some(())
    })
    .await;
    let held = world.get("/v1/users/u/entitlements/held").await.json();
    assert_eq!(held["entitlement"]["status"], "ACTIVE");
    assert_eq!(held["allowed"], false, "it has run out all the same");
    stalled.rollback().await.unwrap();
}

#[tokio::test]
async fn what_runs_out_at_one_moment_is_revoked_once_by_however_many_processes() {
    let world = World::start().await;
    let _second = world.another().await;
    sqlx::query(
        "INSERT INTO entitlement.entitlements
             (user_id, stock_keeping_unit, status, version, expires_at, source, source_id, updated_at)
         SELECT 'u' || number, 's', 'ACTIVE', 1, now(), 'a', 'b', now()
         FROM generate_series(1, 2500) AS due (number)",
    )
    .execute(&world.env.db.pool)
    .await
    .unwrap();
    eventually("all are revoked", async || {
        let left = "SELECT count(*) FROM entitlement.entitlements WHERE status = 'ACTIVE'";
        (world.count(left).await == 0).then_some(())
    })
    .await;
    let told = "SELECT count(*) FROM entitlement.entitlement_audit WHERE action = 'EXPIRE'";
    assert_eq!(world.count(told).await, 2500);
}

#[tokio::test]
async fn nothing_is_revoked_while_another_process_is_at_it() {
    let world = World::start().await;
    let pool = &world.env.db.pool;
    for sku in ["first", "second"] {
        world.grant(sku, &body("u", sku)).await;
    }
    let mut other = pool.begin().await.unwrap();
    let number = tasuki::idempotency::LockNumber::of(&["entitlement", "expiry"]);
    let turn = eventually("it is our turn", async || {
        let held = tasuki::idempotency::try_lock_all(&mut other, &[number]).await;
        held.unwrap().is_empty().then_some(())
    });
    turn.await;
    sqlx::query("UPDATE entitlement.entitlements SET expires_at = now()")
        .execute(pool)
        .await
        .unwrap();
    // sleep: nothing happens, so there is nothing to wait for; it looks twice a second.
    tokio::time::sleep(std::time::Duration::from_millis(1200)).await;
    let revoked = "SELECT count(*) FROM entitlement.entitlements WHERE status = 'REVOKED'";
    assert_eq!(world.count(revoked).await, 0);
    other.rollback().await.unwrap();
    eventually("they are revoked", async || {
        (world.count(revoked).await == 2).then_some(())
    })
    .await;
}

#[tokio::test]
async fn consumers_at_the_same_moment_never_take_more_than_there_is() {
    let world = World::start().await;
    let second = world.another().await;
    let granted = world
        .grant("g", &some("u", "potion", "quantity", json!(10)))
        .await;
    assert_eq!(granted.json()["quantity"], 10);
    let take = some("u", "potion", "quantity", json!(1));
    let hosts = [&world.host, &second];
    let taking = (0..25).map(|index| {
        let key = format!("c{index}");
        let (host, take) = (hosts[index % 2], &take);
        let world = &world;
        async move {
            world
                .post_to(host, "/v1/entitlements/consumes", &key, take)
                .await
        }
    });
    let answers = join_all(taking).await;
    let done = answers
        .iter()
        .filter(|it| it.status == StatusCode::OK)
        .count();
    assert_eq!(done, 10);
    let refused = answers
        .iter()
        .find(|it| it.status == StatusCode::CONFLICT)
        .unwrap();
    assert_eq!(refused.code(), "ENTITLEMENT_INSUFFICIENT_QUANTITY");
    assert_eq!(refused.json()["message"], "only 0 left");
    let check = world.get("/v1/users/u/entitlements/potion").await.json();
    assert_eq!(
        (&check["allowed"], &check["entitlement"]["version"]),
        (&json!(false), &json!(11))
    );

    let more = world
        .grant("g2", &some("u", "potion", "quantity", json!(5)))
        .await;
    assert_eq!(
        more.json()["quantity"],
        5,
        "what is consumed can be topped up"
    );
    let plain = world.grant("g3", &body("u", "potion")).await;
    assert_eq!(plain.code(), "ENTITLEMENT_STATE_CONFLICT");
}

#[tokio::test]
async fn many_at_once_get_a_result_each_and_are_idempotent_as_a_whole() {
    let world = World::start().await;
    world.grant("k0", &body("u1", "a")).await;
    let items = json!({ "items": [
        body("u1", "a"), body("u1", "b"), body("u2", "a"), body("u2", "a"),
    ]});
    let done = world
        .post("/v1/entitlements/grants/bulk", "bulk", &items)
        .await;
    assert_eq!(done.status, StatusCode::OK, "{}", done.text);
    let results = done.json()["results"].as_array().unwrap().clone();
    let codes: Vec<_> = results
        .iter()
        .map(|it| it["error"]["code"].as_str())
        .collect();
    let conflict = Some("ENTITLEMENT_STATE_CONFLICT");
    assert_eq!(codes, [conflict, None, None, conflict]);
    assert_eq!(results[1]["stock_keeping_unit"], "b");

    let again = world
        .post("/v1/entitlements/grants/bulk", "bulk", &items)
        .await;
    assert_eq!(again.text, done.text);
    assert_eq!(
        world
            .count("SELECT count(*) FROM entitlement.entitlement_audit")
            .await,
        3
    );

    let revoked = world
        .post("/v1/entitlements/revokes/bulk", "r", &items)
        .await
        .json();
    assert_eq!(revoked["results"][0]["status"], "REVOKED");
    world.published(6).await;
}
