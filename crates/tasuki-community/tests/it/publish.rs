//! Publishing: what is taken, what is not, and what is said about it.

use std::time::Duration;

use futures_util::future::join_all;
use nostr::Keys;
use serde_json::{Value, json};

use crate::support::{Client, World, event, id, note, now};

#[tokio::test]
async fn an_event_is_stored_once_however_often_it_is_sent() {
    let world = World::start().await;
    let (mut one, mut other) = (world.client().await, world.client().await);
    let note = note(&Keys::generate(), now());

    one.store(&note).await;
    assert_eq!(
        one.publish(&note).await,
        (true, "duplicate: already have this event".to_owned())
    );
    assert!(other.publish(&note).await.0);

    assert_eq!(
        other.subscribe("a", &[json!({"ids": [id(&note)]})]).await,
        [note]
    );
    assert_eq!(world.count("SELECT count(*) FROM cn_relay.events").await, 1);
    assert_eq!(
        world
            .count("SELECT count(*) FROM cn_relay.event_dedupe")
            .await,
        1
    );
}

#[tokio::test]
async fn twins_on_many_connections_of_two_processes_are_stored_once() {
    let world = World::start().await;
    let elsewhere = world.another().await;
    let keys = Keys::generate();
    let notes: Vec<_> = (0..50)
        .map(|n| event(&keys, 1, now() - n, &[], "twin"))
        .collect();
    let senders = (0..8).map(async |number| {
        let host = if number % 2 == 0 {
            &world.host
        } else {
            &elsewhere
        };
        let mut client = Client::of(host).await;
        let mut fresh = 0;
        for note in &notes {
            let (taken, words) = client.publish(note).await;
            assert!(taken, "{words}");
            fresh += usize::from(words.is_empty());
        }
        fresh
    });
    let fresh: usize = join_all(senders).await.into_iter().sum();
    assert_eq!(fresh, 50, "each was new to exactly one");
    assert_eq!(
        world.count("SELECT count(*) FROM cn_relay.events").await,
        50
    );
    assert_eq!(
        world
            .count("SELECT count(*) FROM cn_relay.event_dedupe")
            .await,
        50
    );
}

#[tokio::test]
async fn what_is_not_a_signed_event_is_refused_with_the_reason() {
    let world = World::start().await;
    let mut client = world.client().await;
    let keys = Keys::generate();
    let change = |change: fn(&mut Value)| {
        let mut note = note(&keys, now());
        change(&mut note);
        note
    };
    for (event, words) in [
        (
            change(|it| it["content"] = json!("other")),
            "invalid: id is not the hash",
        ),
        (
            change(|it| it["sig"] = json!("00".repeat(64))),
            "invalid: sig is not a signature",
        ),
        (
            change(|it| it["kind"] = json!(70_000)),
            "invalid: not an event",
        ),
        (
            change(|it| it["tags"] = json!([[]])),
            "invalid: a tag is an empty list",
        ),
        (
            event(&keys, 1, now() + 3_600, &[], ""),
            "invalid: created_at is too far in the future",
        ),
        (
            event(&keys, 1, now(), &[&["expiration", "1"]], ""),
            "invalid: expired",
        ),
        (
            event(&keys, 22_242, now(), &[], ""),
            "invalid: this kind of event is for AUTH",
        ),
        (event(&keys, 30_000, now(), &[], ""), "invalid: missing d"),
        (
            event(&keys, 1, now(), &[], &"x".repeat(33_000)),
            "invalid: the event is larger than",
        ),
        (
            event(&keys, 1, now(), &[&["x"][..]; 201], ""),
            "invalid: the event has more than 200 tags",
        ),
    ] {
        let (taken, said) = client.publish(&event).await;
        assert!(!taken && said.starts_with(words), "{said}");
    }
    assert_eq!(
        world
            .count("SELECT count(*) FROM cn_relay.event_dedupe")
            .await,
        0
    );
}

#[tokio::test]
async fn an_event_comes_back_as_it_was_whatever_is_in_it() {
    let world = World::start().await;
    let mut client = world.client().await;
    let strange = "NUL \u{0} tab \t bell \u{7} quote \" back \\ 日本語 🏃 \u{2028} \u{7f}";
    let long = "x".repeat(3_000);
    let tags: [&[&str]; 3] = [&["s", strange], &["r", &long], &["q"]];
    let event = event(&Keys::generate(), 1, now(), &tags, strange);
    client.store(&event).await;
    for filter in [
        json!({"ids": [id(&event)]}),
        json!({"#s": [strange]}),
        json!({"#r": [long]}),
    ] {
        assert_eq!(
            client.subscribe("a", &[filter]).await,
            std::slice::from_ref(&event)
        );
    }
    assert_eq!(
        client.find(&[json!({"#q": [""]})]).await,
        Vec::<String>::new()
    );
}

