//! NIP-09: what a deletion takes away, what it leaves, and what stays away.

use nostr::Keys;
use serde_json::{Value, json};

use crate::support::{Client, World, event, id, note, now};

fn place(kind: u16, by: &Keys, d: &str) -> String {
    format!("{kind}:{}:{d}", by.public_key().to_hex())
}

async fn is_there(client: &mut Client, event: &Value) -> bool {
    !client.find(&[json!({"ids": [id(event)]})]).await.is_empty()
}

#[tokio::test]
async fn a_deletion_names_events_and_versions_and_is_given_out_for_ever_after() {
    let world = World::start().await;
    let (mut client, mut listener) = (world.client().await, world.client().await);
    let (keys, at) = (Keys::generate(), now());
    let said = note(&keys, at - 9);
    let page = event(&keys, 30_023, at - 9, &[&["d", "a:b"]], "");
    let unnamed = event(&keys, 30_023, at - 9, &[&["d", ""]], "");
    let profile = event(&keys, 0, at - 9, &[], "");
    let list = event(&keys, 10_002, at - 9, &[], "");
    let all = [&said, &page, &unnamed, &profile, &list];
    for event in all {
        client.store(event).await;
    }
    listener
        .subscribe("deletions", &[json!({"kinds": [5]})])
        .await;
    let (a, b, c) = (
        place(30_023, &keys, "a:b"),
        place(30_023, &keys, ""),
        place(0, &keys, ""),
    );
    // Without the colon at the end, as some write it.
    let d = place(10_002, &keys, "").trim_end_matches(':').to_owned();
    let tags: [&[&str]; 7] = [
        &["e", &id(&said), "wss://elsewhere.example"],
        &["a", &a],
        &["a", &b],
        &["a", &c],
        &["a", &d],
        // What it says of kinds is for people.
        &["k", "7"],
        &["e", "no id"],
    ];
    let deletion = event(&keys, 5, at, &tags, "by accident");
    client.store(&deletion).await;
    for event in all {
        assert!(!is_there(&mut client, event).await, "{event}");
    }
    assert_eq!(listener.news("deletions").await, deletion);
    for filter in [
        json!({"kinds": [5]}),
        json!({"#e": [id(&said)]}),
        json!({"#a": [a]}),
        json!({"authors": [keys.public_key().to_hex()]}),
    ] {
        let found = client.find(std::slice::from_ref(&filter)).await;
        assert_eq!(found, [id(&deletion)], "{filter}");
    }
    client.say(&json!(["COUNT", "c", {}])).await;
    assert_eq!(client.hear().await, json!(["COUNT", "c", {"count": 1}]));
}

#[tokio::test]
async fn what_was_deleted_is_refused_when_it_is_sent_again() {
    let world = World::start().await;
    let (mut client, keys, at) = (world.client().await, Keys::generate(), now());
    let said = note(&keys, at - 9);
    let page = |at| event(&keys, 30_023, at, &[&["d", "x"]], "");
    let old = page(at - 9);
    client.store(&said).await;
    client.store(&old).await;
    let (gone, place) = (id(&said), place(30_023, &keys, "x"));
    client
        .store(&event(
            &keys,
            5,
            at - 5,
            &[&["e", &gone], &["a", &place]],
            "",
        ))
        .await;
    for event in [&said, &old, &page(at - 7), &page(at - 5)] {
        assert_eq!(
            client.publish(event).await,
            (
                false,
                "blocked: its author has deleted this event".to_owned()
            )
        );
    }
    let newer = page(at - 4);
    client.store(&newer).await;
    assert!(is_there(&mut client, &newer).await);
}

#[tokio::test]
async fn an_address_is_bound_by_kind_author_and_d() {
    let world = World::start().await;
    let (mut client, at) = (world.client().await, now());
    let (keys, other) = (Keys::generate(), Keys::generate());
    let gone = event(&keys, 30_023, at - 9, &[&["d", "x"]], "");
    let stay = [
        event(&other, 30_023, at - 9, &[&["d", "x"]], ""),
        event(&keys, 30_023, at - 9, &[&["d", "y"]], ""),
        event(&keys, 30_023, at - 9, &[&["d", ""]], ""),
        event(&keys, 30_024, at - 9, &[&["d", "x"]], ""),
        // Of what has no versions, an address means nothing.
        event(&keys, 1, at - 9, &[&["d", "x"]], ""),
    ];
    client.store(&gone).await;
    for event in &stay {
        client.store(event).await;
    }
    let (address, regular) = (place(30_023, &keys, "x"), place(1, &keys, "x"));
    // An addressable event has a `d`, if only an empty one: this names none.
    let without = place(30_023, &keys, "").trim_end_matches(':').to_owned();
    let tags: [&[&str]; 3] = [&["a", &address], &["a", &regular], &["a", &without]];
    client.store(&event(&keys, 5, at, &tags, "")).await;
    assert!(!is_there(&mut client, &gone).await);
    for event in &stay {
        assert!(is_there(&mut client, event).await, "{event}");
    }
}

