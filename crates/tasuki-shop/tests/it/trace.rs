//! One purchase is one trace, whoever moves it: its saga, its jobs, its events, and its calls.

use serde_json::Value;
use tasuki_service::telemetry::{self, LogTarget};
use tempfile::NamedTempFile;

use crate::support::{FLOWS, World, basket};

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
        let told = format!(
            "SELECT count(*) FROM (
                SELECT aggregate_key, traceparent FROM shop.outbox_events
                UNION ALL
                SELECT aggregate_key, traceparent FROM shop.outbox_published
             ) AS told
             WHERE aggregate_key = 'order:{order}'"
        );
        let in_trace = format!("{told} AND split_part(traceparent, '-', 2) = '{trace}'");
        assert_eq!(world.count(&told).await, 5, "{flow}");
        assert_eq!(world.count(&in_trace).await, 5, "{flow}");
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
