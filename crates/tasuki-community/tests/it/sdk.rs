//! Real clients: what people use works without knowing of us.

use std::time::Duration;

use nostr_sdk::{Client, EventBuilder, Filter, Keys, Kind, RelayPoolNotification, Tag};

use crate::support::World;

/// How long an answer may take on a busy machine.
const WAIT: Duration = Duration::from_secs(20);

#[tokio::test]
async fn the_rust_sdk_publishes_subscribes_deletes_and_finds() {
    let world = World::start().await;
    let url = format!("ws://{}", world.host.api);
    let keys = Keys::generate();
    let client = Client::new(keys.clone());
    client.add_relay(&url).await.unwrap();
    client.connect().await;
    client.wait_for_connection(WAIT).await;
    let mut news = client.notifications();
    client
        .subscribe(Filter::new().kind(Kind::TextNote), None)
        .await
        .unwrap();

    let other = Client::new(Keys::generate());
    other.add_relay(&url).await.unwrap();
    other.connect().await;
    other.wait_for_connection(WAIT).await;
    let sent = other
        .send_event_builder(EventBuilder::text_note("hello"))
        .await
        .unwrap();
    assert!(sent.failed.is_empty(), "{:?}", sent.failed);
    let told = tokio::time::timeout(WAIT, async {
        loop {
            if let RelayPoolNotification::Event { event, .. } = news.recv().await.unwrap() {
                return event;
            }
        }
    });
    assert_eq!(told.await.unwrap().id, sent.val);

    let profile = client.send_event_builder(EventBuilder::metadata(
        &nostr_sdk::Metadata::new().name("a"),
    ));
    assert!(profile.await.unwrap().failed.is_empty());
    let own = Filter::new().author(keys.public_key());
    let found = client.fetch_events(own.clone(), WAIT).await.unwrap();
    assert_eq!(found.len(), 1);
    let tags = found.into_iter().map(|event| Tag::event(event.id));
    let deletion = EventBuilder::new(Kind::EventDeletion, "").tags(tags);
    assert!(
        client
            .send_event_builder(deletion)
            .await
            .unwrap()
            .failed
            .is_empty()
    );
    let found = client
        .fetch_events(own.kind(Kind::Metadata), WAIT)
        .await
        .unwrap();
    assert_eq!(found.len(), 0);
}

#[tokio::test]
async fn the_rust_sdk_counts_and_searches() {
    let world = World::start().await;
    let client = Client::new(Keys::generate());
    let url = format!("ws://{}", world.host.api);
    client.add_relay(&url).await.unwrap();
    client.connect().await;
    client.wait_for_connection(WAIT).await;
    let mut sent = Vec::new();
    for words in ["an elephant in the room", "a mouse", "white elephants"] {
        let said = client.send_event_builder(EventBuilder::text_note(words));
        let said = said.await.unwrap();
        assert!(said.failed.is_empty(), "{:?}", said.failed);
        sent.push(said.val);
    }
    world.caught_up("index-v1").await;
    let relay = client.relay(&url).await.unwrap();
    let notes = Filter::new().kind(Kind::TextNote);
    let elephants = notes.clone().search("elephant");
    for (filter, wanted) in [
        (notes.clone(), &[0, 1, 2][..]),
        (elephants.clone(), &[0, 2]),
        (elephants.clone().ids([sent[1], sent[2]]), &[2]),
        (notes.search("tiger"), &[]),
    ] {
        let counted = relay.count_events(filter.clone(), WAIT).await.unwrap();
        assert_eq!(counted, wanted.len(), "{filter:?}");
        let found = client.fetch_events(filter.clone(), WAIT).await.unwrap();
        let mut found: Vec<_> = found.into_iter().map(|event| event.id).collect();
        let mut wanted: Vec<_> = wanted.iter().map(|n: &usize| sent[*n]).collect();
        found.sort();
        wanted.sort();
        assert_eq!(found, wanted, "{filter:?}");
    }
}

#[tokio::test]
async fn the_rust_sdk_authenticates_by_itself() {
    // It proves a key for the address that it has connected to.
    let listen = format!("127.0.0.1:{}", tasuki_stack::free_port().unwrap());
    let world = World::with(|config| {
        let config = config
            .with_value("community.auth.mode", "required")
            .unwrap();
        let config = config
            .with_value("community.server.listen", listen.clone())
            .unwrap();
        config
            .with_value("community.relay.url", format!("ws://{listen}"))
            .unwrap()
    })
    .await;
    let client = Client::new(Keys::generate());
    client.automatic_authentication(true);
    client
        .add_relay(format!("ws://{}", world.host.api))
        .await
        .unwrap();
    client.connect().await;
    client.wait_for_connection(WAIT).await;
    let sent = client
        .send_event_builder(EventBuilder::text_note("hello"))
        .await
        .unwrap();
    assert!(sent.failed.is_empty(), "{:?}", sent.failed);
    let found = client
        .fetch_events(Filter::new().id(sent.val), WAIT)
        .await
        .unwrap();
    assert_eq!(found.len(), 1);
}
