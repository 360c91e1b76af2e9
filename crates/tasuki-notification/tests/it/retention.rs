//! What is old goes; what waits never does.

use tasuki_testkit::eventually;

use crate::support::{World, granted};

#[tokio::test]
async fn old_notifications_go_when_they_are_sent_or_dead_and_stay_while_they_wait() {
    let world = World::with(|config| {
        config
            .with_value("notification.delivery.enabled", false)
            .unwrap()
            .with_value("notification.retention.cleanup-interval", "1s")
            .unwrap()
    })
    .await;
    for user in ["sent", "failed", "waiting", "young"] {
        world.tell(&granted(user, "s", 1)).await;
    }
    world
        .counts(4, "SELECT count(*) FROM notification.notifications_live")
        .await;
    world
        .execute(
            "UPDATE notification.notifications_live SET created_at = now() - interval '31 days'
             WHERE user_id <> 'young';
             UPDATE notification.notifications_live
             SET status = 'FAILED', next_retry_at = 'infinity' WHERE user_id = 'failed';
             WITH gone AS (
                 DELETE FROM notification.notifications_live WHERE user_id = 'sent' RETURNING *
             )
             INSERT INTO notification.notifications_sent (
                 notification_id, event_id, user_id, type, channel, aggregate_key, version,
                 occurred_at, payload_json, attempt_count, created_at
             )
             SELECT notification_id, event_id, user_id, type, channel, aggregate_key, version,
                 occurred_at, payload_json, 1, created_at FROM gone;",
        )
        .await;
    eventually("what may go is gone", async || {
        let users: Vec<String> =
            sqlx::query_scalar("SELECT user_id FROM notification.notifications ORDER BY user_id")
                .fetch_all(&world.env.db.pool)
                .await
                .unwrap();
        (users == ["waiting", "young"]).then_some(())
    })
    .await;
}
