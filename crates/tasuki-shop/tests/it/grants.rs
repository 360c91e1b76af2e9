//! Grants and what undoes them: what is this order's is taken back, once and whenever that is, and
//! nothing else.

use futures_util::future::join_all;
use serde_json::json;
use sqlx::{Postgres, Transaction};
use tasuki_testkit::eventually;

use crate::support::{FLOWS, World, basket};

async fn patient() -> World {
    World::with(|config| {
        config
            .with_value("shop.payment.max-attempts", 1000)
            .unwrap()
    })
    .await
}

/// An order of `a-…` and `b-…` of which the first is granted, and which can't be undone while both are
/// held.
async fn parked(
    world: &World,
    user: &str,
    flow: &str,
) -> (String, [Transaction<'static, Postgres>; 2]) {
    let skus = [format!("a-{user}"), format!("b-{user}")];
    for sku in &skus {
        world.sell(sku, 100, 1).await;
    }
    let second = world.hold(user, &skus[1]).await;
    let skus = [&*skus[0], &skus[1]];
    let order = world.order(&basket(user, &skus, "card", flow)).await;
    eventually("the first is granted", async || {
        world.owns(user, skus[0]).await.then_some(())
    })
    .await;
    let first = world.hold(user, skus[0]).await;
    assert_eq!(world.cancel(&order).await.status, 202);
    world.until(&order, &["NEEDS_ATTENTION"]).await;
    (order, [first, second])
}

#[tokio::test]
async fn what_an_order_was_granted_is_taken_back_when_its_key_is_forgotten() {
    let world = patient().await;
    let each = FLOWS.map(async |flow| parked(&world, &format!("u-{flow}"), flow).await);
    let (orders, held): (Vec<_>, Vec<_>) = join_all(each).await.into_iter().unzip();
    // It took longer than a day until somebody came.
    world
        .execute("DELETE FROM entitlement.idempotency_keys")
        .await;
    drop(held);
    world.resume(&orders).await;
    for (order, flow) in orders.iter().zip(FLOWS) {
        let seen = world.ended(order).await;
        assert_eq!(seen["failure"]["code"], "CANCELLED", "{seen}");
        for sku in ["a", "b"] {
            let user = format!("u-{flow}");
            assert!(!world.owns(&user, &format!("{sku}-{user}")).await, "{flow}");
        }
    }
    let of =
        |what: &str| format!("SELECT count(*) FROM entitlement.entitlement_audit WHERE {what}");
    let taken = of("action = 'REVOKE'");
    assert_eq!(world.count(taken).await, 2, "each once");
    let never = of("stock_keeping_unit LIKE 'b-%'");
    assert_eq!(
        world.count(never).await,
        0,
        "granted in order to be revoked"
    );
    world.matches().await;
}

#[tokio::test]
async fn what_another_purchase_gave_meanwhile_is_not_taken_back() {
    let world = patient().await;
    let each = FLOWS.map(async |flow| parked(&world, &format!("u-{flow}"), flow).await);
    let (orders, held): (Vec<_>, Vec<_>) = join_all(each).await.into_iter().unzip();
    drop(held);
    for user in FLOWS.map(|flow| format!("u-{flow}")) {
        let sku = format!("a-{user}");
        world.take(&user, &sku).await;
        world.give(&user, &sku, None).await;
    }
    world.resume(&orders).await;
    for (order, flow) in orders.iter().zip(FLOWS) {
        assert_eq!(world.ended(order).await["state"], "COMPENSATED");
        let user = format!("u-{flow}");
        assert!(world.owns(&user, &format!("a-{user}")).await, "{flow}");
    }
    world.matches().await;
}

#[tokio::test]
async fn what_is_used_up_is_granted_and_taken_back_once_when_keys_are_forgotten() {
    let world = patient().await;
    let ways = FLOWS.map(|flow| [(flow, true), (flow, false)]);
    let each = ways.into_iter().flatten().map(|(flow, completes)| {
        let world = &world;
        async move {
            let user = format!("u-{flow}-{completes}");
            let (potion, sword) = (format!("p-{user}"), format!("s-{user}"));
            let price = json!({ "price": 10, "currency": "EUR", "consumable": true });
            world.product(&potion, &price).await;
            world.receive(&potion, 50).await;
            world.sell(&sword, 100, 1).await;
            let held = world.hold(&user, &sword).await;
            let body = json!({
                "user_id": user,
                "items": [
                    { "stock_keeping_unit": potion, "quantity": 7 },
                    { "stock_keeping_unit": sword, "quantity": 1 },
                ],
                "payment_method": "card",
                "flow": flow,
            });
            let order = world.order(&body).await;
            eventually("the potion is granted", async || {
                (world.left(&user, &potion).await == 7).then_some(())
            })
            .await;
            // A day later.
            let older = "UPDATE shop.orders SET created_at = created_at - INTERVAL '1 day'";
            world
                .execute(format!("{older} WHERE order_id = '{order}'"))
                .await;
            let forget = "DELETE FROM entitlement.idempotency_keys WHERE idem_key LIKE";
            world.execute(format!("{forget} '{order}:%'")).await;
            if !completes {
                assert_eq!(world.cancel(&order).await.status, 202);
            }
            drop(held);
            let seen = world.ended(&order).await;
            let (state, left) = match completes {
                true => ("COMPLETED", 7),
                false => ("COMPENSATED", 0),
            };
            assert_eq!(seen["state"], state, "{seen}");
            assert_eq!(world.left(&user, &potion).await, left, "{seen}");
        }
    });
    join_all(each).await;
    world.matches().await;
}
