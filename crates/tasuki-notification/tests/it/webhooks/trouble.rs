//! Endpoints that are slow, broken, paused or gone: they hold up nobody else, get what they are
//! owed when they are back, and leave nothing for an operator to clean up.

use http::StatusCode;
use serde_json::json;
use tokio::net::TcpListener;

use super::{Receiver, SENT, lenient, lenient_with, path, register, register_for};
use crate::support::{A_WHILE, World, granted};

const HELD: &str =
    "SELECT count(*) FROM notification.webhook_endpoints WHERE held_until > clock_timestamp()";
const DISABLED: &str =
    "SELECT count(*) FROM notification.webhook_endpoints WHERE status = 'DISABLED'";
const OWED: &str = "SELECT count(*) FROM notification.notifications_live
    WHERE channel = 'webhook' AND status = 'PENDING' AND attempt_count = 0";
const LETTERS: &str = "SELECT count(*) FROM notification.notification_dlq";
const WITHDRAWN: &str = "SELECT count(*) FROM notification.dead_letters
    WHERE source = 'notifications_live' AND discarded_at IS NOT NULL";
const OWNER_TOLD: &str = "SELECT count(*) FROM notification.notifications
    WHERE user_id = 'u' AND type = 'WebhookEndpointDisabled' AND channel = 'in-app'
        AND status = 'SENT'";

const SENT_TO_WEBHOOKS: &str = "SELECT count(*) FROM notification.notifications
    WHERE channel = 'webhook' AND status = 'SENT'";
const OWNER_WARNED: &str = "SELECT count(*) FROM notification.notifications
    WHERE user_id = 'u' AND type = 'WebhookEndpointFailing' AND channel = 'in-app'
        AND status = 'SENT'
        AND (payload_json->>'disabled_at')::timestamptz
            = (payload_json->>'failing_since')::timestamptz + interval '120 hours'";

/// A hold is over now, instead of later.
async fn end_hold(world: &World) {
    world
        .execute("UPDATE notification.webhook_endpoints SET held_until = clock_timestamp()")
        .await;
}

#[tokio::test]
async fn what_one_endpoint_is_owed_holds_up_no_other() {
    let world = lenient().await;
    // Takes connections, and never answers.
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    register(&world, silent.local_addr().unwrap()).await;
    let (receiver, address) = Receiver::start(&[]).await;
    register_for(&world, "v", address).await;
    world
        .execute(
            "INSERT INTO notification.notifications_live (
                 notification_id, event_id, user_id, type, channel, endpoint_id, aggregate_key,
                 version, occurred_at, payload_json, next_retry_at
             )
             SELECT gen_random_uuid(), gen_random_uuid(), user_id, 'EntitlementGranted', 'webhook',
                 endpoint_id, 'a', 1, now(), '{}', now() - nth * interval '1 second'
             FROM notification.webhook_endpoints, generate_series(1, 3000) AS nth
             WHERE user_id = 'u'",
        )
        .await;
    let running = "SELECT count(*) FROM notification.notifications_live
        WHERE user_id = 'u' AND status = 'PROCESSING'";
    world.counts(4, running).await;
    world.tell(&granted("v", "s", 1)).await;
    receiver.got_at_least(1).await;
    assert_eq!(world.count(running).await, 4, "its places, and no more");
    let untouched = "SELECT count(*) FROM notification.notifications_live
        WHERE user_id = 'u' AND status = 'PENDING' AND last_error IS NULL";
    assert_eq!(world.count(untouched).await, 2996, "none was taken in vain");
}

#[tokio::test]
async fn an_endpoint_with_a_backlog_gets_all_of_it() {
    let world = lenient_with(|config| {
        config
            .with_value("notification.delivery.poll-interval", "1s")
            .unwrap()
    })
    .await;
    let (receiver, address) = Receiver::start(&[]).await;
    let webhook = register(&world, address).await;
    world.post(&path(&webhook, "/pause"), &json!({})).await;
    for version in 1..=40 {
        world.tell(&granted("u", "s", version)).await;
    }
    world.counts(40, OWED).await;
    world.post(&path(&webhook, "/resume"), &json!({})).await;
    // A few at a time, but not a few per poll.
    receiver.got_at_least(40).await;
    world.counts(40, SENT).await;
}

#[tokio::test]
async fn a_paused_endpoint_takes_no_claims() {
    let world = lenient().await;
    let (receiver, address) = Receiver::start(&[]).await;
    let webhook = register(&world, address).await;
    register_for(&world, "v", address).await;
    world.post(&path(&webhook, "/pause"), &json!({})).await;
    world.tell(&granted("u", "s", 1)).await;
    world.counts(1, OWED).await;
    world.tell(&granted("v", "s", 1)).await;
    receiver.got_at_least(1).await;
    let unclaimed = "SELECT count(*) FROM notification.notifications_live
        WHERE user_id = 'u' AND status = 'PENDING' AND last_error IS NULL";
    assert_eq!(world.count(unclaimed).await, 1);
}

