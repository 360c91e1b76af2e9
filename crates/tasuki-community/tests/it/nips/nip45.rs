//! NIP-45: how many there are.

use nostr::Keys;
use serde_json::{Value, json};

use crate::support::{World, event, id, note, now};

#[tokio::test]
async fn a_count_is_of_all_filters_and_each_event_counts_once() {
    let world = World::start().await;
    let (mut client, keys, at) = (world.client().await, Keys::generate(), now());
    for n in 0..6 {
        client
            .store(&event(
                &keys,
                [1, 7][n % 2],
                at - i64::try_from(n).unwrap(),
                &[],
                "",
            ))
            .await;
    }
    // Versions that are gone and what was deleted do not count.
    client.store(&event(&keys, 0, at - 1, &[], "")).await;
    client.store(&event(&keys, 0, at, &[], "")).await;
    let gone = note(&keys, at);
    client.store(&gone).await;
    client
        .store(&event(&keys, 5, at, &[&["e", &id(&gone)]], ""))
        .await;
    for (filters, wanted) in [
        (vec![json!({})], 8),
        (vec![json!({"kinds": [1]})], 3),
        (vec![json!({"kinds": [1]}), json!({"kinds": [7]})], 6),
        (
            vec![json!({"kinds": [1]}), json!({"kinds": [1, 7]}), json!({})],
            8,
        ),
        (vec![json!({"kinds": [1], "limit": 1})], 3),
        (vec![json!({"kinds": [0, 5]})], 2),
        (vec![json!({"ids": []}), json!({"kinds": [0]})], 1),
        (vec![json!({"since": at - 1, "until": at - 1})], 1),
        (vec![json!({"#t": ["none"]})], 0),
    ] {
        let mut message = vec![json!("COUNT"), json!("c")];
        message.extend(filters);
        let message = Value::Array(message);
        client.say(&message).await;
        let answer = client.hear().await;
        assert_eq!(
            answer,
            json!(["COUNT", "c", {"count": wanted}]),
            "{message}"
        );
    }
}

#[tokio::test]
async fn a_count_that_is_refused_is_closed_with_the_reason() {
    let world = World::start().await;
    let mut client = world.client().await;
    let many: Vec<_> = (0..11).map(|_| json!({})).collect();
    let mut too_many = vec![json!("COUNT"), json!("c")];
    too_many.extend(many);
    for (message, words) in [
        (json!(["COUNT", "c"]), "invalid: no filter"),
        (Value::Array(too_many), "invalid: more than 10 filters"),
        (json!(["COUNT", "c", {"kinds": [-1]}]), "invalid: kinds"),
        (json!(["COUNT", "c", {"colour": 1}]), "unsupported: "),
        (json!(["COUNT", "x".repeat(65), {}]), "invalid: the name"),
        (json!(["COUNT", "c", {"search": "…"}]), "invalid: search"),
    ] {
        let said = client.refused(&message).await;
        assert!(said.starts_with(words), "{said}");
    }
    client.say(&json!(["COUNT", "c", {}])).await;
    assert_eq!(client.hear().await, json!(["COUNT", "c", {"count": 0}]));
}

#[tokio::test]
async fn a_count_leaves_the_subscription_of_its_name_alone() {
    let world = World::start().await;
    let mut client = world.client().await;
    client.subscribe("a", &[json!({})]).await;
    client.say(&json!(["COUNT", "a", {}])).await;
    assert_eq!(client.hear().await, json!(["COUNT", "a", {"count": 0}]));
    let said = note(&Keys::generate(), now());
    world.client().await.store(&said).await;
    assert_eq!(client.news("a").await, said);
}

/// So many reactions, without tags.
const REACTIONS: &str = "
    INSERT INTO cn_relay.events (event_id, ingested_at, pubkey, created_at, kind, topics, body)
    SELECT sha256(convert_to(n::text, 'UTF8')), now(), sha256('author'), n, 7, '{public}', '{}'
    FROM generate_series($1::bigint, $2) AS n";

#[tokio::test]
async fn a_count_is_exact_up_to_ten_thousand_and_says_when_it_is_not() {
    let world = World::start().await;
    let mut client = world.client().await;
    let store = async |from: i64, to: i64| {
        let made = sqlx::query(REACTIONS).bind(from).bind(to);
        made.execute(&world.env.db.pool).await.unwrap();
    };
    let mut count = async |filters: &[Value]| {
        let mut message = vec![json!("COUNT"), json!("c")];
        message.extend(filters.iter().cloned());
        client.say(&Value::Array(message)).await;
        client.hear().await[2].clone()
    };
    let (all, twice) = (
        json!({"kinds": [7]}),
        [json!({}), json!({"kinds": [7, 7, 1]})],
    );
    let one = std::slice::from_ref(&all);
    store(1, 10_000).await;
    assert_eq!(count(one).await, json!({"count": 10_000}));
    assert_eq!(count(&twice).await, json!({"count": 10_000}));
    // However often each is asked for.
    assert_eq!(count(&vec![all.clone(); 9]).await, json!({"count": 10_000}));
    store(10_001, 10_001).await;
    let many = json!({"count": 10_000, "approximate": true});
    assert_eq!(count(one).await, many);
    assert_eq!(count(&twice).await, many);
    assert_eq!(count(&vec![all.clone(); 10]).await, many);
    let few = json!({"kinds": [7], "until": 5});
    assert_eq!(count(&[few]).await, json!({"count": 5}));
}

#[tokio::test]
async fn a_count_opens_nothing_and_needs_no_room() {
    let world = World::with(|config| {
        let config = config.with_value("community.limits.subscriptions", 1);
        let config = config.unwrap();
        config.with_value("community.limits.topics", 1).unwrap()
    })
    .await;
    let mut client = world.client().await;
    client.subscribe("a", &[json!({"#t": ["x"]})]).await;
    let other = json!({"#t": ["y"]});
    let words = client.refused(&json!(["REQ", "b", other])).await;
    assert!(words.starts_with("rate-limited: "), "{words}");
    client.say(&json!(["COUNT", "b", {"#t": ["y", "z"]}])).await;
    assert_eq!(client.hear().await, json!(["COUNT", "b", {"count": 0}]));
    // The one that is open goes on.
    let news = event(&Keys::generate(), 1, now(), &[&["t", "x"]], "");
    world.client().await.store(&news).await;
    assert_eq!(client.news("a").await, news);
}
