//! `tasuki verify`: what an order told is followed as far as what a grant told, and what is too much to
//! be counted is said to be.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use std::time::Duration;

use serde_json::Value;
use tasuki_testkit::eventually_within;

use crate::shopping::bought;
use crate::support::World;

/// Generous: everything has just started.
const LIMIT: Duration = Duration::from_secs(60);

async fn verified(world: &World) -> Value {
    let verify = ["verify", "--json", "--settle", "0s"];
    let found = world.run(world.joined(&verify)).await;
    serde_json::from_str(&found.out).unwrap()
}

#[tokio::test]
async fn what_an_order_told_is_followed_from_its_end_to_the_notifications() {
    let world = World::new();
    let up = world.up().await;
    let order = bought(&up, "ann").await;
    let found = eventually_within(LIMIT, "everything is told", async || {
        let found = verified(&world).await;
        (found["orders"]["under_way"] == 0 && found["under_way"] == 0).then_some(found)
    })
    .await;
    assert_eq!(found["problem_count"], 0, "{found}");
    // Created, paid and completed; of what moves an order inside the shop nobody is told.
    assert_eq!(
        (
            &found["orders"]["events"],
            &found["orders"]["sent"],
            &found["orders"]["not_wanted"]
        ),
        (&5.into(), &3.into(), &2.into()),
        "{found}"
    );

    let pool = up.database().await;
    for (sql, what) in [
        (
            "DELETE FROM notification.notifications_sent WHERE type = 'OrderCompleted'",
            "a notification is missing",
        ),
        (
            "DELETE FROM notification.processed_events WHERE event_id IN (
                SELECT event_id FROM shop.stories WHERE event_type = 'StockReserved'
             )",
            "published, and never processed",
        ),
        (
            "DELETE FROM shop.outbox_published WHERE event_id IN (
                SELECT event_id FROM shop.stories WHERE event_type = 'PaymentCompleted'
             )",
            "a change without an event",
        ),
        (
            "DELETE FROM shop.stories WHERE event_type = 'OrderCompleted'",
            "an order that has ended and told nobody",
        ),
    ] {
        sqlx::raw_sql(sql).execute(&pool).await.unwrap();
        let found = verified(&world).await;
        let mut problems = found["problems"].as_array().unwrap().iter();
        let is_named = |it: &Value| it["about"].as_str().unwrap().contains(&order);
        assert!(
            problems.any(|it| it["what"] == what && is_named(it)),
            "{what}: {found}"
        );
    }
}

#[tokio::test]
async fn more_torn_entitlements_than_are_counted_are_said_to_be_more() {
    let world = World::new();
    let up = world.up().await;
    let pool = up.database().await;
    sqlx::raw_sql(
        "INSERT INTO entitlement.entitlements (
            user_id, stock_keeping_unit, status, version, source, source_id, updated_at
         )
         SELECT 'u' || n, 's', 'ACTIVE', 1, 'purchase', 'o', now()
         FROM generate_series(1, 1000) AS n",
    )
    .execute(&pool)
    .await
    .unwrap();
    let found = verified(&world).await;
    assert_eq!(
        (&found["problem_count"], &found["is_more"]),
        (&1000.into(), &false.into())
    );
    sqlx::raw_sql(
        "INSERT INTO entitlement.entitlements (
            user_id, stock_keeping_unit, status, version, source, source_id, updated_at
         )
         VALUES ('one-more', 's', 'ACTIVE', 1, 'purchase', 'o', now())",
    )
    .execute(&pool)
    .await
    .unwrap();
    let found = verified(&world).await;
    assert_eq!(
        (&found["problem_count"], &found["is_more"]),
        (&1000.into(), &true.into())
    );
    let text = world.run(world.joined(&["verify"])).await;
    assert_eq!(text.code, Some(1));
    assert!(text.out.contains("at least 1000 problems"), "{text:?}");
    assert!(text.err.contains("the first 1000 are counted"), "{text:?}");
}