#[tokio::test]
async fn after_failures_in_a_row_requests_stop_and_later_they_go_on() {
    let world = lenient_with(|config| {
        config
            .with_value("notification.webhook.circuit-failures", 2)
            .unwrap()
    })
    .await;
    let (receiver, address) = Receiver::start(&[(500, None), (500, None), (500, None)]).await;
    register(&world, address).await;
    world.tell(&granted("u", "s", 1)).await;
    world.counts(1, HELD).await;
    world.tell(&granted("u", "t", 1)).await;
    world.counts(1, OWED).await;
    // sleep: another attempt would come within a few polls.
    tokio::time::sleep(A_WHILE).await;
    assert_eq!(receiver.got().len(), 2);

    end_hold(&world).await;
    let longer = "SELECT count(*) FROM notification.webhook_endpoints
        WHERE held_until > clock_timestamp() + interval '12 seconds'";
    world.counts(1, longer).await;
    assert_eq!(receiver.got().len(), 3, "one is tried after a pause");

    end_hold(&world).await;
    world.counts(2, SENT).await;
    let well = "SELECT count(*) FROM notification.webhook_endpoints
        WHERE failures = 0 AND failing_since IS NULL AND held_until IS NULL";
    world.counts(1, well).await;
}

#[tokio::test]
async fn another_process_leaves_an_endpoint_in_trouble_alone_too() {
    let world = lenient_with(|config| {
        config
            .with_value("notification.webhook.circuit-failures", 1)
            .unwrap()
    })
    .await;
    let (receiver, address) = Receiver::start(&[(500, None)]).await;
    register(&world, address).await;
    world.tell(&granted("u", "s", 1)).await;
    world.counts(1, HELD).await;
    let _other = world.another().await;
    world.tell(&granted("u", "t", 1)).await;
    world.counts(1, OWED).await;
    // sleep: another attempt would come within a few polls.
    tokio::time::sleep(A_WHILE).await;
    assert_eq!(receiver.got().len(), 1);
}

#[tokio::test]
async fn a_test_that_arrives_ends_the_pause() {
    let world = lenient().await;
    let (receiver, address) = Receiver::start(&[]).await;
    let webhook = register(&world, address).await;
    world
        .execute(
            "UPDATE notification.webhook_endpoints
             SET failures = 7, held_until = now() + interval '1 hour'",
        )
        .await;
    world.tell(&granted("u", "s", 1)).await;
    world.counts(1, OWED).await;
    assert!(receiver.got().is_empty());
    world.post(&path(&webhook, "/test"), &json!({})).await;
    world.counts(1, SENT).await;
}

#[tokio::test]
async fn an_endpoint_that_asks_for_time_gets_it_for_all_it_is_owed_and_for_nothing() {
    let world = lenient().await;
    let later = (429, Some(("retry-after", "1".to_owned())));
    let (_receiver, address) = Receiver::start(&[later]).await;
    register(&world, address).await;
    world.tell(&granted("u", "s", 1)).await;
    world.counts(1, HELD).await;
    world.tell(&granted("u", "t", 1)).await;
    world.counts(2, SENT).await;
    let apart: f64 = sqlx::query_scalar(
        "SELECT extract(epoch FROM min(attempted_at) FILTER (WHERE outcome = 'delivered')
             - min(attempted_at) FILTER (WHERE outcome = 'later'))::float8
         FROM notification.webhook_attempts",
    )
    .fetch_one(&world.env.db.pool)
    .await
    .unwrap();
    assert!(apart >= 1.0, "{apart}");
    let spent = "SELECT max(attempt_count)::bigint FROM notification.notifications_sent";
    assert_eq!(world.count(spent).await, 1);
}

