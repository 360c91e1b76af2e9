//! From the broker to notifications: once, whatever the broker does.

use serde_json::json;
use tasuki_contract::events::Message;
use tasuki_contract::events::community::{self, CommunityEvent};
use tasuki_contract::events::matchmaking::{EventType, MatchmakingEvent};
use tasuki_contract::events::shop::{self, ShopEvent};
use uuid::Uuid;

use crate::support::{A_WHILE, World, granted};

const ALL: &str = "SELECT count(*) FROM notification.notifications";
const SENT: &str = "SELECT count(*) FROM notification.notifications WHERE status = 'SENT'";

#[tokio::test]
async fn an_event_becomes_one_notification_that_is_sent_with_its_whole_content() {
    let world = World::start().await;
    let event = granted("user-1", "sword", 1);
    world.tell(&event).await;
    world.counts(1, SENT).await;
    world.settled().await;

    let operator = world.operator().await;
    let inbox = world
        .host
        .get_as(&operator, "/debug/notification/inbox/user-1")
        .await
        .json();
    let told = &inbox["notifications"][0];
    assert_eq!(inbox["user_id"], "user-1");
    assert_eq!(told["type"], "EntitlementGranted");
    assert_eq!(
        (&told["status"], &told["channel"]),
        (&json!("SENT"), &json!("log"))
    );
    assert_eq!(told["event_id"], event.event_id);
    assert_eq!(told["trace_id"], "4bf92f3577b34da6a3ce929d0e0e4736");
    let fields: Vec<_> = told["payload"]
        .as_object()
        .unwrap()
        .keys()
        .cloned()
        .collect();
    assert_eq!(
        fields,
        [
            "event_id",
            "event_type",
            "occurred_at",
            "source",
            "source_id",
            "stock_keeping_unit",
            "trace_id",
            "user_id",
            "version",
        ]
    );
    let left = world.count(
        "SELECT count(*) FROM notification.notifications
         WHERE next_retry_at IS NOT NULL OR locked_by IS NOT NULL OR locked_at IS NOT NULL
             OR lease_until IS NOT NULL OR sent_at IS NULL",
    );
    assert_eq!(left.await, 0, "the finish clears what belongs to the claim");
}

#[tokio::test]
async fn an_event_that_arrives_again_is_acknowledged_and_told_once() {
    let world = World::start().await;
    let event = granted("u", "s", 1);
    world.tell(&event).await;
    world.counts(1, SENT).await;
    // The dedupe window has passed, as far as the broker is concerned: another message id.
    for copy in 0..3 {
        world
            .publish(&format!("copy-{copy}"), event.encode_to_vec())
            .await;
    }
    world.settled().await;
    assert_eq!(world.count(ALL).await, 1);
    // sleep: a redelivery loop would show within a few turns.
    tokio::time::sleep(A_WHILE).await;
    assert_eq!(world.unsettled().await, (0, 0), "no redelivery loop");
    assert_eq!(
        world
            .count("SELECT count(*) FROM notification.processed_events")
            .await,
        1
    );
}

#[tokio::test]
async fn poison_is_refused_at_once_recorded_with_its_reason_and_holds_up_nobody() {
    let world = World::start().await;
    let id = Uuid::now_v7();
    let sequence = world.publish(&id.to_string(), b"\xff\xfe".to_vec()).await;
    world.publish("no-uuid", Vec::new()).await;
    world.tell(&granted("u", "s", 1)).await;
    world.counts(1, SENT).await;
    world.settled().await;
    let refused = "SELECT count(*) FROM notification.notification_nats_dlq
        WHERE kind = 'TERMINATED'";
    world.counts(2, refused).await;
    let (kind, stream, reason, message, consumer): (String, String, String, Uuid, String) =
        sqlx::query_as(
            "SELECT kind, stream, reason, message_id, consumer
             FROM notification.notification_nats_dlq
             WHERE stream_seq = $1 AND stream_created_at < now()",
        )
        .bind(i64::try_from(sequence).unwrap())
        .fetch_one(&world.env.db.pool)
        .await
        .unwrap();
    assert_eq!(
        (kind.as_str(), stream, consumer),
        ("TERMINATED", world.stream(), world.durable())
    );
    assert!(
        reason.contains("not the message that belongs on this subject"),
        "{reason}"
    );
    assert_eq!(message, id);
}

