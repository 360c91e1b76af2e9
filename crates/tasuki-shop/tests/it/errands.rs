//! Errands of the choreographed flow that run twice, or die: forward and back are exclusive, and an
//! order that nobody moves any more does not exist.

use tasuki_testkit::eventually;

use crate::flows::end;
use crate::support::{World, basket};

#[tokio::test]
async fn a_grant_that_was_told_is_not_given_up_when_it_runs_again() {
    let world = World::start().await;
    world.keep_jobs().await;
    world.sell("sword", 100, 1).await;
    let order = basket("ada", &["sword"], "card", "choreographed");
    let order = world.order(&order).await;
    assert_eq!(world.ended(&order).await["state"], "COMPLETED");
    // Entitlement is away while it runs again, for the last time.
    let held = world.hold("ada", "sword").await;
    world.run_again("shop.grant", &order).await;
    drop(held);
    world.idle().await;
    assert_eq!(world.look(&order).await["state"], "COMPLETED");
    assert!(world.owns("ada", "sword").await);
    assert!(world.notices("").await.is_empty());
    world.matches().await;
}

/// A provider that refuses every refund, until it does not.
async fn refuse_refunds(world: &World) {
    world
        .execute(
            "CREATE FUNCTION shop.refuse() RETURNS trigger LANGUAGE plpgsql AS
             'BEGIN NEW.refuses_refund = TRUE; RETURN NEW; END';
             CREATE TRIGGER refuse BEFORE INSERT ON shop.simulated_charges
             FOR EACH ROW EXECUTE FUNCTION shop.refuse()",
        )
        .await;
}

#[tokio::test]
async fn a_charge_that_was_given_up_is_not_completed_when_it_runs_again() {
    let world = World::with(|config| {
        config
            .with_value("shop.payment.max-attempts", 1)
            .unwrap()
            .with_value("shop.payment.undo-attempts", 1000)
            .unwrap()
            .with_value("shop.payment.timeout", "500ms")
            .unwrap()
    })
    .await;
    world.keep_jobs().await;
    refuse_refunds(&world).await;
    world.sell("sword", 100, 1).await;
    let order = basket("ada", &["sword"], "test-late", "choreographed");
    let order = world.order(&order).await;
    eventually("its refund is promised", async || {
        let promised = "SELECT count(*) FROM shop.kept WHERE kind = 'shop.refund'";
        (world.count(promised).await == 1).then_some(())
    })
    .await;
    // Now the provider would say that it was approved.
    world.run_again("shop.charge", &order).await;
    world
        .execute("UPDATE shop.simulated_charges SET refuses_refund = FALSE")
        .await;
    let end = end(&world, &order, "ada", &["sword"]).await;
    assert_eq!(end.state, "COMPENSATED", "{end:?}");
    assert_eq!((&*end.payment, end.money), ("REFUNDED", 0));
    assert_eq!((end.owned, end.stock), (vec![false], vec![(1, 0)]));
    let told = "SELECT count(*) FROM shop.stories
                WHERE event_type = 'PaymentCompleted' AND consumer IS NULL";
    assert_eq!(world.count(told).await, 0);
    world.matches().await;
}

#[tokio::test]
async fn an_errand_that_dies_on_the_way_forward_is_undone() {
    // After its first attempt it waits, for longer than this takes.
    let world = World::with(|config| {
        config
            .with_value("shop.payment.max-attempts", 1000)
            .unwrap()
            .with_value("shop.payment.timeout", "500ms")
            .unwrap()
            .with_value("shop.payment.backoff-base", "1h")
            .unwrap()
            .with_value("shop.payment.backoff-max", "1h")
            .unwrap()
    })
    .await;
    let mut orders = Vec::new();
    let held = world.hold("ada", "shield").await;
    for (sku, method) in [("sword", "test-late-gone"), ("shield", "card")] {
        world.sell(sku, 100, 1).await;
        let order = basket("ada", &[sku], method, "choreographed");
        orders.push((world.order(&order).await, sku));
    }
    eventually("both wait", async || {
        let waiting = "SELECT count(*) FROM shop.jobs
                       WHERE kind IN ('shop.charge', 'shop.grant') AND attempt_count = 1";
        (world.count(waiting).await == 2).then_some(())
    })
    .await;
    drop(held);
    // As if every process had died of it that took it up.
    world
        .execute("UPDATE shop.jobs SET lost_count = 10, next_retry_at = clock_timestamp()")
        .await;
    for ((order, sku), (payment, failure)) in orders.iter().zip([
        ("REFUNDED", "PAYMENT_UNANSWERED"),
        ("REFUNDED", "GRANT_FAILED"),
    ]) {
        let end = end(&world, order, "ada", &[*sku]).await;
        assert_eq!(end.state, "COMPENSATED", "{end:?}");
        assert_eq!(end.failure, failure, "{end:?}");
        assert_eq!((&*end.payment, end.money), (payment, 0));
        assert_eq!((end.owned, end.stock), (vec![false], vec![(1, 0)]));
    }
    world.matches().await;
}

#[tokio::test]
async fn an_outage_that_is_shorter_than_the_patience_undoes_nothing() {
    let world = World::with(|config| {
        config
            .with_value("shop.payment.max-attempts", 1)
            .unwrap()
            .with_value("shop.payment.keep-trying", "1h")
            .unwrap()
    })
    .await;
    let tries = [
        (
            "orchestrated",
            "SELECT coalesce(max((entry ->> 'tries')::bigint), 0)
             FROM shop.sagas, json_array_elements(story -> 'steps') AS entry",
        ),
        (
            "choreographed",
            "SELECT coalesce(max(attempt_count), 0)::bigint FROM shop.jobs
             WHERE kind = 'shop.grant'",
        ),
    ];
    for (flow, tries) in tries {
        let sku = format!("s-{flow}");
        world.sell(&sku, 100, 1).await;
        let held = world.hold("ada", &sku).await;
        let order = world.order(&basket("ada", &[&sku], "card", flow)).await;
        eventually("it was tried often enough", async || {
            (world.count(tries).await >= 5).then_some(())
        })
        .await;
        drop(held);
        assert_eq!(world.ended(&order).await["state"], "COMPLETED", "{flow}");
        assert!(world.owns("ada", &sku).await);
    }
    world.matches().await;
}

#[tokio::test]
async fn what_the_previous_release_enqueues_is_run() {
    let world = World::start().await;
    // It had one queue for everything.
    world
        .execute(
            "CREATE FUNCTION shop.as_before() RETURNS trigger LANGUAGE plpgsql AS
             'BEGIN NEW.queue = ''orders''; RETURN NEW; END';
             CREATE TRIGGER as_before BEFORE INSERT ON shop.jobs
             FOR EACH ROW EXECUTE FUNCTION shop.as_before()",
        )
        .await;
    world.sell("sword", 100, 2).await;
    // Charged and granted; and, as it is owned by then, charged, refused and refunded.
    for state in ["COMPLETED", "COMPENSATED"] {
        let order = basket("ada", &["sword"], "card", "choreographed");
        let order = world.order(&order).await;
        assert_eq!(world.ended(&order).await["state"], state);
    }
    world.idle().await;
    world.matches().await;
}
