//! Both flows: the same order ends the same way, whatever the payment provider, the shelf and
//! entitlement say.

use futures_util::future::join_all;
use serde_json::{Value, json};

use crate::support::{FLOWS, World, basket};

/// How an order ended, in everything that must not depend on who moved it.
#[derive(Debug, PartialEq)]
pub(crate) struct End {
    pub(crate) state: Value,
    pub(crate) failure: Value,
    pub(crate) granted: Vec<Value>,
    pub(crate) owned: Vec<bool>,
    pub(crate) payment: String,
    pub(crate) money: i64,
    pub(crate) stock: Vec<(i64, i64)>,
}

pub(crate) async fn end(world: &World, order: &str, user: &str, skus: &[&str]) -> End {
    let seen = world.ended(order).await;
    let items = seen["items"].as_array().unwrap().iter();
    let granted = items.map(|item| item["granted"].clone()).collect();
    let payment = sqlx::query_scalar("SELECT state FROM shop.payments WHERE order_id = $1::uuid")
        .bind(order)
        .fetch_one(&world.env.db.pool)
        .await
        .unwrap();
    let payment_id = seen["payment_id"].as_str().unwrap();
    let money = format!(
        "SELECT coalesce(sum(amount - refunded), 0)::bigint FROM shop.simulated_charges
         WHERE outcome = 'APPROVED' AND idem_key = '{payment_id}:charge'"
    );
    let mut stock = Vec::new();
    let mut owned = Vec::new();
    for sku in skus {
        stock.push(world.stock(sku).await);
        owned.push(world.owns(user, sku).await);
    }
    End {
        state: seen["state"].clone(),
        failure: seen["failure"]["code"].clone(),
        granted,
        owned,
        payment,
        money: world.count(money).await,
        stock,
    }
}

/// The end of an order of one piece, in both flows at once.
async fn ends(world: &World, method: &str, pieces: i64) -> [End; 2] {
    let each = FLOWS.map(async |flow| {
        let (user, sku) = (format!("u-{method}-{flow}"), format!("s-{method}-{flow}"));
        world.sell(&sku, 700, pieces).await;
        let order = world.order(&basket(&user, &[&sku], method, flow)).await;
        end(world, &order, &user, &[&sku]).await
    });
    let ended = join_all(each).await;
    <[End; 2]>::try_from(ended).unwrap()
}

#[tokio::test]
async fn both_flows_end_the_same_whatever_the_provider_does() {
    let world = World::start().await;
    let cases = [
        ("card", "COMPLETED", Value::Null, "COMPLETED"),
        ("test-duplicate", "COMPLETED", Value::Null, "COMPLETED"),
        ("test-late", "COMPLETED", Value::Null, "COMPLETED"),
        (
            "test-decline",
            "COMPENSATED",
            json!("PAYMENT_DECLINED"),
            "FAILED",
        ),
        (
            "test-timeout",
            "COMPENSATED",
            json!("PAYMENT_UNANSWERED"),
            "FAILED",
        ),
    ];
    let all = cases.map(async |(method, state, failure, payment)| {
        let [orchestrated, choreographed] = ends(&world, method, 3).await;
        assert_eq!(orchestrated, choreographed, "{method}");
        let is_done = state == "COMPLETED";
        let expected = End {
            state: json!(state),
            failure,
            granted: vec![if is_done {
                json!("GRANTED")
            } else {
                Value::Null
            }],
            owned: vec![is_done],
            payment: payment.to_owned(),
            money: if is_done { 700 } else { 0 },
            stock: vec![(if is_done { 2 } else { 3 }, 0)],
        };
        assert_eq!(orchestrated, expected, "{method}");
    });
    join_all(all).await;
    world.matches().await;
}

#[tokio::test]
async fn a_charge_that_nobody_ever_hears_of_is_refunded() {
    let world = World::start().await;
    let [orchestrated, choreographed] = ends(&world, "test-late-gone", 3).await;
    assert_eq!(orchestrated, choreographed);
    assert_eq!(orchestrated.state, "COMPENSATED");
    assert_eq!(
        (&*orchestrated.payment, orchestrated.money),
        ("REFUNDED", 0)
    );
    assert_eq!(orchestrated.failure, "PAYMENT_UNANSWERED");
    assert_eq!(orchestrated.stock, [(3, 0)]);
    world.matches().await;
}