#[tokio::test]
async fn ephemeral_events_are_told_once_and_never_stored() {
    let world = World::start().await;
    let (mut listener, mut sender) = (world.client().await, world.client().await);
    listener.subscribe("all", &[json!({})]).await;
    let event = event(&Keys::generate(), 20_001, now(), &[], "gone");
    sender.store(&event).await;
    assert_eq!(listener.news("all").await, event);
    // Whoever sends it again has been heard.
    for client in [&mut sender, &mut world.client().await] {
        let known = (true, "duplicate: already have this event".to_owned());
        assert_eq!(client.publish(&event).await, known);
    }
    listener.hears_nothing().await;
    assert!(
        sender
            .find(&[json!({"ids": [id(&event)]})])
            .await
            .is_empty()
    );
    for table in [
        "SELECT count(*) FROM cn_relay.events",
        "SELECT count(*) FROM cn_relay.event_dedupe",
        "SELECT count(*) FROM cn_relay.events_outbox_pending",
        "SELECT count(*) FROM cn_relay.events_outbox",
    ] {
        assert_eq!(world.count(table).await, 0, "{table}");
    }
}

#[tokio::test]
async fn an_event_that_ends_is_seen_until_then_and_the_log_is_told() {
    let world = World::start().await;
    let mut client = world.client().await;
    client.subscribe("all", &[json!({})]).await;
    let end = (now() + 5).to_string();
    let keys = Keys::generate();
    let regular = event(&keys, 1, now(), &[&["expiration", &end]], "");
    let kept = event(&keys, 0, now(), &[&["expiration", &end]], "");
    for event in [&regular, &kept] {
        client.say(&json!(["EVENT", event])).await;
        let (first, second) = (client.hear().await, client.hear().await);
        let both = [first[0].clone(), second[0].clone()];
        assert!(
            both.contains(&json!("OK")) && both.contains(&json!("EVENT")),
            "{both:?}"
        );
    }
    tasuki_testkit::eventually("both have ended", async || {
        world.count("SELECT count(*) FROM cn_relay.events_outbox WHERE op = 'delete' AND reason = 'expiration'")
            .await
            .eq(&2)
            .then_some(())
    })
    .await;
    let mut fresh = world.client().await;
    let ids = json!({"ids": [id(&regular), id(&kept)]});
    assert!(fresh.find(&[ids]).await.is_empty());
    // It does not come back.
    let refused = (false, "invalid: expired".to_owned());
    assert_eq!(fresh.publish(&regular).await, refused);
}

#[tokio::test]
async fn so_many_events_a_minute_and_no_more() {
    let world = World::with(|config| {
        config
            .with_value("community.limits.events-per-minute", 3)
            .unwrap()
    })
    .await;
    let mut client = world.client().await;
    let keys = Keys::generate();
    for n in 0..3 {
        client.store(&note(&keys, now() - n)).await;
    }
    let (taken, words) = client.publish(&note(&keys, now() - 9)).await;
    assert!(!taken && words.starts_with("rate-limited: "), "{words}");
    // Another connection of the same address does not help.
    let mut other = world.client().await;
    let (taken, words) = other.publish(&note(&Keys::generate(), now())).await;
    assert!(!taken && words.starts_with("rate-limited: "), "{words}");
}

#[tokio::test]
async fn events_that_are_in_flight_when_the_relay_stops_are_stored_or_not_answered() {
    let world = World::start().await;
    let mut client = world.client().await;
    let keys = Keys::generate();
    let notes: Vec<_> = (0..200).map(|n| note(&keys, now() - n)).collect();
    for note in &notes {
        client.say(&json!(["EVENT", note])).await;
    }
    client.hear().await;
    world.host.phases.stop();
    let mut taken = 1;
    let closed = loop {
        match client.heard().await {
            Ok(answer) if answer[0] == json!("OK") => taken += i64::from(answer[2] == json!(true)),
            Ok(_) => {}
            Err(frame) => break frame,
        }
    };
    assert_eq!(closed.map(|frame| u16::from(frame.code)), Some(1012));
    tasuki_testkit::eventually_within(
        Duration::from_secs(30),
        "all that was answered is there",
        async || (world.count("SELECT count(*) FROM cn_relay.events").await >= taken).then_some(()),
    )
    .await;
}