#[tokio::test]
async fn a_deletion_of_what_is_others_is_stored_and_does_nothing_in_either_order() {
    let world = World::start().await;
    let (mut client, at) = (world.client().await, now());
    let (keys, other) = (Keys::generate(), Keys::generate());
    let said = note(&keys, at - 9);
    let page = event(&keys, 30_023, at - 9, &[&["d", "x"]], "");
    // Whom it is for has not signed it.
    let receiver = other.public_key().to_hex();
    let wrap = event(&keys, 1059, at - 9, &[&["p", &receiver]], "");
    let address = place(30_023, &keys, "x");
    let deletion = |at, with: &str| {
        let (said, page, wrap) = (id(&said), id(&page), id(&wrap));
        let tags: [&[&str]; 5] = [
            &["e", &said],
            &["e", &page],
            &["e", &wrap],
            &["a", &address],
            &["x", with],
        ];
        event(&other, 5, at, &tags, "")
    };
    let (first, second) = (deletion(at - 8, "first"), deletion(at, "second"));
    client.store(&first).await;
    for event in [&said, &page, &wrap] {
        client.store(event).await;
    }
    client.store(&second).await;
    for event in [&said, &page, &wrap] {
        assert!(is_there(&mut client, event).await, "{event}");
    }
    let given = client.find(&[json!({"kinds": [5]})]).await;
    assert_eq!(given, [id(&second), id(&first)]);
    // Beside what is others', it deletes what is its author's.
    let own = note(&other, at - 9);
    client.store(&own).await;
    let tags: [&[&str]; 2] = [&["e", &id(&said)], &["e", &id(&own)]];
    client.store(&event(&other, 5, at, &tags, "")).await;
    assert!(is_there(&mut client, &said).await && !is_there(&mut client, &own).await);
}

#[tokio::test]
async fn a_deletion_that_comes_first_keeps_its_targets_away() {
    let world = World::start().await;
    let (mut client, mut listener) = (world.client().await, world.client().await);
    listener
        .subscribe("notes", &[json!({"kinds": [1, 0, 30_023]})])
        .await;
    let (keys, other, at) = (Keys::generate(), Keys::generate(), now());
    let said = note(&keys, at - 9);
    let page = event(&keys, 30_023, at - 9, &[&["d", "x"]], "");
    let profile = event(&keys, 0, at - 9, &[], "");
    let (gone, a, b) = (id(&said), place(30_023, &keys, "x"), place(0, &keys, ""));
    // A stranger's, which is before it as well, keeps nothing away.
    client
        .store(&event(&other, 5, at, &[&["e", &gone]], ""))
        .await;
    let tags: [&[&str]; 3] = [&["e", &gone], &["a", &a], &["a", &b]];
    client.store(&event(&keys, 5, at, &tags, "")).await;
    for event in [&said, &page, &profile] {
        assert!(!client.publish(event).await.0, "{event}");
    }
    listener.hears_nothing().await;
    assert!(
        client
            .find(&[json!({"kinds": [1, 0, 30_023]})])
            .await
            .is_empty()
    );
    let others = note(&other, at);
    client.store(&others).await;
    assert_eq!(listener.news("notes").await, others);
}

#[tokio::test]
async fn deletions_can_not_be_deleted_by_anybody() {
    let world = World::start().await;
    let (mut client, keys, at) = (world.client().await, Keys::generate(), now());
    let said = note(&keys, at - 9);
    client.store(&said).await;
    let first = event(&keys, 5, at - 5, &[&["e", &id(&said)], &["k", "1"]], "");
    client.store(&first).await;
    let address = place(5, &keys, "");
    let tags: [&[&str]; 3] = [&["e", &id(&first)], &["a", &address], &["k", "5"]];
    client.store(&event(&keys, 5, at, &tags, "")).await;
    assert!(is_there(&mut client, &first).await);
    assert!(!client.publish(&said).await.0);
    let others = event(&Keys::generate(), 5, at, &[&["e", &id(&first)]], "");
    client.store(&others).await;
    assert!(is_there(&mut client, &first).await);
}
