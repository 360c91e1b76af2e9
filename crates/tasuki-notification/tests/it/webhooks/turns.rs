//! Whose turn it is: endpoints that get nothing cost little, however many they are, and a place that
//! is left is taken at once.

use serde_json::json;
use tasuki_testkit::eventually;

use super::{Receiver, SENT, lenient, lenient_with, path, register};
use crate::gauges::Gauges;
use crate::support::granted;

#[tokio::test]
async fn claims_come_to_rest_beside_many_endpoints_that_get_nothing_and_serve_those_behind_them() {
    let gauges = Gauges::default();
    let _here = metrics::set_default_local_recorder(&gauges);
    let world = lenient().await;
    // More than one claim looks at, and before any that is registered now.
    world
        .execute(
            "WITH many AS (
                 INSERT INTO notification.webhook_endpoints (
                     endpoint_id, user_id, url, description, types, status, paused_at, secret
                 )
                 SELECT ('00000000-0000-7000-8000-' || lpad(nth::text, 12, '0'))::uuid, 'many',
                     'https://example.com/', '', '{}', 'PAUSED', now(), ''
                 FROM generate_series(1, 600) AS nth
                 RETURNING endpoint_id, user_id
             )
             INSERT INTO notification.notifications_live (
                 notification_id, event_id, user_id, type, channel, endpoint_id, aggregate_key,
                 version, occurred_at, payload_json
             )
             SELECT gen_random_uuid(), gen_random_uuid(), user_id, 'EntitlementGranted', 'webhook',
                 endpoint_id, 'a', 1, now(), '{}'
             FROM many",
        )
        .await;
    let rests = || {
        let rests = gauges.get("tasuki_worker_ticks_total", "notification.webhooks idle");
        rests.unwrap_or_default()
    };
    let before = rests();
    eventually("it has rested a few times", async || {
        (rests() >= before + 3.0).then_some(())
    })
    .await;

    let (receiver, address) = Receiver::start(&[]).await;
    register(&world, address).await;
    world.tell(&granted("u", "s", 1)).await;
    receiver.got_at_least(1).await;
    world.counts(1, SENT).await;
}

#[tokio::test]
async fn a_failed_attempt_leaves_its_place_to_the_next_message_at_once() {
    let world = lenient_with(|config| {
        config
            .with_value("notification.delivery.poll-interval", "1s")
            .unwrap()
            .with_value("notification.webhook.endpoint-concurrency", 1)
            .unwrap()
            .with_value("notification.webhook.circuit-failures", 100)
            .unwrap()
    })
    .await;
    let answers = [500; 5].map(|status| (status, None));
    let (_receiver, address) = Receiver::start(&answers).await;
    let webhook = register(&world, address).await;
    world.post(&path(&webhook, "/pause"), &json!({})).await;
    for version in 1..=5 {
        world.tell(&granted("u", "s", version)).await;
    }
    let owed = "SELECT count(*) FROM notification.notifications_live WHERE status = 'PENDING'";
    world.counts(5, owed).await;
    world.post(&path(&webhook, "/resume"), &json!({})).await;
    world.counts(5, SENT).await;
    let apart: f64 = sqlx::query_scalar(
        "SELECT extract(epoch FROM max(attempted_at) - min(attempted_at))::float8
         FROM notification.webhook_attempts WHERE outcome = 'failed'",
    )
    .fetch_one(&world.env.db.pool)
    .await
    .unwrap();
    assert!(apart < 2.0, "not one per poll: {apart}");
}

#[tokio::test]
async fn what_was_sent_and_what_is_withdrawn_are_settled_together_and_no_claim_is_called_lost() {
    let gauges = Gauges::default();
    let _here = metrics::set_default_local_recorder(&gauges);
    let world = lenient().await;
    let (_receiver, address) = Receiver::start(&[]).await;
    register(&world, address).await;
    // The first withdrawal fails.
    world
        .execute(
            "CREATE SEQUENCE notification.withdrawals;
             CREATE FUNCTION notification.not_at_first() RETURNS trigger LANGUAGE plpgsql AS $$
             BEGIN
                 IF nextval('notification.withdrawals') = 1 THEN
                     RAISE EXCEPTION 'not at first';
                 END IF;
                 RETURN NEW;
             END $$;
             CREATE TRIGGER not_at_first BEFORE INSERT ON notification.dead_letters
                 FOR EACH ROW EXECUTE FUNCTION notification.not_at_first()",
        )
        .await;
    // While one settlement waits, others gather for the next.
    let mut held = world.env.db.pool.begin().await.unwrap();
    sqlx::query("LOCK TABLE notification.notifications_sent IN SHARE ROW EXCLUSIVE MODE")
        .execute(&mut *held)
        .await
        .unwrap();
    world.tell(&granted("u", "first", 1)).await;
    world
        .blocked(1, "INSERT INTO notification.notifications_sent")
        .await;
    world.tell(&granted("u", "second", 1)).await;
    world
        .execute(
            "INSERT INTO notification.notifications_live (
                 notification_id, event_id, user_id, type, channel, endpoint_id, aggregate_key,
                 version, occurred_at, payload_json
             )
             SELECT gen_random_uuid(), gen_random_uuid(), 'v', 'EntitlementGranted', 'webhook',
                 gen_random_uuid(), 'a', 1, now(), '{}'",
        )
        .await;
    let ended = |how: &str| gauges.get("tasuki_notification_deliveries_total", how);
    eventually(
        "two are sent, and one has nobody to be sent to",
        async || {
            let all = (ended("webhook sent"), ended("webhook withdrawn"));
            (all == (Some(2.0), Some(1.0))).then_some(())
        },
    )
    .await;
    held.rollback().await.unwrap();

    world.counts(2, SENT).await;
    let gone = "SELECT count(*) FROM notification.dead_letters WHERE discarded_at IS NOT NULL";
    world.counts(1, gone).await;
    let tried = "SELECT last_value FROM notification.withdrawals";
    assert_eq!(world.count(tried).await, 2);
    let lost = gauges.get("tasuki_lease_lock_lost_total", "notification.webhooks");
    assert_eq!(lost.unwrap_or_default(), 0.0);
}
