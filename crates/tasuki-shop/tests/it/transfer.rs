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

/// A shop in which a transfer may wait for as long as a busy machine makes it.
async fn patient() -> World {
    World::with(|config| config.with_value("shop.warehouse.timeout", "30s").unwrap()).await
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
    }
    // Now there would be enough, both ways.
    world.receive("sword", 8).await;
    let moved = world
        .post("/v1/stock/transfers", "t3", &body(4, "main", "overflow"))
        .await;
    assert_eq!(moved.status, 200, "{}", moved.text);
    for (key, from, to) in [("t1", "main", "overflow"), ("t2", "overflow", "main")] {
        let again = world
            .post("/v1/stock/transfers", key, &body(3, from, to))
            .await;
        assert_eq!(
            (again.status.as_u16(), &*again.code()),
            (409, "STOCK_INSUFFICIENT")
        );
        assert_eq!(again.headers["idempotency-replayed"], "true");
    }
    assert_eq!(on_hand(&world).await, (6, 4));
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
    let world = patient().await;
    world.sell("sword", 100, 20).await;
    let moves = (0..16).map(|number| {
        let (from, to) = if number % 2 == 0 {
            ("main", "overflow")
        } else {
            ("overflow", "main")
        };
        let (world, key) = (&world, format!("t{number}"));
        async move {
            let body = body(2, from, to);
            let moved = world.post("/v1/stock/transfers", &key, &body).await;
            (from, moved.status.as_u16())
        }
    });
    let (mut out, mut back) = (0, 0);
    for (from, status) in join_all(moves).await {
        match (from, status) {
            // There is enough for all of these.
            ("main", status) => {
                assert_eq!(status, 200);
                out += 2;
            }
            (_, 200) => back += 2,
            (_, status) => assert_eq!(status, 409, "nothing is there yet"),
        }
    }
    assert_eq!(on_hand(&world).await, (20 - out + back, out - back));
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
    sqlx::raw_sql("ALTER TABLE shop.stock DROP CONSTRAINT full_up")
        .execute(&world.overflow.pool)
        .await
        .unwrap();
    let fits = world
        .post("/v1/stock/transfers", "t1", &body(2, "main", "overflow"))
        .await;
    assert_eq!(fits.status, 200, "our own error is not kept: {}", fits.text);
    assert_eq!(on_hand(&world).await, (3, 2));
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

#[tokio::test]
async fn transfers_that_wait_take_no_connection_from_anybody_else() {
    const MOVES: i64 = 12;
    let world = patient().await;
    world.sell("sword", 100, MOVES).await;
    world.sell("shield", 100, 1).await;
    let mut tx = world.env.db.pool.begin().await.unwrap();
    let lock = "SELECT FROM shop.stock WHERE stock_keeping_unit = 'sword' FOR UPDATE";
    sqlx::query(lock).execute(&mut *tx).await.unwrap();
    let moves = (0..MOVES).map(async |number| {
        let key = format!("t{number}");
        let body = body(1, "main", "overflow");
        let moved = world.post("/v1/stock/transfers", &key, &body).await;
        assert_eq!(moved.status, 200, "{}", moved.text);
    });
    let others = async {
        tasuki_testkit::eventually("they wait", async || {
            let waiting = "SELECT count(*) FROM pg_stat_activity
                           WHERE datname = current_database() AND wait_event_type = 'Lock'";
            (world.count(waiting).await >= 8).then_some(())
        })
        .await;
        let shown = world.get("/v1/stock/shield").await;
        assert_eq!(shown.status, 200, "{}", shown.text);
        let buys = crate::support::basket("ada", &["shield"], "card", "orchestrated");
        let order = world.order(&buys).await;
        world.ended(&order).await;
        tx.rollback().await.unwrap();
    };
    tokio::join!(join_all(moves), others);
    assert_eq!(on_hand(&world).await, (0, MOVES));
    world.matches().await;
}

#[tokio::test]
async fn a_warehouse_that_holds_goods_for_too_long_is_not_waited_for() {
    let world = World::with(|config| config.with_value("shop.warehouse.timeout", "3s").unwrap());
    let world = world.await;
    world.sell("sword", 100, 5).await;
    let move_one = async |key: &'static str| {
        let body = body(1, "main", "overflow");
        world.post("/v1/stock/transfers", key, &body).await
    };
    assert_eq!(move_one("t1").await.status, 200);
    let mut tx = world.overflow.pool.begin().await.unwrap();
    let lock = "SELECT FROM shop.stock FOR UPDATE";
    sqlx::query(lock).execute(&mut *tx).await.unwrap();
    assert_eq!(move_one("t2").await.status, 503);
    // The shop's own row is free, too.
    let free = "SELECT count(*) FROM (SELECT FROM shop.stock FOR UPDATE NOWAIT) AS free";
    assert_eq!(world.count(free).await, 1);
    tx.rollback().await.unwrap();
    assert_eq!(move_one("t2").await.status, 200);
    assert_eq!(on_hand(&world).await, (3, 2));
}

#[tokio::test]
async fn a_refused_transfer_of_what_nobody_has_leaves_nothing() {
    let world = World::start().await;
    for (key, from, to) in [("t1", "main", "overflow"), ("t2", "overflow", "main")] {
        let body = body(1, from, to);
        let refused = world.post("/v1/stock/transfers", key, &body).await;
        assert_eq!(refused.code(), "STOCK_INSUFFICIENT", "{}", refused.text);
    }
    assert_eq!(world.count("SELECT count(*) FROM shop.stock").await, 0);
    let kept = "SELECT count(*) FROM shop.idempotency_keys";
    assert_eq!(world.count(kept).await, 2, "the decision is kept");
}
