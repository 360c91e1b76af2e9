//! What is old goes; what waits never does.

use tasuki_service::Config;
use tasuki_testkit::eventually;

use crate::delivery::failing;
use crate::gauges::Gauges;
use crate::logged::Errors;
use crate::support::{World, granted};

const STUCK: &str = "tasuki_notification_stuck_rows";

/// Nothing is delivered, and what is old goes at once.
fn quick(config: Config) -> Config {
    config
        .with_value("notification.delivery.enabled", false)
        .unwrap()
        .with_value("notification.retention.cleanup-interval", "1s")
        .unwrap()
}

/// Of users "sent", "failed", "waiting" and "young", all but the last from 31 days ago.
async fn four(world: &World) {
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
}

async fn users(world: &World) -> Vec<String> {
    sqlx::query_scalar("SELECT user_id FROM notification.notifications ORDER BY user_id")
        .fetch_all(&world.env.db.pool)
        .await
        .unwrap()
}

#[tokio::test]
async fn old_notifications_go_when_they_are_sent_or_dead_and_stay_while_they_wait() {
    let (gauges, errors) = (Gauges::default(), Errors::default());
    let _here = metrics::set_default_local_recorder(&gauges);
    let _told = tracing::subscriber::set_default(errors.clone());
    let world = World::with(quick).await;
    four(&world).await;
    eventually("what may go is gone", async || {
        (users(&world).await == ["waiting", "young"]).then_some(())
    })
    .await;
    eventually("the one that waits is counted", async || {
        (gauges.get(STUCK, "") == Some(1.0)).then_some(())
    })
    .await;
    eventually("somebody is told", async || {
        let wait = "notifications wait for longer than they are kept";
        errors.all().iter().any(|it| it == wait).then_some(())
    })
    .await;
    assert_eq!(users(&world).await, ["waiting", "young"]);
}

#[tokio::test]
async fn what_was_processed_and_attempted_is_kept_for_as_long_as_notifications_and_no_longer() {
    let world = World::with(quick).await;
    world
        .execute(
            "INSERT INTO notification.processed_events (event_id, consumer, processed_at)
             SELECT gen_random_uuid(), days::text, now() - days * interval '1 day'
             FROM (VALUES (29), (31)) AS ago (days);
             INSERT INTO notification.webhook_attempts (
                 attempt_id, endpoint_id, notification_id, attempted_at, outcome, took_ms, error
             )
             SELECT gen_random_uuid(), gen_random_uuid(), gen_random_uuid(),
                 now() - days * interval '1 day', 'failed', 1, days::text
             FROM (VALUES (29), (31)) AS ago (days);",
        )
        .await;
    let processed = "SELECT count(*) FROM notification.processed_events WHERE consumer = '31'";
    let attempted = "SELECT count(*) FROM notification.webhook_attempts WHERE error = '31'";
    world.counts(0, processed).await;
    world.counts(0, attempted).await;
    let kept = "SELECT (SELECT count(*) FROM notification.processed_events WHERE consumer = '29')
        + (SELECT count(*) FROM notification.webhook_attempts WHERE error = '29')";
    assert_eq!(world.count(kept).await, 2);
}

/// The statement that removes, and the letters that it closes.
const RETIRED: &str = include_str!("../../src/store/retired.sql");

#[tokio::test]
async fn a_dead_notification_that_is_exactly_as_old_as_they_are_kept_stays() {
    let world = World::with(|config| {
        quick(config)
            .with_value("notification.retention.enabled", false)
            .unwrap()
    })
    .await;
    world.tell(&granted("edge", "s", 1)).await;
    let live = "SELECT count(*) FROM notification.notifications_live";
    world.counts(1, live).await;
    // The time stands still in a transaction.
    let mut tx = world.env.db.pool.begin().await.unwrap();
    for (microseconds, retired) in [(0, 0), (1, 1)] {
        sqlx::query(
            "UPDATE notification.notifications_live
             SET status = 'FAILED', next_retry_at = 'infinity',
                 created_at = now() - interval '720 hours'
                     - $1 * interval '1 microsecond'",
        )
        .bind(f64::from(microseconds))
        .execute(&mut *tx)
        .await
        .unwrap();
        let gone: i64 = sqlx::query_scalar(RETIRED)
            .bind(30 * 24)
            .bind(10_i64)
            .fetch_one(&mut *tx)
            .await
            .unwrap();
        assert_eq!(gone, retired, "older by {microseconds} µs");
    }
}

