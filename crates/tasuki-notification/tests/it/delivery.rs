//! Deliveries that fail: tried as often as configured, then dead with one letter.

use tasuki::dlq::{Filter, Letters};
use tasuki_testkit::eventually;

use crate::support::{World, granted};

/// Deliveries to users whose ids begin with `fail-` fail, three times.
pub(crate) fn failing(config: tasuki_service::Config) -> tasuki_service::Config {
    [
        ("delivery.failure-injection.user-id-prefix", "fail-"),
        ("delivery.backoff-base", "10ms"),
        ("delivery.backoff-min", "10ms"),
        ("delivery.backoff-max", "20ms"),
    ]
    .into_iter()
    .fold(config, |config, (key, value)| {
        config
            .with_value(&format!("notification.{key}"), value)
            .unwrap()
    })
    .with_value("notification.delivery.failure-injection.enabled", true)
    .unwrap()
    .with_value("notification.delivery.max-attempts", 3)
    .unwrap()
}

#[tokio::test]
async fn a_delivery_that_fails_is_tried_as_often_as_configured_then_dead_with_one_letter() {
    let world = World::with(failing).await;
    world.tell(&granted("fail-1", "s", 1)).await;
    world.tell(&granted("fine", "s", 1)).await;
    let failed = "SELECT count(*) FROM notification.notifications
        WHERE status = 'FAILED' AND attempt_count = 3 AND last_error = 'failure injected'";
    world.counts(1, failed).await;
    assert_eq!(
        world
            .count("SELECT count(*) FROM notification.notification_dlq")
            .await,
        1
    );
    let sent = "SELECT count(*) FROM notification.notifications WHERE status = 'SENT'";
    assert_eq!(world.count(sent).await, 1, "nobody else is held up");
}

#[tokio::test]
async fn a_redrive_sends_what_was_dead_and_a_second_one_does_nothing() {
    let world = World::with(failing).await;
    world.tell(&granted("fail-1", "s", 1)).await;
    world
        .counts(1, "SELECT count(*) FROM notification.notification_dlq")
        .await;
    world.host.phases.stop();
    eventually("it has stopped", async || {
        world.host.stopped.is_finished().then_some(())
    })
    .await;

    let letters: Letters = tasuki_notification::letters(&world.tables);
    let pool = &world.env.db.pool;
    let acted = letters
        .redrive_all(pool, &Filter::default(), "ann", None)
        .await
        .unwrap();
    assert_eq!(
        (acted.letters, acted.sources),
        (1, vec!["notifications_live"])
    );
    let again = letters
        .redrive_all(pool, &Filter::default(), "ann", None)
        .await
        .unwrap();
    assert_eq!(again.letters, 0);

    // The reason is gone: another process, without the injection.
    let mut env = world.env;
    env.config = env
        .config
        .with_value("notification.delivery.failure-injection.enabled", false)
        .unwrap();
    let _mended = crate::support::serve(&env).await;
    eventually("it is sent", async || {
        let sent: i64 = sqlx::query_scalar(
            "SELECT count(*) FROM notification.notifications WHERE status = 'SENT'",
        )
        .fetch_one(&env.db.pool)
        .await
        .unwrap();
        (sent == 1).then_some(())
    })
    .await;
    let open: i64 = sqlx::query_scalar("SELECT count(*) FROM notification.notification_dlq")
        .fetch_one(&env.db.pool)
        .await
        .unwrap();
    assert_eq!(open, 0);
}

#[tokio::test]
async fn what_became_visible_late_is_delivered_though_others_were_due_after_it() {
    let world = World::start().await;
    world.tell(&granted("u", "s", 1)).await;
    let sent = "SELECT count(*) FROM notification.notifications WHERE status = 'SENT'";
    world.counts(1, sent).await;
    world
        .execute(
            "INSERT INTO notification.notifications_live (
                 notification_id, event_id, user_id, type, channel, aggregate_key, version,
                 occurred_at, payload_json, next_retry_at
             )
             SELECT
                 gen_random_uuid(), gen_random_uuid(), 'late', 'EntitlementGranted', 'log', 'k',
                 1, now(), '{}'::jsonb, now() - interval '1 hour'",
        )
        .await;
    world.counts(2, sent).await;
}

#[tokio::test]
async fn what_is_only_safe_in_development_is_refused_in_production() {
    let env = crate::support::prepared(|config| {
        config.with_value("platform.mode", "production").unwrap()
    })
    .await;
    let nine = toml::Value::from(9);
    for (key, value) in [
        (
            "notification.delivery.failure-injection.enabled",
            true.into(),
        ),
        ("notification.webhook.allow-private-addresses", true.into()),
        ("notification.nats.max-deliver", nine),
    ] {
        let config = env.config.clone().with_value(key, value).unwrap();
        let refused = tasuki_notification::config(&config)
            .unwrap_err()
            .to_string();
        assert!(
            refused.contains(key) && refused.contains("only safe in development"),
            "{refused}"
        );
    }
    let off = env
        .config
        .with_value("notification.shop-nats.max-deliver", 1);
    tasuki_notification::config(&off.unwrap()).expect("it is not consumed");
}

#[tokio::test]
async fn a_settlement_that_waits_for_an_inbox_holds_nothing_that_comes_after_inboxes() {
    let world = World::start().await;
    for user in ["a", "b"] {
        world.prefer(user, &["in-app"]).await;
        world.tell(&granted(user, "s", 1)).await;
    }
    let shown = "SELECT count(*) FROM notification.notifications_sent";
    world.counts(2, shown).await;
    let mut other = world.env.db.pool.begin().await.unwrap();
    sqlx::query("SELECT FROM notification.inboxes WHERE user_id = 'b' FOR UPDATE")
        .execute(&mut *other)
        .await
        .unwrap();
    // Both at once: one claim, and one settlement.
    world
        .execute(
            "INSERT INTO notification.notifications_live (
                 notification_id, event_id, user_id, type, channel, aggregate_key, version,
                 occurred_at, payload_json
             )
             SELECT gen_random_uuid(), gen_random_uuid(), user_id, type, channel, aggregate_key,
                 version + 1, occurred_at, payload_json
             FROM notification.notifications_sent",
        )
        .await;
    world.blocked(1, "AS claim (id, token)").await;
    // Whoever has the inbox goes on to what was shown there. That must not be held by who waits for
    // the inbox.
    sqlx::query("SELECT FROM notification.shown WHERE user_id = 'b' FOR UPDATE NOWAIT")
        .execute(&mut *other)
        .await
        .unwrap();
    other.commit().await.unwrap();
    world.counts(4, shown).await;
}