#[tokio::test]
async fn one_event_that_the_database_refuses_holds_up_none_of_its_batch() {
    let world = World::start().await;
    world.execute(REFUSE_BAD).await;
    for user in ["a", "bad", "b", "c"] {
        world.tell(&granted(user, "s", 1)).await;
    }
    world.counts(3, SENT).await;
    assert_eq!(
        world
            .count("SELECT count(*) FROM notification.processed_events")
            .await,
        3
    );
    assert_eq!(world.unsettled().await.1, 1, "it will come again");
}

#[tokio::test]
async fn a_time_that_no_clock_in_utc_can_show_is_poison_and_costs_the_others_nothing() {
    let world = World::start().await;
    let mut odd = granted("odd", "s", 1);
    odd.occurred_at = "9999-12-31T23:59:59-01:00".to_owned();
    world.tell(&odd).await;
    world.tell(&granted("u", "s", 1)).await;
    world.counts(1, SENT).await;
    world.settled().await;
    let refused = "SELECT count(*) FROM notification.notification_nats_dlq
        WHERE kind = 'TERMINATED' AND reason = 'occurred_at is not a time'";
    world.counts(1, refused).await;
}

/// The database refuses notifications of the user `bad`.
pub(crate) const REFUSE_BAD: &str = "
    ALTER TABLE notification.notifications_live ADD CONSTRAINT nobody_bad CHECK (user_id <> 'bad')";

#[tokio::test]
async fn many_processes_share_the_messages_and_tell_each_once() {
    let world = World::start().await;
    let _second = world.another().await;
    let _third = world.another().await;
    for number in 0..200 {
        world
            .tell(&granted(
                &format!("u{}", number % 7),
                &format!("s{number}"),
                1,
            ))
            .await;
    }
    world.counts(200, SENT).await;
    world.settled().await;
    let double = "SELECT count(*) FROM (
        SELECT event_id FROM notification.notifications GROUP BY event_id HAVING count(*) > 1
    ) AS twice";
    assert_eq!(world.count(double).await, 0);
}

#[tokio::test]
async fn both_players_are_told_of_a_match() {
    let world = World::with(|config| {
        let prefix = config.text("notification.nats.stream").to_owned();
        [
            ("enabled", toml(true)),
            ("stream", toml(format!("{prefix}-mm"))),
            ("subject", toml(format!("{prefix}.mm"))),
            ("durable", toml(format!("{prefix}-mm"))),
            ("advisory.stream", toml(format!("{prefix}-mm-given-up"))),
            (
                "terminated-advisory.stream",
                toml(format!("{prefix}-mm-refused")),
            ),
        ]
        .into_iter()
        .fold(config, |config, (key, value)| {
            config
                .with_value(&format!("notification.matchmaking-nats.{key}"), value)
                .unwrap()
        })
    })
    .await;
    let event = MatchmakingEvent {
        event_id: Uuid::now_v7().to_string(),
        event_type: EventType::MatchFound.into(),
        occurred_at: "2026-11-16T09:00:00Z".to_owned(),
        match_id: "m1".to_owned(),
        mode: "rank".to_owned(),
        user_ids: vec!["ann".to_owned(), "bob".to_owned()],
        ..MatchmakingEvent::default()
    };
    let subject = format!("{}.mm", world.stream());
    tasuki_testkit::eventually("it is published", async || {
        let sent = world
            .jetstream
            .publish(subject.clone(), event.encode_to_vec().into());
        sent.await.ok()?.await.ok()
    })
    .await;
    world.counts(2, SENT).await;
    let users = world.count("SELECT count(DISTINCT user_id) FROM notification.notifications");
    assert_eq!(users.await, 2);
}

