//! Inventory: never below zero, put back when nobody comes, and refused when it comes too late.

use std::collections::HashMap;

use futures_util::future::join_all;
use tasuki_testkit::eventually_within;

use crate::support::{FLOWS, LIMIT, World, basket};

#[tokio::test]
async fn stock_is_never_sold_twice_and_never_below_zero() {
    const PIECES: usize = 5;
    const BUYERS: usize = 24;
    // How fast the machine is, is not the question.
    let world = World::with(|config| config.with_value("shop.payment.timeout", "30s").unwrap());
    let world = world.await;
    let _another = world.another().await;
    world
        .sell("sword", 100, i64::try_from(PIECES).unwrap())
        .await;
    world
        .sell("shield", 100, i64::try_from(PIECES).unwrap())
        .await;
    let orders = (0..BUYERS).map(|buyer| {
        let (world, flow) = (&world, FLOWS[buyer % 2]);
        // In both orders of names: nobody waits in a circle.
        let skus = if buyer % 3 == 0 {
            ["sword", "shield"]
        } else {
            ["shield", "sword"]
        };
        async move {
            let order = world
                .order(&basket(&format!("u{buyer}"), &skus, "card", flow))
                .await;
            world.ended(&order).await
        }
    });
    let ends = join_all(orders).await;
    let done = ends
        .iter()
        .filter(|end| end["state"] == "COMPLETED")
        .count();
    assert_eq!(done, PIECES);
    for end in ends.iter().filter(|end| end["state"] != "COMPLETED") {
        assert_eq!(end["failure"]["code"], "OUT_OF_STOCK", "{end}");
    }
    for sku in ["sword", "shield"] {
        assert_eq!(world.stock(sku).await, (0, 0));
    }
    world.matches().await;
}

#[tokio::test]
async fn goods_that_nobody_comes_for_go_back_and_the_order_is_undone() {
    let world = World::with(|config| {
        config
            .with_value("shop.payment.max-attempts", 1000)
            .unwrap()
    })
    .await;
    let each = FLOWS.map(async |flow| {
        let (user, sku) = (format!("u-{flow}"), format!("s-{flow}"));
        world.sell(&sku, 100, 1).await;
        let held = world.hold(&user, &sku).await;
        let order = world.order(&basket(&user, &[&sku], "card", flow)).await;
        world.until(&order, &["STOCK_RESERVED"]).await;
        let sql = "UPDATE shop.reservations SET expires_at = now() WHERE order_id";
        world.execute(format!("{sql} = '{order}'")).await;
        tasuki_testkit::eventually("it is back on the shelf", async || {
            (world.stock(&sku).await == (1, 0)).then_some(())
        })
        .await;
        drop(held);
        let seen = world.ended(&order).await;
        assert_eq!(seen["failure"]["code"], "RESERVATION_EXPIRED", "{seen}");
        assert!(!world.owns(&user, &sku).await);
        assert_eq!(world.stock(&sku).await, (1, 0), "once");
    });
    join_all(each).await;
    world.matches().await;
}

#[tokio::test]
async fn a_reservation_that_comes_after_its_release_is_refused() {
    let world = World::taking_orders_only().await;
    let mut orders = Vec::new();
    for flow in FLOWS {
        let sku = format!("s-{flow}");
        world.sell(&sku, 100, 1).await;
        let order = world.order(&basket("ada", &[&sku], "card", flow)).await;
        let reservation = world.look(&order).await["reservation_id"].clone();
        let reservation = reservation.as_str().unwrap();
        // What a release leaves that finds nothing to release.
        let sql = "INSERT INTO shop.reservations (reservation_id, order_id, state, expires_at)";
        world
            .execute(format!(
                "{sql} VALUES ('{reservation}', '{order}', 'RELEASED', now())"
            ))
            .await;
        orders.push((order, sku));
    }
    let _working = world.another().await;
    for (order, sku) in orders {
        let seen = world.ended(&order).await;
        assert_eq!(seen["state"], "COMPENSATED", "{seen}");
        assert_eq!(seen["failure"]["code"], "RESERVATION_EXPIRED", "{seen}");
        assert_eq!(world.stock(&sku).await, (1, 0));
    }
    let charged = "SELECT sum(amount - refunded)::bigint FROM shop.simulated_charges";
    assert_eq!(world.count(charged).await, 0);
    world.matches().await;
}

