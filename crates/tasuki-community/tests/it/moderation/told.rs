//! Who made what is labelled is told: once, and by the name that the platform knows.

use std::time::Duration;

use futures_util::StreamExt as _;
use reqwest::Method;
use serde_json::json;
use tasuki_contract::events::Message as _;
use tasuki_contract::events::community::{CommunityEvent, EventType};
use tasuki_testkit::{Servers, eventually};

use super::{Desk, saying, target};

impl Desk {
    /// What was written for others, published or not.
    async fn told(&self) -> i64 {
        let sql = "SELECT (SELECT count(*) FROM cn_relay.outbox_events)
            + (SELECT count(*) FROM cn_relay.outbox_published)";
        self.world.count(sql).await
    }

    /// The first messages of the stream, in the order in which they came.
    async fn messages(&self, count: usize) -> Vec<CommunityEvent> {
        let client = async_nats::connect(&Servers::get().await.nats)
            .await
            .unwrap();
        let jetstream = async_nats::jetstream::new(client);
        let name = format!("{}-community", self.world.env.prefix());
        let stream = eventually("the stream is there", async || {
            jetstream.get_stream(&name).await.ok()
        })
        .await;
        let consumer = async_nats::jetstream::consumer::pull::Config::default();
        let consumer = stream.create_consumer(consumer).await.unwrap();
        let messages = consumer.messages().await.unwrap().take(count);
        let read = |payload| CommunityEvent::decode(payload).unwrap();
        let messages = messages.map(|message| read(message.unwrap().payload.clone()));
        let messages = tokio::time::timeout(Duration::from_secs(20), messages.collect());
        messages.await.unwrap()
    }
}

#[tokio::test]
async fn an_author_is_told_of_a_label_once_however_often_it_is_made() {
    let mut desk = Desk::open().await;
    let key = desk.author.public_key().to_hex();
    desk.rule("buy", "spam").await;
    let note = desk.note("buy").await;
    desk.caught_up().await;
    desk.replay().await;
    desk.run("DELETE FROM cn_relay.labels").await;
    desk.replay().await;
    desk.rebuild().await;
    assert_eq!(desk.words(&note).await, ["spam"]);
    assert_eq!(desk.told().await, 1);

    let path = format!("/v1/members/{key}");
    let body = json!({"user_id": "ann", "reason": "she has shown it"});
    let (status, linked, _) = desk.ask(Method::PUT, &path, Some(&body)).await;
    assert_eq!((status, &linked["user_id"]), (200, &json!("ann")));
    let (_, label, _) = desk
        .post("/v1/labels", &saying(&target(&note), "rude"))
        .await;
    let label_id = label["label_id"].as_str().unwrap();
    let withdraw = format!("/v1/labels/{label_id}?reason=mistaken");
    desk.ask(Method::DELETE, &withdraw, None).await;
    let unlink = format!("{path}?reason=moved");
    let (first, ..) = desk.ask(Method::DELETE, &unlink, None).await;
    let (second, ..) = desk.ask(Method::DELETE, &unlink, None).await;
    assert_eq!((first, second), (200, 404));
    desk.post("/v1/labels", &saying("identifier:isbn:1", "rude"))
        .await;

    let told = desk.messages(3).await;
    assert_eq!(desk.told().await, 3, "nobody is told of what is nobody's");
    let of = |what: EventType, user: &str, label: &str| {
        let mut all = told.iter();
        let found =
            all.find(|it| (it.event_type(), &*it.user_id, &*it.label) == (what, user, label));
        found.unwrap_or_else(|| panic!("{what:?} {user} {label} is not in {told:?}"))
    };
    let first = of(EventType::ContentLabelled, &key, "spam");
    assert_eq!((&first.target, &first.pubkey), (&target(&note), &key));
    let said = (first.confidence, &*first.policy_ref, &*first.reason);
    assert_eq!(said, (0.8, "3.1", ""));
    let given = of(EventType::ContentLabelled, "ann", "rude");
    let taken = of(EventType::LabelWithdrawn, "ann", "rude");
    assert_eq!((&*given.reason, &*taken.reason), ("seen", "mistaken"));
    let chain = (&*given.correlation_id, &*taken.correlation_id);
    assert_eq!(chain, (label_id, label_id));
}

#[tokio::test]
async fn a_broker_that_is_away_keeps_nobody_from_the_relay() {
    let away = "nats://127.0.0.1:1";
    let mut desk = Desk::with(|config| config.with_value("nats.url", away).unwrap()).await;
    desk.rule("buy", "spam").await;
    let note = desk.note("buy").await;
    desk.caught_up().await;
    assert_eq!(desk.words(&note).await, ["spam"]);
    assert_eq!(desk.told().await, 1);
    let notes = json!({"kinds": [1]});
    assert_eq!(desk.client.find(&[notes]).await.len(), 1);
}