#[tokio::test]
async fn who_buys_is_told_of_the_order_once() {
    let world = World::with(|config| {
        let prefix = config.text("notification.nats.stream").to_owned();
        [
            ("enabled", toml(true)),
            ("stream", toml(format!("{prefix}-shop"))),
            ("subject", toml(format!("{prefix}.shop"))),
            ("durable", toml(format!("{prefix}-shop"))),
            ("advisory.stream", toml(format!("{prefix}-shop-given-up"))),
            (
                "terminated-advisory.stream",
                toml(format!("{prefix}-shop-refused")),
            ),
        ]
        .into_iter()
        .fold(config, |config, (key, value)| {
            config
                .with_value(&format!("notification.shop-nats.{key}"), value)
                .unwrap()
        })
    })
    .await;
    let event = |what: shop::EventType, version| ShopEvent {
        event_id: Uuid::now_v7().to_string(),
        event_type: what.into(),
        occurred_at: "2026-11-16T09:00:00Z".to_owned(),
        order_id: Uuid::now_v7().to_string(),
        user_id: "ann".to_owned(),
        amount: 700,
        currency: "EUR".to_owned(),
        version,
        ..ShopEvent::default()
    };
    let subject = format!("{}.shop", world.stream());
    let told = event(shop::EventType::OrderCompleted, 7);
    for event in [event(shop::EventType::StockReserved, 5), told.clone(), told] {
        tasuki_testkit::eventually("it is published", async || {
            let payload = event.encode_to_vec().into();
            let sent = world.jetstream.publish(subject.clone(), payload);
            sent.await.ok()?.await.ok()
        })
        .await;
    }
    world
        .counts(2, "SELECT count(*) FROM notification.processed_events")
        .await;
    world.counts(1, SENT).await;
    let about = "SELECT count(*) FROM notification.notifications
         WHERE user_id = 'ann' AND type = 'OrderCompleted'";
    assert_eq!(world.count(about).await, 1);
}

#[tokio::test]
async fn who_is_labelled_is_told_once() {
    let world = World::with(|config| {
        let prefix = config.text("notification.nats.stream").to_owned();
        [
            ("enabled", toml(true)),
            ("stream", toml(format!("{prefix}-community"))),
            ("subject", toml(format!("{prefix}.community"))),
            ("durable", toml(format!("{prefix}-community"))),
            (
                "advisory.stream",
                toml(format!("{prefix}-community-given-up")),
            ),
            (
                "terminated-advisory.stream",
                toml(format!("{prefix}-community-refused")),
            ),
        ]
        .into_iter()
        .fold(config, |config, (key, value)| {
            config
                .with_value(&format!("notification.community-nats.{key}"), value)
                .unwrap()
        })
    })
    .await;
    let event = CommunityEvent {
        event_id: Uuid::from_bytes([7; 16]).to_string(),
        event_type: community::EventType::ContentLabelled.into(),
        occurred_at: "2026-11-16T09:00:00Z".to_owned(),
        user_id: "ann".to_owned(),
        label: "spam".to_owned(),
        confidence: 0.8,
        correlation_id: Uuid::from_bytes([8; 16]).to_string(),
        ..CommunityEvent::default()
    };
    let subject = format!("{}.community", world.stream());
    for _ in 0..2 {
        tasuki_testkit::eventually("it is published", async || {
            let payload = event.encode_to_vec().into();
            let sent = world.jetstream.publish(subject.clone(), payload);
            sent.await.ok()?.await.ok()
        })
        .await;
    }
    world
        .counts(1, "SELECT count(*) FROM notification.processed_events")
        .await;
    world.counts(1, SENT).await;
    let about = "SELECT count(*) FROM notification.notifications
         WHERE user_id = 'ann' AND type = 'ContentLabelled'";
    assert_eq!(world.count(about).await, 1);
}

fn toml(value: impl Into<toml::Value>) -> toml::Value {
    value.into()
}
