//! Inventory: never below zero, put back when nobody comes, and refused when it comes too late.

use futures_util::future::join_all;

use crate::support::{FLOWS, World, basket};

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