#[tokio::test]
async fn what_is_not_on_the_shelf_is_refunded() {
    let world = World::start().await;
    let [orchestrated, choreographed] = ends(&world, "card", 0).await;
    assert_eq!(orchestrated, choreographed);
    assert_eq!(orchestrated.state, "COMPENSATED");
    assert_eq!(orchestrated.failure, "OUT_OF_STOCK");
    assert_eq!(
        (&*orchestrated.payment, orchestrated.money),
        ("REFUNDED", 0)
    );
    assert_eq!(orchestrated.owned, [false]);
    world.matches().await;
}

#[tokio::test]
async fn what_is_owned_already_is_refunded_and_stays_owned() {
    let world = World::start().await;
    let each = FLOWS.map(async |flow| {
        let user = format!("u-{flow}");
        let skus = [
            format!("a-{flow}"),
            format!("b-{flow}"),
            format!("c-{flow}"),
        ];
        for sku in &skus {
            world.sell(sku, 100, 2).await;
        }
        world.give(&user, &skus[1], None).await;
        let skus = [&*skus[0], &skus[1], &skus[2]];
        let order = world.order(&basket(&user, &skus, "card", flow)).await;
        end(&world, &order, &user, &skus).await
    });
    let ends = join_all(each).await;
    assert_eq!(ends[0], ends[1]);
    let end = &ends[0];
    assert_eq!(
        (&end.state, &end.failure),
        (&json!("COMPENSATED"), &json!("ALREADY_OWNED"))
    );
    assert_eq!(
        end.granted,
        [json!("REVOKED"), json!("REFUSED"), Value::Null]
    );
    assert_eq!(end.owned, [false, true, false], "only the gift is left");
    assert_eq!((&*end.payment, end.money), ("REFUNDED", 0));
    assert_eq!(end.stock, [(2, 0); 3]);
    world.matches().await;
}

#[tokio::test]
async fn what_is_used_up_is_taken_back_by_as_much_as_was_granted() {
    let world = World::start().await;
    let each = FLOWS.map(async |flow| {
        let (user, potion, sword) = (
            format!("u-{flow}"),
            format!("p-{flow}"),
            format!("s-{flow}"),
        );
        let price = json!({ "price": 10, "currency": "EUR", "consumable": true });
        world.product(&potion, &price).await;
        world.receive(&potion, 50).await;
        world.sell(&sword, 100, 1).await;
        world.give(&user, &potion, Some(5)).await;
        world.give(&user, &sword, None).await;
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
        let seen = world.ended(&order).await;
        assert_eq!(seen["failure"]["code"], "ALREADY_OWNED", "{seen}");
        assert_eq!(seen["amount"], 170);
        let path = format!("/v1/users/{user}/entitlements/{potion}");
        let held = world
            .entitlement
            .get_as(&world.entitlement_key, &path)
            .await;
        assert_eq!(held.json()["entitlement"]["quantity"], 5, "{}", held.text);
    });
    join_all(each).await;
    world.matches().await;
}

