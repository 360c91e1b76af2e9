//! Many want the same entitlement: all of them are served, and nobody else notices.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use http::StatusCode;
use serde_json::json;
use tasuki::idempotency::{LockNumber, try_lock_all};

use crate::support::{World, body};

#[tokio::test]
async fn everybody_who_wants_the_same_entitlement_is_served() {
    const CLIENTS: usize = 40;
    const EACH: usize = 5;
    let world = World::start().await;
    let second = world.another().await;
    let mut wallet = body("u", "coins");
    wallet["quantity"] = json!(1000);
    world.grant("fill", &wallet).await;
    let mut take = body("u", "coins");
    take["quantity"] = json!(2);
    let clients = (0..CLIENTS).map(|client| {
        let host = [&world.host, &second][client % 2];
        let (world, take) = (&world, &take);
        async move {
            for turn in 0..EACH {
                let key = format!("{client}-{turn}");
                let path = "/v1/entitlements/consumes";
                let answer = world.post_to(host, path, &key, take).await;
                assert_eq!(answer.status, StatusCode::OK, "{}", answer.text);
            }
        }
    });
    join_all(clients).await;
    let left = world.get("/v1/users/u/entitlements/coins").await.json();
    assert_eq!(left["entitlement"]["quantity"], 600);
    assert_eq!(left["entitlement"]["version"], 201);
}

#[tokio::test]
async fn many_who_wait_for_a_held_entitlement_cost_nobody_else_anything() {
    const WAITERS: usize = 150;
    let world = World::start().await;
    let mut stalled = world.env.db.pool.begin().await.unwrap();
    let number = LockNumber::of(&["entitlement", "entitlement", "u", "s"]);
    let held = try_lock_all(&mut stalled, &[number]).await.unwrap();
    assert!(held.is_empty(), "nobody else holds it");

    let ask = body("u", "s");
    let waiting = join_all((0..WAITERS).map(|index| {
        let (world, ask) = (&world, &ask);
        async move { world.grant(&format!("w{index}"), ask).await }
    }));
    let others = async {
        let began = Instant::now();
        for index in 0..20 {
            let ask = body(&format!("other-{index}"), "s");
            let answer = world.grant(&format!("o{index}"), &ask).await;
            assert_eq!(answer.status, StatusCode::OK, "{}", answer.text);
        }
        let took = began.elapsed();
        stalled.rollback().await.unwrap();
        took
    };
    let (answers, took) = tokio::join!(waiting, others);
    assert!(took < Duration::from_secs(10), "20 others took {took:?}");
    let done = answers.iter().filter(|it| it.status == StatusCode::OK);
    assert_eq!(done.count(), 1);
    for answer in answers.iter().filter(|it| it.status != StatusCode::OK) {
        assert_eq!(answer.code(), "ENTITLEMENT_STATE_CONFLICT", "it was served");
    }
}
