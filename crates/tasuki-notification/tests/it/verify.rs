//! What is missing is found, and nothing that is meant to be gone is called missing.

use serde_json::json;
use tasuki::dlq::Filter;
use tasuki_contract::events::entitlement::EntitlementEvent;
use tasuki_notification::verify::{Ledger, Told};

use crate::delivery::failing;
use crate::support::{World, granted};

const LIVE: &str = "SELECT count(*) FROM notification.notifications_live";
const SENT: &str = "SELECT count(*) FROM notification.notifications_sent";

/// What is known of an event.
async fn told(world: &World, event: &EntitlementEvent) -> Told {
    let ledger = Ledger::new(world.env.db.pool.clone());
    let told = ledger.told(&[event.event_id.parse().unwrap()]).await;
    told.unwrap().remove(0)
}

#[tokio::test]
async fn a_lost_notification_of_a_user_with_preferences_is_found() {
    let world = World::start().await;
    world.prefer("u", &["log", "in-app"]).await;
    let event = granted("u", "s", 1);
    world.tell(&event).await;
    world.counts(2, SENT).await;
    let whole = told(&world, &event).await;
    assert_eq!((whole.made, whole.sent), (Some(2), 2));
    assert!(!whole.is_short() && !whole.is_double(), "{whole:?}");

    world
        .execute("DELETE FROM notification.notifications_sent WHERE channel = 'in-app'")
        .await;
    let torn = told(&world, &event).await;
    assert!(torn.is_short(), "{torn:?}");
    // What the user wishes now says nothing of what was to be then.
    world.prefer("u", &[]).await;
    assert!(told(&world, &event).await.is_short());
}

#[tokio::test]
async fn an_event_that_arrives_again_is_counted_as_it_was_at_first() {
    let world = World::start().await;
    let event = granted("u", "s", 1);
    world.tell(&event).await;
    world.counts(1, SENT).await;
    world.prefer("u", &["log", "in-app"]).await;
    let copy = tasuki_contract::events::Message::encode_to_vec(&event);
    world.publish("copy", copy).await;
    world.settled().await;
    let known = told(&world, &event).await;
    assert_eq!((known.made, known.sent), (Some(1), 1));
}

#[tokio::test]
async fn nothing_is_missing_of_what_nobody_was_to_be_told() {
    let world = World::start().await;
    world.prefer("muted", &[]).await;
    // There is no endpoint.
    world.prefer("unreachable", &["webhook"]).await;
    for user in ["muted", "unreachable"] {
        let event = granted(user, "s", 1);
        world.tell(&event).await;
        world.settled().await;
        let known = told(&world, &event).await;
        assert_eq!((known.processed, known.made), (1, Some(0)), "{user}");
        assert!(!known.is_short(), "{user}: {known:?}");
    }
}

#[tokio::test]
async fn nothing_is_missing_of_what_somebody_gave_up() {
    let world = World::with(failing).await;
    let event = granted("fail-1", "s", 1);
    world.tell(&event).await;
    world
        .counts(1, "SELECT count(*) FROM notification.notification_dlq")
        .await;
    let dead = told(&world, &event).await;
    assert_eq!((dead.failed, dead.letters), (1, 1));

    let letters = tasuki_notification::letters(&world.tables);
    let filter = Filter::default();
    let discarded = letters.discard_all(&world.env.db.pool, &filter, "ann", "a test");
    assert_eq!(discarded.await.unwrap().letters, 1);
    let known = told(&world, &event).await;
    assert_eq!((known.made, known.failed, known.given_up), (Some(1), 0, 1));
    assert!(!known.is_short(), "{known:?}");
}

#[tokio::test]
async fn nothing_is_missing_of_what_was_withdrawn() {
    let world = World::start().await;
    world.prefer("u", &["log", "webhook"]).await;
    let body = json!({ "url": "https://example.com/hook" });
    let made = world.post("/v1/users/u/webhooks", &body).await.json();
    let webhook = format!(
        "/v1/users/u/webhooks/{}",
        made["endpoint_id"].as_str().unwrap()
    );
    let pause = world.post(&format!("{webhook}/pause"), &json!({})).await;
    assert!(pause.status.is_success(), "{}", pause.text);
    let event = granted("u", "s", 1);
    world.tell(&event).await;
    world.counts(1, SENT).await;
    world.settled().await;
    assert!(!told(&world, &event).await.is_short(), "one waits");

    let key = Some(world.key.as_str());
    let gone = world
        .host
        .send(reqwest::Method::DELETE, &webhook, key, None);
    assert_eq!(gone.await.status, 204);
    world.counts(0, LIVE).await;
    let known = told(&world, &event).await;
    assert_eq!((known.made, known.sent, known.given_up), (Some(2), 1, 1));
    assert!(!known.is_short(), "{known:?}");
}
