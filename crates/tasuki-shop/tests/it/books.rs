//! Reconciliation: nothing at rest, and whatever is wrong is found.

use futures_util::future::join_all;
use tasuki_shop::verify::CHECKS;

use crate::support::{FLOWS, World, basket};

#[tokio::test]
async fn nothing_is_found_at_rest_after_orders_of_every_kind() {
    let world = World::start().await;
    let methods = [
        "card",
        "test-decline",
        "test-late",
        "test-timeout",
        "test-duplicate",
    ];
    world.sell("sword", 100, 4).await;
    let orders = (0..20_usize).map(|number| {
        let (world, method) = (&world, methods[number % methods.len()]);
        let flow = FLOWS[number % 2];
        async move {
            let user = format!("u{}", number % 7);
            let order = world.order(&basket(&user, &["sword"], method, flow)).await;
            world.ended(&order).await
        }
    });
    join_all(orders).await;
    let seen = world.mismatches().await;
    assert_eq!(
        (seen["total"].as_i64(), seen["unfinished"].as_i64()),
        (Some(0), Some(0)),
        "{seen}"
    );
    let checks = seen["checks"].as_array().unwrap();
    assert_eq!(checks.len(), CHECKS.len());
}

/// A check, what makes it find something, and what puts that right.
type Plant = (&'static str, String, String);

/// `column` of `table`, for the rows of `order`.
fn plant(check: &'static str, order: &str, table: &str, wrong: &str, right: &str) -> Plant {
    let set = |to: &str| format!("UPDATE shop.{table} SET {to} WHERE order_id = '{order}'");
    (check, set(wrong), set(right))
}

fn in_orders(done: &str, undone: &str) -> Vec<Plant> {
    vec![
        plant(
            "charged_but_neither_granted_nor_refunded",
            done,
            "order_items",
            "grant_state = 'REVOKED'",
            "grant_state = 'GRANTED'",
        ),
        plant(
            "granted_but_not_paid",
            undone,
            "order_items",
            "grant_state = 'GRANTED'",
            "grant_state = NULL",
        ),
        plant(
            "undone_but_still_charged",
            undone,
            "payments",
            "state = 'PENDING'",
            "state = 'FAILED'",
        ),
        plant(
            "charged_another_amount",
            done,
            "payments",
            "amount = 101",
            "amount = 100",
        ),
        plant(
            "sold_but_not_taken_from_stock",
            done,
            "reservations",
            "state = 'RELEASED'",
            "state = 'COMMITTED'",
        ),
    ]
}

fn in_stock(undone: &str) -> Vec<Plant> {
    let approved = "WHERE outcome = 'APPROVED'";
    vec![
        (
            "undone_but_still_reserved",
            format!(
                "INSERT INTO shop.reservations (reservation_id, order_id, state, expires_at)
                 SELECT reservation_id, order_id, 'COMMITTED', now() FROM shop.orders
                 WHERE order_id = '{undone}'"
            ),
            format!("DELETE FROM shop.reservations WHERE order_id = '{undone}'"),
        ),
        (
            "stock_differs_from_its_moves",
            "UPDATE shop.stock SET on_hand = on_hand + 1".to_owned(),
            "UPDATE shop.stock SET on_hand = on_hand - 1".to_owned(),
        ),
        (
            "reserved_differs_from_reservations",
            "UPDATE shop.stock SET reserved = reserved + 1".to_owned(),
            "UPDATE shop.stock SET reserved = reserved - 1".to_owned(),
        ),
        (
            "provider_differs_from_payments",
            format!("UPDATE shop.simulated_charges SET refunded = amount {approved}"),
            format!("UPDATE shop.simulated_charges SET refunded = 0 {approved}"),
        ),
    ]
}

#[tokio::test]
async fn every_kind_of_mismatch_is_found_and_named() {
    let world = World::start().await;
    world.sell("sword", 100, 9).await;
    let done = basket("ada", &["sword"], "card", "orchestrated");
    let done = world.order(&done).await;
    world.ended(&done).await;
    let undone = basket("bob", &["sword"], "test-decline", "orchestrated");
    let undone = world.order(&undone).await;
    world.ended(&undone).await;
    world.matches().await;
    let plants = [in_orders(&done, &undone), in_stock(&undone)].concat();
    assert_eq!(plants.len(), CHECKS.len());
    for (check, wrong, right) in plants {
        world.execute(wrong).await;
        let seen = world.mismatches().await;
        let mut counts = seen["checks"].as_array().unwrap().iter();
        let count = counts.find(|it| it["check"] == check).unwrap();
        assert_eq!(count["count"], 1, "{check}: {seen}");
        let mut named = seen["found"].as_array().unwrap().iter();
        assert!(named.any(|it| it["check"] == check), "{check}: {seen}");
        world.execute(right).await;
        world.matches().await;
    }
}
