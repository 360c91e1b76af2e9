//! What replaces what, and what is deleted: NIP-01 and NIP-09, edge by edge.

use nostr::Keys;
use serde_json::{Value, json};
use tasuki_testkit::eventually;

use crate::support::{World, event, id, note, now};

async fn log(world: &World) -> Vec<(String, String, Option<String>)> {
    sqlx::query_as("SELECT op, event_id, reason FROM cn_relay.events_outbox ORDER BY seq")
        .fetch_all(&world.env.db.pool)
        .await
        .unwrap()
}

fn row(op: &str, event: &Value, reason: Option<&str>) -> (String, String, Option<String>) {
    (op.to_owned(), id(event), reason.map(str::to_owned))
}

async fn logged(world: &World, wanted: &[(String, String, Option<String>)]) {
    eventually("the log is numbered", async || {
        (log(world).await.len() >= wanted.len()).then_some(())
    })
    .await;
    assert_eq!(log(world).await, wanted);
}

#[tokio::test]
async fn only_the_latest_version_is_given_out_whatever_the_order_of_arrival() {
    let world = World::start().await;
    let mut client = world.client().await;
    let (keys, at) = (Keys::generate(), now());
    let old = event(&keys, 0, at - 10, &[], "old");
    let new = event(&keys, 0, at, &[], "new");
    let older = event(&keys, 0, at - 20, &[], "older");

    client.store(&old).await;
    client.store(&new).await;
    assert_eq!(
        client.publish(&older).await,
        (false, "duplicate: have a newer version".to_owned())
    );

    assert_eq!(client.find(&[json!({"kinds": [0]})]).await, [id(&new)]);
    assert!(
        client
            .find(&[json!({"ids": [id(&old), id(&older)]})])
            .await
            .is_empty()
    );
    logged(
        &world,
        &[
            row("upsert", &old, None),
            row("delete", &old, Some("replaced")),
            row("upsert", &new, None),
        ],
    )
    .await;
}

#[tokio::test]
async fn of_two_versions_of_one_second_the_lower_id_stays_in_either_order() {
    for kind in [0, 30_023] {
        let world = World::start().await;
        let mut client = world.client().await;
        let (keys, at) = (Keys::generate(), now());
        let mut twins = ["a", "b"].map(|content| event(&keys, kind, at, &[&["d", "x"]], content));
        twins.sort_by_key(id);
        let [lower, higher] = &twins;
        client.store(higher).await;
        client.store(lower).await;
        assert_eq!(client.find(&[json!({"kinds": [kind]})]).await, [id(lower)]);
        assert!(client.publish(higher).await.1.starts_with("duplicate"));
        assert_eq!(client.find(&[json!({"kinds": [kind]})]).await, [id(lower)]);
    }
}

#[tokio::test]
async fn addressable_events_are_told_apart_by_author_kind_and_d() {
    let world = World::start().await;
    let mut client = world.client().await;
    let (a, b, at) = (Keys::generate(), Keys::generate(), now());
    let all = [
        event(&a, 30_000, at, &[&["d", "x"]], ""),
        event(&a, 30_000, at, &[&["d", ""]], ""),
        event(&a, 30_001, at, &[&["d", "x"]], ""),
        event(&b, 30_000, at, &[&["d", "x"]], ""),
    ];
    for event in &all {
        client.store(event).await;
    }
    let newer = event(&a, 30_000, at + 1, &[&["d", "x"], &["d", "y"]], "newer");
    client.store(&newer).await;
    let mut found = client.find(&[json!({"kinds": [30_000, 30_001]})]).await;
    let mut wanted: Vec<_> = all[1..].iter().chain([&newer]).map(id).collect();
    found.sort();
    wanted.sort();
    assert_eq!(found, wanted);
    assert_eq!(
        client
            .find(&[json!({"#d": ["x"], "authors": [a.public_key().to_hex()]})])
            .await
            .len(),
        2
    );
}

#[tokio::test]
async fn an_author_deletes_what_is_his_before_or_after_it_arrives_and_the_deletion_stays() {
    let world = World::start().await;
    let mut client = world.client().await;
    let (keys, at) = (Keys::generate(), now());
    let (early, late) = (note(&keys, at - 1), note(&keys, at - 2));
    let deletion = event(&keys, 5, at, &[&["e", &id(&early)], &["e", &id(&late)]], "");

    client.store(&early).await;
    client.store(&deletion).await;
    assert_eq!(
        client.publish(&late).await,
        (
            false,
            "blocked: its author has deleted this event".to_owned()
        )
    );

    assert_eq!(
        client
            .find(&[json!({"authors": [keys.public_key().to_hex()]})])
            .await,
        [id(&deletion)]
    );
    // Sent again, it does not come back.
    assert!(client.publish(&early).await.1.starts_with("blocked"));
    assert!(client.find(&[json!({"kinds": [1]})]).await.is_empty());
    logged(
        &world,
        &[
            row("upsert", &early, None),
            row("upsert", &deletion, None),
            row("delete", &early, Some("nip09")),
        ],
    )
    .await;
}

