//! One purchase is one trace, whoever moves it: its saga, its jobs, its events, and its calls.

use serde_json::Value;
use tasuki_service::telemetry::{self, LogTarget};
use tasuki_testkit::eventually;
use tempfile::NamedTempFile;

use crate::support::{FLOWS, World, basket};

/// Events of an order that were told, and those that were told in `trace`.
async fn told(world: &World, order: &str, trace: &str) -> (i64, i64) {
    let told = format!(
        "SELECT count(*) FROM (
            SELECT aggregate_key, traceparent FROM shop.outbox_events
            UNION ALL
            SELECT aggregate_key, traceparent FROM shop.outbox_published
         ) AS told
         WHERE aggregate_key = 'order:{order}'"
    );
    let in_trace = format!("{told} AND split_part(traceparent, '-', 2) = '{trace}'");
    (world.count(&told).await, world.count(&in_trace).await)
}

#[tokio::test]
async fn a_purchase_is_one_trace() {
    let world = World::start().await;
    let log = NamedTempFile::new().unwrap();
    let settings = world.env.common().unwrap().telemetry;
    let target = LogTarget::File(log.path().to_owned());
    let _telemetry = telemetry::init(&settings, &target, "test".to_owned()).unwrap();
    // Orders of several traces at once: they share batches.
    let mut orders = Vec::new();
    for number in 0..6_usize {
        let flow = FLOWS[number % 2];
        let trace = format!("4bf92f3577b34da6a3ce929d0e0e473{number}");
        let (user, sku) = (format!("u{number}"), format!("s{number}"));
        world.sell(&sku, 100, 1).await;
        let body: Value = basket(&user, &[&sku], "card", flow);
        let order = world.order_in(&trace, &body).await;
        orders.push((order, trace, flow));
    }
    for (order, trace, flow) in &orders {
        assert_eq!(world.ended(order).await["state"], "COMPLETED");
        assert_eq!(told(&world, order, trace).await, (5, 5), "{flow}");
        // And so does what entitlement did about it.
        let granted = format!(
            "SELECT count(*) FROM (
                SELECT traceparent, event_id FROM entitlement.outbox_events
                UNION ALL
                SELECT traceparent, event_id FROM entitlement.outbox_published
             ) AS told
             JOIN entitlement.entitlement_audit AS audit ON audit.audit_id = told.event_id
             WHERE audit.source_id = '{order}' AND split_part(traceparent, '-', 2) = '{trace}'"
        );
        assert_eq!(world.count(&granted).await, 1, "{flow}");
    }
}

#[tokio::test]
async fn what_undoes_a_purchase_whose_errand_has_died_is_in_its_trace() {
    // After its first attempt an errand waits, for longer than this takes.
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
    let log = NamedTempFile::new().unwrap();
    let settings = world.env.common().unwrap().telemetry;
    let target = LogTarget::File(log.path().to_owned());
    let _telemetry = telemetry::init(&settings, &target, "test".to_owned()).unwrap();
    let held = world.hold("ada", "shield").await;
    let mut orders = Vec::new();
    for (number, (sku, method)) in [("sword", "test-late-gone"), ("shield", "card")]
        .into_iter()
        .enumerate()
    {
        world.sell(sku, 100, 1).await;
        let trace = format!("4bf92f3577b34da6a3ce929d0e0e473{number}");
        let body = basket("ada", &[sku], method, "choreographed");
        let order = world.order_in(&trace, &body).await;
        orders.push((order, trace));
    }
    eventually("the charge and the grant wait", async || {
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
    // Created, refunded, cancelled; and, if it was paid, paid, reserved, revoked and released, too.
    for ((order, trace), events) in orders.iter().zip([3, 7]) {
        assert_eq!(world.ended(order).await["state"], "COMPENSATED");
        assert_eq!(told(&world, order, trace).await, (events, events));
    }
}
