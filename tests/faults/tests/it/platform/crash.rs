//! Every crash point on the way of a grant, one by one: dead there, and another goes on.

use super::Platform;
use super::processes::answered_more;

/// Between two durable effects, in the order of the way.
const POINTS: [(&str, &str); 12] = [
    ("entitlement", "entitlement.before_commit"),
    ("entitlement", "entitlement.committed"),
    ("entitlement", "lease.claimed"),
    ("entitlement", "outbox.published"),
    ("entitlement", "lease.settled"),
    ("notification", "notification.before_commit"),
    ("notification", "notification.committed"),
    ("notification", "consumer.handled"),
    ("notification", "lease.claimed"),
    ("notification", "notification.delivered"),
    ("notification", "lease.settled"),
    ("notification", "lease.buried"),
];

#[tokio::test]
async fn a_process_that_dies_at_any_point_of_the_way_loses_and_doubles_nothing() {
    let platform = Platform::start("crash").await;
    let nodes = vec![
        platform.node("entitlement").await,
        platform.node("notification").await,
    ];
    let calling = platform.callers(&nodes).call();
    for (service, point) in POINTS {
        answered_more(&calling, 10).await;
        // Not the first time: it has served for a while. It works beside the others until it dies.
        let mut doomed = platform.doomed(service, point, 3).await;
        calling.knows_also(&nodes, &doomed);
        doomed.is_killed().await;
        calling.knows(&nodes);
    }
    let decided = calling.stop().await;
    platform.keeps_its_promises(&decided, &nodes).await;
}