#[tokio::test]
async fn nobody_deletes_what_is_others() {
    let world = World::start().await;
    let mut client = world.client().await;
    let (a, b, at) = (Keys::generate(), Keys::generate(), now());
    let note = note(&a, at - 1);
    let page = event(&a, 30_023, at - 1, &[&["d", "x"]], "");
    let place = format!("30023:{}:x", a.public_key().to_hex());
    let tags: [&[&str]; 3] = [&["e", &id(&note)], &["e", &id(&page)], &["a", &place]];
    client.store(&note).await;
    client.store(&event(&b, 5, at, &tags, "")).await;
    client.store(&page).await;
    let found = client.find(&[json!({"kinds": [1, 30_023]})]).await;
    assert_eq!(found.len(), 2, "{found:?}");
}

#[tokio::test]
async fn deleting_a_deletion_does_nothing() {
    let world = World::start().await;
    let mut client = world.client().await;
    let (keys, at) = (Keys::generate(), now());
    let note = note(&keys, at - 2);
    let first = event(&keys, 5, at - 1, &[&["e", &id(&note)]], "");
    let second = event(&keys, 5, at, &[&["e", &id(&first)]], "");
    for event in [&note, &first, &second] {
        client.store(event).await;
    }
    assert_eq!(
        client
            .find(&[json!({"authors": [keys.public_key().to_hex()]})])
            .await,
        [id(&second), id(&first)]
    );
}

#[tokio::test]
async fn a_deletion_by_address_covers_versions_up_to_its_own_time() {
    let world = World::start().await;
    let mut client = world.client().await;
    let (keys, at) = (Keys::generate(), now());
    let version = |at| event(&keys, 30_023, at, &[&["d", "x"]], "");
    let place = format!("30023:{}:x", keys.public_key().to_hex());
    let deletion = event(&keys, 5, at - 5, &[&["a", &place]], "");

    client.store(&version(at - 6)).await;
    client.store(&deletion).await;
    assert!(client.find(&[json!({"kinds": [30_023]})]).await.is_empty());
    assert!(!client.publish(&version(at - 7)).await.0);
    assert!(!client.publish(&version(at - 5)).await.0);
    let newer = version(at - 4);
    client.store(&newer).await;
    assert_eq!(
        client.find(&[json!({"kinds": [30_023]})]).await,
        [id(&newer)]
    );
    // The same deletion, sent again, leaves the newer one alone; so does an older one.
    client.store(&deletion).await;
    client
        .store(&event(&keys, 5, at - 6, &[&["a", &place]], ""))
        .await;
    assert_eq!(
        client.find(&[json!({"kinds": [30_023]})]).await,
        [id(&newer)]
    );
    // And of a replaceable event.
    let profile = event(&keys, 0, at - 3, &[], "");
    let place = format!("0:{}:", keys.public_key().to_hex());
    client.store(&profile).await;
    client
        .store(&event(&keys, 5, at - 3, &[&["a", &place]], ""))
        .await;
    assert!(client.find(&[json!({"kinds": [0]})]).await.is_empty());
}

#[tokio::test]
async fn a_deleted_version_gives_way_to_a_newer_one_and_not_to_an_older_one() {
    let world = World::start().await;
    let mut client = world.client().await;
    let (keys, at) = (Keys::generate(), now());
    let version = |at| event(&keys, 10_002, at, &[], "");
    let (older, deleted, newer) = (version(at - 3), version(at - 2), version(at - 1));
    client.store(&deleted).await;
    client
        .store(&event(&keys, 5, at, &[&["e", &id(&deleted)]], ""))
        .await;
    assert!(client.publish(&older).await.1.starts_with("duplicate"));
    assert!(client.find(&[json!({"kinds": [10_002]})]).await.is_empty());
    client.store(&newer).await;
    assert_eq!(
        client.find(&[json!({"kinds": [10_002]})]).await,
        [id(&newer)]
    );
}

#[tokio::test]
async fn what_is_deleted_or_replaced_in_the_same_breath_is_never_told() {
    let world = World::start().await;
    let (mut listener, mut sender) = (world.client().await, world.client().await);
    listener.subscribe("all", &[json!({})]).await;
    let (keys, at) = (Keys::generate(), now());
    let mut last = Value::Null;
    // All at once, so that they share transactions.
    for n in 0..100 {
        last = event(&keys, 0, at + n - 100, &[], "");
        sender.say(&json!(["EVENT", last])).await;
    }
    for _ in 0..100 {
        assert_eq!(sender.hear().await[2], json!(true));
    }
    let mut told = Vec::new();
    while told.last() != Some(&last) {
        told.push(listener.news("all").await);
    }
    let times: Vec<_> = told
        .iter()
        .map(|event| event["created_at"].as_i64().unwrap())
        .collect();
    assert!(
        times.is_sorted(),
        "an older version was told after a newer one: {times:?}"
    );
    assert_eq!(sender.find(&[json!({})]).await, [id(&last)]);
}
