//! Payments that fail: operators are told, and a refund that is refused waits for a person.

use futures_util::future::join_all;
use tasuki::dlq::{Filter, Letters};
use tasuki::jobs::Jobs;
use tasuki::saga::{By, Close, Sagas};
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
            let notices = world.notices(&format!("?kind={kind}")).await;
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
    // A card that is declined asks nobody to do anything.
    let kinds = world.notices("").await.into_iter();
    let kinds: Vec<_> = kinds.map(|it| it["kind"].clone()).collect();
    assert_eq!(kinds, ["PAYMENT_UNANSWERED", "PAYMENT_UNANSWERED"]);
}

#[tokio::test]
async fn notices_are_shown_page_by_page_and_go_when_they_are_old() {
    let world = World::taking_orders_only().await;
    let plant = |kind: &str, many: u32| {
        format!(
            "INSERT INTO shop.operator_notices (kind, payment_id, order_id, message)
             SELECT '{kind}', gen_random_uuid(), gen_random_uuid(), number::text
             FROM generate_series(1, {many}) AS number"
        )
    };
    world.execute(plant("REFUND_FAILED", 3)).await;
    world.execute(plant("PAYMENT_DECLINED", 200)).await;
    world.execute(plant("PAYMENT_UNANSWERED", 2)).await;
    let (mut seen, mut query) = (Vec::new(), "?limit=2".to_owned());
    loop {
        let path = format!("/v1/notices{query}");
        let page = world.host.get_as(&world.operator, &path).await;
        assert_eq!(page.status, 200, "{}", page.text);
        let page = page.json();
        let notices = page["notices"].as_array().unwrap().iter();
        seen.extend(notices.map(|it| it["kind"].as_str().unwrap().to_owned()));
        let Some(next) = page["next"].as_i64() else {
            break;
        };
        query = format!("?limit=2&before={next}");
    }
    let (unanswered, refund) = ("PAYMENT_UNANSWERED", "REFUND_FAILED");
    assert_eq!(seen, [unanswered, unanswered, refund, refund, refund]);
    assert_eq!(world.notices("?kind=PAYMENT_DECLINED").await.len(), 100);
    for query in ["?kind=x", "?limit=0", "?limit=501", "?more=1"] {
        let path = format!("/v1/notices{query}");
        let refused = world.host.get_as(&world.operator, &path).await;
        assert_eq!(refused.code(), "BAD_REQUEST", "{query}");
    }
    let old = "UPDATE shop.operator_notices SET told_at = now() - interval '91 days'
               WHERE kind = 'PAYMENT_DECLINED'";
    world.execute(old).await;
    let _cleaning = world.another().await;
    eventually("what is old is gone", async || {
        let left = "SELECT count(*) FROM shop.operator_notices";
        (world.count(left).await == 5).then_some(())
    })
    .await;
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

/// Orders that only a person can move, and that are paid.
async fn parked(world: &World) -> i64 {
    let seen = world.mismatches().await;
    let mut checks = seen["checks"].as_array().unwrap().iter();
    let check = checks.find(|it| it["check"] == "charged_but_parked");
    check.unwrap()["count"].as_i64().unwrap()
}

#[tokio::test]
async fn an_order_that_a_person_gives_up_ends_and_its_money_is_not_forgotten() {
    let world = World::with(|config| {
        let key = "shop.retention.reconcile-interval";
        config.with_value(key, "1s").unwrap()
    });
    let world = world.await;
    let orders = stuck(&world).await;
    let schema = &world.tables.schema;
    let mut tx = world.env.db.pool.begin().await.unwrap();
    let saga: Uuid = orders[0].parse().unwrap();
    let (by, how) = (By::new("ada", "too old"), Close::Compensated);
    let sagas = Sagas::new(schema);
    sagas.close(&mut tx, saga.into(), how, &by).await.unwrap();
    let discarded = Letters::new(schema, &[])
        .discard(&mut tx, &Filter::default(), "ada", "too old")
        .await
        .unwrap();
    assert_eq!(discarded.letters, 1, "{discarded:?}");
    tx.commit().await.unwrap();

    let seen = world.ended(&orders[0]).await;
    assert_eq!(seen["state"], "COMPENSATED", "{seen}");
    let told = "SELECT count(*) FROM shop.stories WHERE event_type = 'OrderCancelled' AND consumer IS NULL";
    assert_eq!(world.count(told).await, 1, "its buyer is told");
    let seen = world.mismatches().await;
    let found = seen["found"].as_array().unwrap();
    let is_found = |check: &str, order: &str| {
        let mut found = found.iter();
        found.any(|it| it["check"] == check && it["order_id"] == order)
    };
    assert!(is_found("undone_but_still_charged", &orders[0]), "{seen}");
    assert!(is_found("charged_but_parked", &orders[1]), "{seen}");
    // However the money comes back.
    world
        .execute(
            "UPDATE shop.simulated_charges SET refunded = amount;
             UPDATE shop.payments SET state = 'REFUNDED';
             UPDATE shop.orders SET state = 'COMPENSATED', ended_at = now() WHERE ended_at IS NULL",
        )
        .await;
    world.matches().await;
}

#[tokio::test]
async fn a_refund_that_is_refused_for_good_waits_for_a_person_and_goes_on_after() {
    let world = World::start().await;
    let orders = stuck(&world).await;
    let notices = world.notices("").await;
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
    assert_eq!(parked(&world).await, 2);

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

#[tokio::test]
async fn a_provider_that_is_slow_holds_up_nobody_who_needs_entitlement() {
    let world = World::with(|config| {
        let one = ["shop.payment.concurrency", "shop.entitlement.concurrency"];
        let mut config = config.with_value("shop.payment.timeout", "30s").unwrap();
        for key in one {
            config = config.with_value(key, 1).unwrap();
        }
        config
            .with_value("shop.payment.max-attempts", 1000)
            .unwrap()
    });
    let world = world.await;
    world.sell("sword", 100, 2).await;
    let order = async |user: &str, method: &str| {
        let body = basket(user, &["sword"], method, "choreographed");
        world.order(&body).await
    };
    let held = world.hold("ada", "sword").await;
    let paid = order("ada", "card").await;
    world.until(&paid, &["STOCK_RESERVED"]).await;
    order("bob", "test-timeout").await;
    eventually("the provider is asked", async || {
        let asked = "SELECT count(*) FROM shop.jobs
                     WHERE kind = 'shop.charge' AND status = 'PROCESSING'";
        (world.count(asked).await == 1).then_some(())
    })
    .await;
    drop(held);
    assert_eq!(world.ended(&paid).await["state"], "COMPLETED");
    let unanswered = "SELECT count(*) FROM shop.jobs
                      WHERE kind = 'shop.charge' AND status = 'PROCESSING' AND attempt_count = 0";
    assert_eq!(
        world.count(unanswered).await,
        1,
        "it is asked all the while"
    );
}

#[tokio::test]
async fn what_is_owed_goes_before_what_is_new() {
    let world = World::start().await;
    stuck(&world).await;
    let refund = "SELECT priority::bigint FROM shop.jobs WHERE kind = 'shop.refund'";
    let (high, normal) = (world.count(refund).await, 2);
    assert!(high < normal, "{high}");
}
