//! Payments that fail: operators are told, and a refund that is refused waits for a person.

use futures_util::future::join_all;
use tasuki::dlq::{Filter, Letters};
use tasuki::jobs::Jobs;
use tasuki::saga::{By, Sagas};
use tasuki_testkit::eventually;
use uuid::Uuid;

use crate::support::{FLOWS, World, basket};

#[tokio::test]
async fn a_payment_that_fails_for_good_tells_an_operator_with_its_id() {
    let world = World::start().await;
    let cases = [
        ("test-timeout", "PAYMENT_UNANSWERED"),
        ("test-decline", "PAYMENT_DECLINED"),
    ];
    for (method, kind) in cases {
        for flow in FLOWS {
            let sku = format!("{method}-{flow}");
            world.sell(&sku, 100, 1).await;
            let order = world.order(&basket("ada", &[&sku], method, flow)).await;
            let payment = world.ended(&order).await["payment_id"].clone();
            let notices = world.notices().await;
            let told: Vec<_> = notices
                .iter()
                .filter(|it| it["payment_id"] == payment)
                .collect();
            assert_eq!(told.len(), 1, "{method} {flow}: {notices:?}");
            assert_eq!(told[0]["kind"], kind);
            let message = told[0]["message"].as_str().unwrap();
            assert!(message.contains(payment.as_str().unwrap()), "{message}");
        }
    }
}

/// Orders that were paid, can't be granted, and whose refunds are refused.
async fn stuck(world: &World) -> Vec<String> {
    let each = FLOWS.map(async |flow| {
        let sku = format!("s-{flow}");
        world.sell(&sku, 100, 0).await;
        let order = world
            .order(&basket("ada", &[&sku], "test-refund-refused", flow))
            .await;
        world.until(&order, &["NEEDS_ATTENTION"]).await;
        order
    });
    join_all(each).await
}

#[tokio::test]
async fn a_refund_that_is_refused_for_good_waits_for_a_person_and_goes_on_after() {
    let world = World::start().await;
    let orders = stuck(&world).await;
    let notices = world.notices().await;
    for order in &orders {
        let payment = world.look(order).await["payment_id"].clone();
        let told = notices
            .iter()
            .find(|it| it["payment_id"] == payment)
            .unwrap();
        assert_eq!(told["kind"], "REFUND_FAILED");
    }
    let charged = "SELECT sum(amount - refunded)::bigint FROM shop.simulated_charges";
    assert_eq!(world.count(charged).await, 200, "the money is still there");

    // The fault is gone, and somebody says so.
    world
        .execute("UPDATE shop.simulated_charges SET refuses_refund = FALSE")
        .await;
    let schema = &world.tables.schema;
    let mut tx = world.env.db.pool.begin().await.unwrap();
    let saga: Uuid = orders[0].parse().unwrap();
    let by = By::new("ada", "the provider is back");
    Sagas::new(schema)
        .resume(&mut tx, saga.into(), &by)
        .await
        .unwrap();
    let redriven = Letters::new(schema, &[])
        .redrive(
            &mut tx,
            &Filter::default(),
            "ada",
            Some("the provider is back"),
        )
        .await
        .unwrap();
    assert_eq!(redriven.letters, 1, "{redriven:?}");
    tx.commit().await.unwrap();
    Jobs::new(schema).ring();

    for order in &orders {
        assert_eq!(world.ended(order).await["state"], "COMPENSATED");
    }
    assert_eq!(world.count(charged).await, 0);
    world.matches().await;
}

#[tokio::test]
async fn a_charge_that_comes_after_its_refund_is_refused() {
    let world = World::taking_orders_only().await;
    let mut orders = Vec::new();
    for flow in FLOWS {
        let sku = format!("s-{flow}");
        world.sell(&sku, 100, 1).await;
        let order = world.order(&basket("ada", &[&sku], "card", flow)).await;
        let payment = world.look(&order).await["payment_id"].clone();
        // What a refund leaves at the provider that finds no charge.
        let sql = "INSERT INTO shop.simulated_charges (idem_key, outcome, amount, currency, payment_method)";
        let key = format!("{}:charge", payment.as_str().unwrap());
        world
            .execute(format!("{sql} VALUES ('{key}', 'VOIDED', 0, '', '')"))
            .await;
        orders.push(order);
    }
    let _working = world.another().await;
    for order in &orders {
        let seen = world.ended(order).await;
        assert_eq!(seen["state"], "COMPENSATED", "{seen}");
    }
    let charged = "SELECT sum(amount - refunded)::bigint FROM shop.simulated_charges";
    assert_eq!(world.count(charged).await, 0);
    world.matches().await;
}

#[tokio::test]
async fn an_order_whose_grant_is_never_answered_is_undone() {
    let world = World::with(|config| {
        config
            .with_value("shop.payment.undo-attempts", 1000)
            .unwrap()
    })
    .await;
    let each = FLOWS.map(async |flow| {
        let (user, sku) = (format!("u-{flow}"), format!("s-{flow}"));
        world.sell(&sku, 100, 1).await;
        let held = world.hold(&user, &sku).await;
        let order = world.order(&basket(&user, &[&sku], "card", flow)).await;
        // Both attempts to grant are over, and so is the patience.
        eventually("the way back has begun", async || {
            let sql = if flow == "orchestrated" {
                "SELECT count(*) FROM shop.sagas WHERE state = 'COMPENSATING'"
            } else {
                "SELECT count(*) FROM shop.jobs WHERE kind = 'shop.revoke'"
            };
            (world.count(sql).await > 0).then_some(())
        })
        .await;
        drop(held);
        let seen = world.ended(&order).await;
        assert_eq!(seen["failure"]["code"], "GRANT_FAILED", "{seen}");
        assert!(!world.owns(&user, &sku).await, "{flow}");
    });
    join_all(each).await;
    world.matches().await;
}
