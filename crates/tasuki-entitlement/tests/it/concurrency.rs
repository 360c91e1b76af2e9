//! Many callers at once: no gap, no repeat, no deadlock, and nobody fails for another.

use futures_util::future::join_all;
use http::StatusCode;
use serde_json::{Value, json};
use tasuki_testkit::{Reply, TestHost, eventually};

use crate::support::{World, body};

#[tokio::test]
async fn grants_and_revokes_of_one_entitlement_at_once_make_versions_without_gap_or_repeat() {
    let world = World::start().await;
    let second = world.another().await;
    let hosts = [&world.host, &second];
    let ask = body("u", "s");
    let asked = (0..200).map(|index| {
        let path = ["/v1/entitlements/grants", "/v1/entitlements/revokes"][index / 2 % 2];
        let (world, host, ask) = (&world, hosts[index % 2], &ask);
        async move { settled(world, host, path, &format!("k{index}"), ask).await }
    });
    let answers = join_all(asked).await;
    let mut versions: Vec<i64> = answers
        .iter()
        .filter(|it| it.status == StatusCode::OK)
        .map(|it| it.json()["version"].as_i64().unwrap())
        .collect();
    versions.sort_unstable();
    let wanted: Vec<i64> = (1..=i64::try_from(versions.len()).unwrap()).collect();
    assert_eq!(versions, wanted);
    let refused = answers.iter().filter(|it| it.status != StatusCode::OK);
    for answer in refused {
        assert_eq!(
            answer.code(),
            "ENTITLEMENT_STATE_CONFLICT",
            "{}",
            answer.text
        );
    }
    let audited = world.count("SELECT count(DISTINCT version) FROM entitlement.entitlement_audit");
    assert_eq!(audited.await, i64::try_from(versions.len()).unwrap());
    let published = world.published(versions.len()).await;
    let told: Vec<_> = published.iter().map(|it| it.event.version).collect();
    assert_eq!(told, wanted, "told once each, in order");
}

#[tokio::test]
async fn bulk_requests_over_the_same_users_in_opposite_orders_never_deadlock() {
    let world = World::start().await;
    let second = world.another().await;
    let users: Vec<_> = (0..20).map(|user| body(&format!("u{user}"), "s")).collect();
    let back: Vec<_> = users.iter().rev().cloned().collect();
    for round in 0..15 {
        let path = [
            "/v1/entitlements/grants/bulk",
            "/v1/entitlements/revokes/bulk",
        ][round % 2];
        let asked = (0..6).map(|index| {
            let items = if index % 2 == 0 { &users } else { &back };
            let host = [&world.host, &second][index / 3];
            let (world, key) = (&world, format!("{round}-{index}"));
            async move { settled(world, host, path, &key, &json!({ "items": items })).await }
        });
        for answer in join_all(asked).await {
            assert_eq!(answer.status, StatusCode::OK, "{}", answer.text);
        }
    }
    let gaps = world.count(
        "SELECT count(*) FROM entitlement.entitlements AS held WHERE version <> (
             SELECT count(*) FROM entitlement.entitlement_audit AS past
             WHERE past.user_id = held.user_id
         )",
    );
    assert_eq!(gaps.await, 0);
}

#[tokio::test]
async fn lists_that_are_read_together_are_each_ones_own() {
    let world = World::start().await;
    let grants = (0..40).map(|user| {
        let (world, sku) = (&world, format!("sku-{user}"));
        async move { world.grant(&sku, &body(&format!("u{user}"), &sku)).await }
    });
    join_all(grants).await;
    let reads = (0..200).map(|index| {
        let (world, user) = (&world, index % 50);
        async move {
            let path = format!("/v1/users/u{user}/entitlements");
            (user, world.get(&path).await)
        }
    });
    for (user, list) in join_all(reads).await {
        assert_eq!(list.status, StatusCode::OK, "{}", list.text);
        let list = list.json();
        assert_eq!(list["user_id"], format!("u{user}"));
        let items = list["entitlements"].as_array().unwrap();
        let skus: Vec<_> = items
            .iter()
            .map(|it| it["stock_keeping_unit"].clone())
            .collect();
        let wanted: Vec<_> = (user < 40)
            .then(|| json!(format!("sku-{user}")))
            .into_iter()
            .collect();
        assert_eq!(skus, wanted);
    }
}

/// Asks as a client does: again with the same key, when nobody was free to do it in time.
async fn settled(world: &World, host: &TestHost, path: &str, key: &str, ask: &Value) -> Reply {
    eventually("a request is decided", async || {
        let answer = world.post_to(host, path, key, ask).await;
        (answer.status != StatusCode::SERVICE_UNAVAILABLE).then_some(answer)
    })
    .await
}
