//! Cancellation: before the confirmation everything is undone, after it nothing is.

use futures_util::future::join_all;
use serde_json::{Value, json};

use crate::flows::{End, end};
use crate::support::{FLOWS, World, basket};

#[tokio::test]
async fn an_order_that_is_cancelled_while_it_is_paid_is_undone() {
    let world = World::with(|config| {
        let config = config
            .with_value("shop.payment.max-attempts", 1000)
            .unwrap();
        config.with_value("shop.payment.timeout", "50ms").unwrap()
    })
    .await;
    let each = FLOWS.map(async |flow| {
        let sku = format!("s-{flow}");
        world.sell(&sku, 100, 1).await;
        let order = world
            .order(&basket("ada", &[&sku], "test-timeout", flow))
            .await;
        world.until(&order, &["PAYMENT_PENDING"]).await;
        let cancelled = world.cancel(&order).await;
        assert_eq!(cancelled.status, 202, "{}", cancelled.text);
        let seen = world.ended(&order).await;
        assert_eq!(seen["state"], "COMPENSATED", "{flow}");
        assert_eq!(seen["failure"]["code"], "CANCELLED", "{seen}");
        assert_eq!(world.stock(&sku).await, (1, 0));
        let again = world.cancel(&order).await;
        assert_eq!(
            (again.status.as_u16(), &again.json()["state"]),
            (202, &json!("COMPENSATED"))
        );
    });
    join_all(each).await;
    // It was the customer who did not want to wait.
    assert!(world.notices("").await.is_empty());
    world.matches().await;
}

#[tokio::test]
async fn an_order_that_is_cancelled_while_it_is_granted_is_undone() {
    let world = World::with(|config| {
        config
            .with_value("shop.payment.max-attempts", 1000)
            .unwrap()
            .with_value("shop.payment.undo-attempts", 1000)
            .unwrap()
    })
    .await;
    let each = FLOWS.map(async |flow| {
        let (user, sku) = (format!("u-{flow}"), format!("s-{flow}"));
        world.sell(&sku, 100, 1).await;
        let held = world.hold(&user, &sku).await;
        let order = world.order(&basket(&user, &[&sku], "card", flow)).await;
        world.until(&order, &["STOCK_RESERVED"]).await;
        assert_eq!(world.stock(&sku).await, (1, 1));
        let cancelled = world.cancel(&order).await;
        assert_eq!(cancelled.status, 202, "{}", cancelled.text);
        drop(held);
        let seen = world.ended(&order).await;
        assert_eq!(seen["state"], "COMPENSATED", "{seen}");
        assert_eq!(seen["failure"]["code"], "CANCELLED", "{seen}");
        assert_eq!(world.stock(&sku).await, (1, 0));
        assert!(!world.owns(&user, &sku).await, "{flow}");
    });
    join_all(each).await;
    world.matches().await;
}

#[tokio::test]
async fn an_order_that_is_completed_stays_so() {
    let world = World::start().await;
    let each = FLOWS.map(async |flow| {
        let sku = format!("s-{flow}");
        world.sell(&sku, 100, 1).await;
        let order = world.order(&basket("ada", &[&sku], "card", flow)).await;
        assert_eq!(world.ended(&order).await["state"], "COMPLETED");
        let refused = world.cancel(&order).await;
        assert_eq!(refused.status, 409, "{}", refused.text);
        assert_eq!(refused.code(), "ORDER_STATE_CONFLICT");
        assert_eq!(world.look(&order).await["state"], "COMPLETED");
        assert!(world.owns("ada", &sku).await);
    });
    join_all(each).await;
    world.matches().await;
}

#[tokio::test]
async fn an_order_that_is_cancelled_before_it_has_begun_is_undone() {
    let world = World::taking_orders_only().await;
    world.sell("sword", 100, 5).await;
    let mut orders = Vec::new();
    for method in ["card", "test-decline", "test-timeout"] {
        for flow in FLOWS {
            let order = world.order(&basket("ada", &["sword"], method, flow)).await;
            assert_eq!(world.cancel(&order).await.status, 202);
            orders.push(order);
        }
    }
    let _working = world.another().await;
    for order in orders {
        let end = end(&world, &order, "ada", &["sword"]).await;
        let expected = End {
            state: json!("COMPENSATED"),
            failure: json!("CANCELLED"),
            granted: vec![Value::Null],
            owned: vec![false],
            payment: "FAILED".to_owned(),
            money: 0,
            stock: vec![(5, 0)],
        };
        assert_eq!(end, expected);
    }
    let charged = "SELECT count(*) FROM shop.simulated_charges WHERE outcome <> 'VOIDED'";
    assert_eq!(world.count(charged).await, 0, "nobody was asked for money");
    assert!(world.notices("").await.is_empty());
    world.matches().await;
}
