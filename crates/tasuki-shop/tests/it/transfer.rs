//! Stock moves between two databases: all of it, or none.

use futures_util::future::join_all;
use serde_json::{Value, json};

use crate::support::World;

fn body(quantity: i64, from: &str, to: &str) -> Value {
    json!({ "stock_keeping_unit": "sword", "quantity": quantity, "from": from, "to": to })
}

/// What is on hand in the two warehouses.
async fn on_hand(world: &World) -> (i64, i64) {
    let seen = world.get("/v1/stock/sword").await.json();
    let of = |at: usize| seen[at]["on_hand"].as_i64().unwrap();
    (of(0), of(1))
}

async fn prepared(world: &World) -> i64 {
    let ours = format!("('{}', '{}')", world.env.db.name(), world.overflow.name());
    world
        .count(format!(
            "SELECT count(*) FROM pg_prepared_xacts WHERE database IN {ours}"
        ))
        .await
}

#[tokio::test]
async fn stock_moves_from_one_database_to_the_other_and_back() {
    let world = World::start().await;
    world.sell("sword", 100, 10).await;
    let moved = world
        .post("/v1/stock/transfers", "t1", &body(4, "main", "overflow"))
        .await;
    assert_eq!(moved.status, 200, "{}", moved.text);
    assert_eq!(on_hand(&world).await, (6, 4));
    let again = world
        .post("/v1/stock/transfers", "t1", &body(4, "main", "overflow"))
        .await;
    assert_eq!(again.text, moved.text);
    assert_eq!(again.headers["idempotency-replayed"], "true");
    assert_eq!(on_hand(&world).await, (6, 4), "once");
    let back = world
        .post("/v1/stock/transfers", "t2", &body(3, "overflow", "main"))
        .await;
    assert_eq!(back.status, 200, "{}", back.text);
    assert_eq!(on_hand(&world).await, (9, 1));
    assert_eq!(prepared(&world).await, 0);
    world.matches().await;
}

#[tokio::test]
async fn more_than_there_is_moves_nothing_and_is_refused_the_same_way_again() {
    let world = World::start().await;
    world.sell("sword", 100, 2).await;
    for (key, from, to) in [("t1", "main", "overflow"), ("t2", "overflow", "main")] {
        let refused = world
            .post("/v1/stock/transfers", key, &body(3, from, to))
            .await;
        assert_eq!(
            (refused.status.as_u16(), &*refused.code()),
            (409, "STOCK_INSUFFICIENT")
        );
        world.sell("sword", 100, 0).await;
        let again = world
            .post("/v1/stock/transfers", key, &body(3, from, to))
            .await;
        assert_eq!(again.text, refused.text);
    }
    assert_eq!(on_hand(&world).await, (2, 0));
    assert_eq!(prepared(&world).await, 0);
    world.matches().await;
}

#[tokio::test]
async fn what_is_set_aside_for_an_order_does_not_move() {
    let world = World::start().await;
    world.sell("sword", 100, 3).await;
    world.execute("UPDATE shop.stock SET reserved = 2").await;
    let refused = world
        .post("/v1/stock/transfers", "t1", &body(2, "main", "overflow"))
        .await;
    assert_eq!(refused.code(), "STOCK_INSUFFICIENT");
    let moved = world
        .post("/v1/stock/transfers", "t2", &body(1, "main", "overflow"))
        .await;
    assert_eq!(moved.status, 200, "{}", moved.text);
}

#[tokio::test]
async fn transfers_both_ways_at_once_lose_and_make_nothing() {
    let world = World::start().await;
    world.sell("sword", 100, 20).await;
    let moves = (0..16).map(|number| {
        let (from, to) = if number % 2 == 0 {
            ("main", "overflow")
        } else {
            ("overflow", "main")
        };
        let (world, key) = (&world, format!("t{number}"));
        async move {
            world
                .post("/v1/stock/transfers", &key, &body(2, from, to))
                .await
                .status
        }
    });
    for status in join_all(moves).await {
        assert!(matches!(status.as_u16(), 200 | 409 | 503), "{status}");
    }
    let (main, overflow) = on_hand(&world).await;
    assert_eq!(main + overflow, 20, "{main} and {overflow}");
    tasuki_testkit::eventually("nothing is prepared", async || {
        (prepared(&world).await == 0).then_some(())
    })
    .await;
    world.matches().await;
}

#[tokio::test]
async fn a_warehouse_that_refuses_leaves_the_other_as_it_was() {
    let world = World::start().await;
    world.sell("sword", 100, 5).await;
    sqlx::raw_sql("ALTER TABLE shop.stock ADD CONSTRAINT full_up CHECK (on_hand <= 1) NOT VALID")
        .execute(&world.overflow.pool)
        .await
        .unwrap();
    let refused = world
        .post("/v1/stock/transfers", "t1", &body(2, "main", "overflow"))
        .await;
    assert_eq!(refused.status, 500, "{}", refused.text);
    assert_eq!(on_hand(&world).await, (5, 0));
    assert_eq!(prepared(&world).await, 0);
    let fits = world
        .post("/v1/stock/transfers", "t1", &body(2, "main", "overflow"))
        .await;
    assert_eq!(fits.status, 500, "our own error is not kept: {}", fits.text);
    world.matches().await;
}

#[tokio::test]
async fn without_a_second_warehouse_nothing_can_move() {
    let world = World::start().await;
    world.sell("sword", 100, 5).await;
    let mut env = world.env;
    env.config = env.config.with_value("shop.warehouse.url", "").unwrap();
    let own = tasuki_shop::config(&env.config).unwrap();
    let common = env.common().unwrap();
    let tables = tasuki_shop::tables(&common, &own).unwrap();
    let service = tasuki_shop::service(&common, &own, tables, &env.clock)
        .await
        .unwrap();
    let host = env.host(vec![service]).await.unwrap();
    let client = reqwest::Client::new();
    let refused = client
        .post(format!("http://{}/v1/stock/transfers", host.api))
        .bearer_auth(&world.key)
        .header("Idempotency-Key", "t1")
        .json(&body(1, "main", "overflow"))
        .send()
        .await
        .unwrap();
    assert_eq!(refused.status(), 409);
    assert!(
        refused
            .text()
            .await
            .unwrap()
            .contains("WAREHOUSE_NOT_CONFIGURED")
    );
}