/// The states that an order has gone through.
fn states(seen: &Value) -> Vec<&str> {
    let history = seen["history"].as_array().unwrap().iter();
    history.map(|it| it["state"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn an_order_that_fails_shows_where_and_how_it_went_back() {
    const DECLINED: &[&str] = &[
        "STARTED",
        "ORDER_CREATED",
        "PAYMENT_PENDING",
        "PAYMENT_FAILED",
        "COMPENSATED",
    ];
    const SOLD_OUT: &[&str] = &[
        "STARTED",
        "ORDER_CREATED",
        "PAYMENT_PENDING",
        "PAYMENT_COMPLETED",
        "STOCK_FAILED",
        "COMPENSATING",
        "COMPENSATED",
    ];
    const OWNED: &[&str] = &[
        "STARTED",
        "ORDER_CREATED",
        "PAYMENT_PENDING",
        "PAYMENT_COMPLETED",
        "STOCK_RESERVED",
        "COMPENSATING",
        "COMPENSATING",
        "COMPENSATING",
        "COMPENSATED",
    ];
    let world = World::start().await;
    let each = FLOWS.map(async |flow| {
        for (method, pieces, owns, expected) in [
            ("test-decline", 1, false, DECLINED),
            ("card", 0, false, SOLD_OUT),
            ("card", 1, true, OWNED),
        ] {
            let (user, sku) = (format!("u-{flow}"), format!("s-{flow}-{pieces}-{owns}"));
            world.sell(&sku, 100, pieces).await;
            if owns {
                world.give(&user, &sku, None).await;
            }
            let order = world.order(&basket(&user, &[&sku], method, flow)).await;
            let seen = world.ended(&order).await;
            assert_eq!(states(&seen), expected, "{flow} {method}: {seen}");
        }
    });
    join_all(each).await;
}

#[tokio::test]
async fn an_order_shows_how_it_went_and_its_events_tell_of_it_once() {
    let world = World::start().await;
    let each = FLOWS.map(async |flow| {
        let sku = format!("s-{flow}");
        let price = json!({ "price": 250, "currency": "EUR", "consumable": true });
        world.product(&sku, &price).await;
        world.receive(&sku, 5).await;
        let body = json!({
            "user_id": "ada",
            "items": [{ "stock_keeping_unit": sku, "quantity": 2 }],
            "payment_method": "card",
            "flow": flow,
        });
        let order = world.order(&body).await;
        let seen = world.ended(&order).await;
        assert_eq!((&seen["amount"], &seen["currency"]), (&json!(500), &json!("EUR")));
        assert_eq!(
            states(&seen),
            [
                "STARTED",
                "ORDER_CREATED",
                "PAYMENT_PENDING",
                "PAYMENT_COMPLETED",
                "STOCK_RESERVED",
                "STOCK_RESERVED",
                "COMPLETED",
            ],
            "{flow}"
        );
        let told = format!(
            "SELECT count(*) FROM shop.stories WHERE correlation_id = '{order}' AND consumer IS NULL"
        );
        assert_eq!(world.count(told).await, 5, "{flow}");
        let paid = format!(
            "SELECT count(*) FROM shop.stories
             WHERE correlation_id = '{order}' AND event_type = 'PaymentCompleted' AND consumer IS NULL"
        );
        assert_eq!(world.count(paid).await, 1, "{flow}");
    });
    join_all(each).await;
}

#[tokio::test]
async fn no_change_of_an_order_but_the_last_touches_an_index() {
    let world = World::start().await;
    for flow in FLOWS {
        let sku = format!("s-{flow}");
        world.sell(&sku, 100, 1).await;
        let order = world.order(&basket("ada", &[&sku], "card", flow)).await;
        world.ended(&order).await;
    }
    let changes = "SELECT n_tup_upd FROM pg_stat_user_tables
                   WHERE (schemaname, relname) = ('shop', 'orders')";
    tasuki_testkit::eventually("the changes are counted", async || {
        (world.count(changes).await >= 10).then_some(())
    })
    .await;
    let touching = "SELECT n_tup_upd - n_tup_hot_upd FROM pg_stat_user_tables
                    WHERE (schemaname, relname) = ('shop', 'orders')";
    assert!(world.count(touching).await <= 2, "one of each order");
}

#[tokio::test]
async fn who_works_hears_of_jobs_that_others_have_left() {
    let world = World::start().await;
    let hears = tasuki_testkit::eventually("somebody listens", async || {
        let hears = "SELECT count(*) FROM pg_stat_activity
                     WHERE datname = current_database()
                         AND query LIKE '%LISTEN%' AND query LIKE '%shop.jobs%'
                         AND pid <> pg_backend_pid()";
        (world.count(hears).await > 0).then_some(())
    });
    let (_working, ()) = tokio::join!(world.another(), hears);
}

#[tokio::test]
async fn more_than_anybody_can_own_is_not_called_owned_already() {
    let world = World::start().await;
    let price = json!({ "price": 10, "currency": "EUR", "consumable": true });
    world.product("potion", &price).await;
    world.receive("potion", 50).await;
    world.give("ada", "potion", Some(i64::MAX)).await;
    for flow in FLOWS {
        let order = basket("ada", &["potion"], "card", flow);
        let order = world.order(&order).await;
        let seen = world.ended(&order).await;
        assert_eq!(seen["failure"]["code"], "GRANT_FAILED", "{seen}");
    }
    world.matches().await;
}