#[tokio::test]
async fn an_endpoint_that_is_gone_is_disabled_and_gets_what_it_is_owed_when_it_is_resumed() {
    let world = lenient().await;
    let (receiver, address) = Receiver::start(&[(410, None)]).await;
    let webhook = register(&world, address).await;
    world.tell(&granted("u", "s", 1)).await;
    world.counts(1, DISABLED).await;
    let listed = world.get("/v1/users/u/webhooks").await.json();
    assert_eq!(
        listed["webhooks"][0]["disabled_reason"],
        "it answered 410 Gone"
    );
    world.counts(1, OWNER_TOLD).await;
    world.counts(1, OWED).await;
    world.tell(&granted("u", "t", 1)).await;
    world.settled().await;
    assert_eq!(receiver.got().len(), 1);
    assert_eq!(world.count(LETTERS).await, 0);

    let resumed = world
        .post(&path(&webhook, "/resume"), &json!({}))
        .await
        .json();
    assert_eq!(
        (&resumed["status"], &resumed["disabled_reason"]),
        (&json!("ENABLED"), &json!(null))
    );
    let got = receiver.got_at_least(2).await;
    assert_eq!(got[1].0["webhook-id"], got[0].0["webhook-id"]);
    world.counts(0, OWED).await;
}

#[tokio::test]
async fn an_endpoint_that_did_nothing_but_fail_for_long_is_disabled_and_its_owner_is_told() {
    let world = lenient().await;
    let (_receiver, address) = Receiver::start(&[(500, None)]).await;
    register(&world, address).await;
    world
        .execute(
            "UPDATE notification.webhook_endpoints
             SET failures = 100, failing_since = now() - interval '6 days'",
        )
        .await;
    world.tell(&granted("u", "s", 1)).await;
    world.counts(1, DISABLED).await;
    world.counts(1, OWNER_TOLD).await;
    assert_eq!(world.count(LETTERS).await, 0);
}

#[tokio::test]
async fn the_owner_of_an_endpoint_that_fails_for_long_is_told_once_before_it_is_disabled() {
    let world = lenient().await;
    let (receiver, address) = Receiver::start(&[(500, None), (500, None)]).await;
    register(&world, address).await;
    world
        .execute(
            "UPDATE notification.webhook_endpoints
             SET failures = 100, failing_since = now() - interval '61 hours'",
        )
        .await;
    world.tell(&granted("u", "s", 1)).await;
    world.counts(1, OWNER_WARNED).await;
    assert_eq!(world.count(DISABLED).await, 0);
    end_hold(&world).await;
    receiver.got_at_least(2).await;
    world.counts(1, HELD).await;
    end_hold(&world).await;
    receiver.got_at_least(3).await;
    let over = "SELECT count(*) FROM notification.webhook_endpoints
        WHERE failures = 0 AND warned_at IS NULL";
    world.counts(1, over).await;
    assert_eq!(world.count(OWNER_WARNED).await, 1, "not at every failure");
}

#[tokio::test]
async fn an_endpoint_that_is_resumed_at_the_last_moment_stays_enabled() {
    let world = lenient().await;
    let (_receiver, address) = Receiver::start(&[(500, None)]).await;
    let webhook = register(&world, address).await;
    world
        .execute(
            "UPDATE notification.webhook_endpoints
             SET failures = 100, failing_since = now() - interval '6 days'",
        )
        .await;
    let mut other = world.env.db.pool.begin().await.unwrap();
    sqlx::query("SELECT FROM notification.webhook_endpoints FOR UPDATE")
        .execute(&mut *other)
        .await
        .unwrap();
    world.tell(&granted("u", "s", 1)).await;
    // First the failure that is the last straw, then the owner, and only then its consequence.
    let change = "UPDATE notification.webhook_endpoints";
    world.blocked(1, change).await;
    let (resume, body) = (path(&webhook, "/resume"), json!({}));
    let let_go = async {
        world.blocked(2, change).await;
        other.commit().await.unwrap();
    };
    let (resumed, ()) = tokio::join!(world.post(&resume, &body), let_go);
    assert_eq!(resumed.json()["status"], "ENABLED");
    world.counts(1, SENT_TO_WEBHOOKS).await;
    assert_eq!(world.count(DISABLED).await, 0);
}

#[tokio::test]
async fn an_address_that_may_not_be_called_any_more_disables_its_endpoint() {
    let world = World::start().await;
    let (receiver, address) = Receiver::start(&[]).await;
    world.prefer("u", &["webhook"]).await;
    let body = json!({ "url": "https://example.com/hook" });
    world.post("/v1/users/u/webhooks", &body).await;
    sqlx::query("UPDATE notification.webhook_endpoints SET url = $1")
        .bind(format!("https://{address}/"))
        .execute(&world.env.db.pool)
        .await
        .unwrap();
    world.tell(&granted("u", "s", 1)).await;
    world.counts(1, DISABLED).await;
    world.counts(1, OWED).await;
    assert_eq!(world.count(LETTERS).await, 0);
    assert!(receiver.got().is_empty());
}