#[tokio::test]
async fn goods_go_back_while_somebody_holds_others_and_no_two_wait_for_each_other() {
    let world = World::with(|config| {
        let patient = config.with_value("shop.payment.max-attempts", 1000);
        patient.unwrap()
    });
    let world = world.await;
    // In the order of their ends: those that are put back first are held, and after those come others,
    // of which the names are before and after.
    let skus = ["b", "a", "c"];
    let mut entitlements = Vec::new();
    for sku in skus {
        world.sell(sku, 100, 1).await;
        entitlements.push(world.hold("ada", sku).await);
        let order = world
            .order(&basket("ada", &[sku], "card", "orchestrated"))
            .await;
        world.until(&order, &["STOCK_RESERVED"]).await;
    }
    let mut tx = world.env.db.pool.begin().await.unwrap();
    let lock = "SELECT FROM shop.stock WHERE stock_keeping_unit = 'a' FOR UPDATE";
    sqlx::query(lock).execute(&mut *tx).await.unwrap();
    world
        .execute(
            "UPDATE shop.reservations AS held SET expires_at = now() - CASE item.stock_keeping_unit
                 WHEN 'b' THEN interval '3 s' WHEN 'a' THEN interval '2 s' ELSE interval '1 s'
             END
             FROM shop.reservation_items AS item WHERE item.reservation_id = held.reservation_id",
        )
        .await;
    for sku in ["b", "c"] {
        tasuki_testkit::eventually("it is back on the shelf", async || {
            (world.stock(sku).await == (1, 0)).then_some(())
        })
        .await;
    }
    // Whoever puts goods back has nothing of what we want next.
    let next = "SELECT FROM shop.stock WHERE stock_keeping_unit IN ('b', 'c') FOR UPDATE NOWAIT";
    sqlx::query(next).execute(&mut *tx).await.unwrap();
    tx.rollback().await.unwrap();
    tasuki_testkit::eventually("the last is back, too", async || {
        (world.stock("a").await == (1, 0)).then_some(())
    })
    .await;
}

/// Every order in which A may be set aside and put back while B is set aside and sold: the large letter
/// is the first of its two, the small one the second.
const INTERLEAVINGS: [&str; 6] = ["AaBb", "ABab", "ABba", "BAab", "BAba", "BbAa"];

/// Two orders of one SKU, of which A is undone and B is done, in this order.
async fn interleaved(world: &World, turns: &str, flow: &str) {
    let sku = format!("s-{turns}-{flow}");
    let user = |buyer: char| format!("{buyer}-{turns}-{flow}");
    let (mut held, mut orders) = (HashMap::new(), HashMap::new());
    let (mut on_hand, mut reserved) = (5, 0);
    world.sell(&sku, 100, on_hand).await;
    for turn in turns.chars() {
        let buyer = turn.to_ascii_uppercase();
        if turn == buyer {
            held.insert(buyer, world.hold(&user(buyer), &sku).await);
            let body = basket(&user(buyer), &[&sku], "card", flow);
            let order = world.order(&body).await;
            world.until(&order, &["STOCK_RESERVED"]).await;
            orders.insert(buyer, order);
            reserved += 1;
        } else {
            let order = &orders[&buyer];
            let end = if buyer == 'A' {
                assert_eq!(world.cancel(order).await.status, 202);
                "COMPENSATED"
            } else {
                on_hand -= 1;
                "COMPLETED"
            };
            drop(held.remove(&buyer));
            assert_eq!(world.ended(order).await["state"], end);
            reserved -= 1;
        }
        let stock = world.stock(&sku).await;
        assert_eq!(stock, (on_hand, reserved), "{flow}, {turns}, after {turn}");
    }
}

#[tokio::test]
async fn an_order_that_is_undone_and_one_that_is_done_share_a_sku_in_any_order() {
    let world = World::with(|config| {
        config
            .with_value("shop.payment.max-attempts", 1000)
            .unwrap()
            .with_value("shop.payment.undo-attempts", 1000)
            .unwrap()
    })
    .await;
    for turns in INTERLEAVINGS {
        join_all(FLOWS.map(|flow| interleaved(&world, turns, flow))).await;
    }
    world.matches().await;
}

#[tokio::test]
async fn goods_go_back_however_many_others_are_held() {
    let world = World::start().await;
    // More than are looked for at a time: a hundred of goods of their own, a hundred and one of the same.
    world
        .execute(
            "INSERT INTO shop.stock (stock_keeping_unit, on_hand, reserved)
             SELECT 'held-' || n, 200, CASE n WHEN 0 THEN 101 ELSE 1 END
             FROM generate_series(0, 100) AS n
             UNION ALL
             SELECT 'free', 1, 1;
             INSERT INTO shop.reservations
             SELECT gen_random_uuid(), gen_random_uuid(), 'HELD', now() + interval '1 hour'
             FROM generate_series(1, 202);
             INSERT INTO shop.reservation_items
             SELECT
                reservation_id,
                CASE WHEN n = 1 THEN 'free' WHEN n > 101 THEN 'held-0' ELSE 'held-' || (n - 1) END,
                1
             FROM (
                SELECT reservation_id, row_number() OVER () AS n FROM shop.reservations
             ) AS numbered",
        )
        .await;
    let mut tx = world.env.db.pool.begin().await.unwrap();
    let lock = "SELECT FROM shop.stock WHERE stock_keeping_unit <> 'free' FOR UPDATE";
    sqlx::query(lock).execute(&mut *tx).await.unwrap();
    world
        .execute(
            "UPDATE shop.reservations AS held SET expires_at = now() - CASE item.stock_keeping_unit
                 WHEN 'free' THEN interval '1 minute' ELSE interval '1 hour'
             END
             FROM shop.reservation_items AS item WHERE item.reservation_id = held.reservation_id",
        )
        .await;
    eventually_within(LIMIT, "it is back on the shelf", async || {
        (world.stock("free").await == (1, 0)).then_some(())
    })
    .await;
    tx.rollback().await.unwrap();
    let reserved = "SELECT sum(reserved)::bigint FROM shop.stock";
    eventually_within(LIMIT, "the others are back, too", async || {
        (world.count(reserved).await == 0).then_some(())
    })
    .await;
}