#[tokio::test]
async fn retention_that_is_off_removes_nothing_and_still_counts_what_waits() {
    let gauges = Gauges::default();
    let _here = metrics::set_default_local_recorder(&gauges);
    let world = World::with(|config| {
        quick(config)
            .with_value("notification.retention.enabled", false)
            .unwrap()
    })
    .await;
    four(&world).await;
    // Both workers have looked, and reported what they had left.
    let left = ("tasuki_upkeep_default_rows", "notifications_sent");
    eventually("both have looked", async || {
        let looked = gauges.get(STUCK, "") == Some(1.0) && gauges.get(left.0, left.1) == Some(1.0);
        looked.then_some(())
    })
    .await;
    let all = ["failed", "sent", "waiting", "young"];
    assert_eq!(users(&world).await, all);
}

#[tokio::test]
async fn a_dead_notification_goes_with_its_letter_and_one_that_is_kept_keeps_it() {
    let world = World::with(|config| {
        failing(config)
            .with_value("notification.retention.cleanup-interval", "1s")
            .unwrap()
    })
    .await;
    for user in ["fail-old", "fail-edge"] {
        world.tell(&granted(user, "s", 1)).await;
    }
    let open = "SELECT count(*) FROM notification.notification_dlq";
    world.counts(2, open).await;
    world
        .execute(
            "UPDATE notification.notifications_live
             SET created_at = now() - interval '30 days' + CASE user_id
                 WHEN 'fail-edge' THEN interval '1 minute' ELSE interval '-1 second'
             END",
        )
        .await;
    world.counts(1, open).await;
    assert_eq!(users(&world).await, ["fail-edge"]);
    let closed = "SELECT count(*) FROM notification.dead_letters AS letter
        JOIN notification.dead_letter_audit AS audit USING (letter_id)
        WHERE letter.discarded_at IS NOT NULL AND audit.actor = 'retention'";
    assert_eq!(world.count(closed).await, 1);
    let orphans = "SELECT count(*) FROM notification.notification_dlq WHERE event_id IS NULL";
    assert_eq!(world.count(orphans).await, 0);
}

#[tokio::test]
async fn what_was_shown_is_forgotten_when_nothing_older_can_come() {
    let world = World::with(|config| {
        config
            .with_value("notification.retention.cleanup-interval", "1s")
            .unwrap()
    })
    .await;
    for user in ["long-ago", "lately"] {
        world.prefer(user, &["in-app"]).await;
        world.tell(&granted(user, "s", 2)).await;
    }
    let shown = "SELECT count(*) FROM notification.shown";
    world.counts(2, shown).await;
    world
        .execute(
            "UPDATE notification.shown
             SET shown_on = shown_on - CASE user_id WHEN 'long-ago' THEN 61 ELSE 59 END",
        )
        .await;
    world.counts(1, shown).await;

    world.tell(&granted("lately", "s", 1)).await;
    let late = "SELECT count(*) FROM notification.notifications_sent
        WHERE user_id = 'lately' AND version = 1 AND superseded";
    world.counts(1, late).await;
    let today = "SELECT count(*) FROM notification.shown
        WHERE version = 2 AND shown_on > (now() AT TIME ZONE 'UTC')::date - 2";
    assert_eq!(world.count(today).await, 1, "and remembered for longer");
}

#[tokio::test]
async fn entries_go_when_they_were_closed_long_ago_and_open_ones_never() {
    let world = World::with(|config| {
        config
            .with_value("notification.retention.cleanup-interval", "1s")
            .unwrap()
    })
    .await;
    world
        .execute(
            "INSERT INTO notification.notification_nats_dlq (
                 stream, stream_created_at, stream_seq, consumer, kind, created_at, redriven_at,
                 discarded_at
             )
             SELECT name, now(), 1, 'c', 'MISSED', now() - made * interval '1 day',
                 now() - redriven * interval '1 day', now() - discarded * interval '1 day'
             FROM (
                 VALUES
                     ('redriven', 40, 31, NULL), ('discarded', 40, NULL, 31),
                     ('lately', 40, 29, NULL), ('open', 400, NULL, NULL)
             ) AS entries (name, made, redriven, discarded)",
        )
        .await;
    let entries = "SELECT count(*) FROM notification.notification_nats_dlq";
    world.counts(2, entries).await;
    let kept = "SELECT count(*) FROM notification.notification_nats_dlq
        WHERE stream IN ('lately', 'open')";
    assert_eq!(world.count(kept).await, 2);
}