#[tokio::test]
async fn what_a_removed_endpoint_is_owed_is_withdrawn_and_nobody_is_alarmed() {
    let world = lenient().await;
    let (receiver, address) = Receiver::start(&[]).await;
    let webhook = register(&world, address).await;
    world.post(&path(&webhook, "/pause"), &json!({})).await;
    world.tell(&granted("u", "s", 1)).await;
    world.counts(1, OWED).await;
    let key = Some(world.key.as_str());
    let gone = world
        .host
        .send(reqwest::Method::DELETE, &path(&webhook, ""), key, None)
        .await;
    assert_eq!(gone.status, StatusCode::NO_CONTENT);
    world.counts(1, WITHDRAWN).await;
    assert_eq!(world.count(OWED).await, 0);
    assert_eq!(world.count(LETTERS).await, 0);
    assert!(receiver.got().is_empty());
}

#[tokio::test]
async fn what_an_endpoint_is_owed_that_stays_disabled_is_withdrawn_in_the_end() {
    let world = lenient().await;
    let (_receiver, address) = Receiver::start(&[]).await;
    let webhook = register(&world, address).await;
    world.post(&path(&webhook, "/pause"), &json!({})).await;
    world.tell(&granted("u", "s", 1)).await;
    world.counts(1, OWED).await;
    world
        .execute(
            "UPDATE notification.webhook_endpoints
             SET status = 'DISABLED', disabled_at = now() - interval '14 days'",
        )
        .await;
    world.counts(1, WITHDRAWN).await;
    assert_eq!(world.count(LETTERS).await, 0);
}

#[tokio::test]
async fn what_an_endpoint_is_owed_that_stays_paused_is_withdrawn_in_the_end() {
    let world = lenient().await;
    let (receiver, address) = Receiver::start(&[]).await;
    let webhook = register(&world, address).await;
    world.post(&path(&webhook, "/pause"), &json!({})).await;
    world.tell(&granted("u", "s", 1)).await;
    world.counts(1, OWED).await;
    world
        .execute(
            "UPDATE notification.webhook_endpoints SET paused_at = paused_at - interval '14 days'",
        )
        .await;
    // Once more, which is no new beginning.
    world.post(&path(&webhook, "/pause"), &json!({})).await;
    world.counts(1, WITHDRAWN).await;
    assert_eq!(world.count(LETTERS).await, 0);

    world.post(&path(&webhook, "/resume"), &json!({})).await;
    world.post(&path(&webhook, "/pause"), &json!({})).await;
    world.tell(&granted("u", "t", 1)).await;
    world.counts(1, OWED).await;
    world.post(&path(&webhook, "/resume"), &json!({})).await;
    receiver.got_at_least(1).await;
}

#[tokio::test]
async fn a_disabled_webhook_is_not_paused() {
    let world = lenient().await;
    let (_receiver, address) = Receiver::start(&[]).await;
    let webhook = register(&world, address).await;
    world
        .execute(
            "UPDATE notification.webhook_endpoints
             SET status = 'DISABLED', disabled_at = now(), disabled_reason = 'gone'",
        )
        .await;
    let refused = world.post(&path(&webhook, "/pause"), &json!({})).await;
    assert_eq!(
        (refused.status, &*refused.code()),
        (StatusCode::CONFLICT, "WEBHOOK_DISABLED")
    );
    let listed = world.get("/v1/users/u/webhooks").await.json();
    assert_eq!(
        (
            &listed["webhooks"][0]["status"],
            &listed["webhooks"][0]["disabled_reason"]
        ),
        (&json!("DISABLED"), &json!("gone"))
    );
}

#[tokio::test]
async fn a_replay_to_a_webhook_that_gets_nothing_is_refused_and_changes_nothing() {
    let world = lenient().await;
    let (receiver, address) = Receiver::start(&[]).await;
    let webhook = register(&world, address).await;
    world.tell(&granted("u", "s", 1)).await;
    world.counts(1, SENT).await;
    let (_, body) = receiver.got().remove(0);
    let told: serde_json::Value = serde_json::from_str(&body).unwrap();
    let id = told["notification_id"].as_str().unwrap();
    let replay = path(&webhook, &format!("/replay/{id}"));
    // One that is paused for long would have it withdrawn at once.
    for sql in [
        "UPDATE notification.webhook_endpoints
         SET status = 'PAUSED', paused_at = now() - interval '15 days'",
        "UPDATE notification.webhook_endpoints
         SET status = 'DISABLED', disabled_at = now(), paused_at = NULL",
    ] {
        world.execute(sql).await;
        let refused = world.post(&replay, &json!({})).await;
        assert_eq!(
            (refused.status, &*refused.code()),
            (StatusCode::CONFLICT, "WEBHOOK_DISABLED")
        );
        assert_eq!(world.count(SENT).await, 1);
        assert_eq!(world.count(OWED).await, 0);
    }
}
