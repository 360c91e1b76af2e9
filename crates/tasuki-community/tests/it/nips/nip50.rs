//! NIP-50: what is searched for beside other conditions, and what is not understood.

use nostr::Keys;
use serde_json::{Value, json};

use crate::support::{World, event, id, now};

#[tokio::test]
async fn a_search_is_one_condition_among_others_and_unknown_extensions_are_none() {
    let world = World::start().await;
    let (mut client, keys, at) = (world.client().await, Keys::generate(), now());
    let author = keys.public_key().to_hex();
    let made = [
        event(&keys, 1, at, &[&["t", "fruit"]], "an orange"),
        event(&keys, 30_023, at - 1, &[&["d", "x"]], "purple and orange"),
        event(&Keys::generate(), 1, at - 2, &[], "purple"),
        event(&keys, 1, at - 3, &[], "see https://example.com/orange"),
    ];
    for event in &made {
        client.store(event).await;
    }
    world.caught_up("index-v1").await;
    let first = id(&made[0]);
    for (filters, found) in [
        (vec![json!({"search": "orange"})], &[0, 1, 3][..]),
        (vec![json!({"search": "ORANGE"})], &[0, 1, 3]),
        (vec![json!({"search": "orange", "kinds": [30_023]})], &[1]),
        (vec![json!({"search": "orange", "ids": [first]})], &[0]),
        (vec![json!({"search": "orange", "#t": ["fruit"]})], &[0]),
        (
            vec![json!({"search": "orange", "authors": [author], "until": at - 1})],
            &[1, 3],
        ),
        (vec![json!({"search": "orange", "limit": 1})], &[0]),
        (vec![json!({"search": "orange", "limit": 0})], &[]),
        (
            vec![
                json!({"search": "orange"}),
                json!({"kinds": [1], "search": "purple"}),
            ],
            &[0, 1, 2, 3],
        ),
        (
            vec![json!({"search": "orange language:en include:spam nsfw:false domain:a.b"})],
            &[0, 1, 3],
        ),
        (
            vec![json!({"search": "sentiment:positive", "kinds": [30_023]})],
            &[1],
        ),
        (vec![json!({"search": "", "kinds": [30_023]})], &[1]),
        (vec![json!({"search": "https://example.com"})], &[3]),
        (vec![json!({"search": "nothing of the kind"})], &[]),
    ] {
        let wanted: Vec<_> = found.iter().map(|n: &usize| id(&made[*n])).collect();
        assert_eq!(client.find(&filters).await, wanted, "{filters:?}");
    }
    for text in ["…", "!?", &"long ".repeat(2_000)] {
        let words = client.refused(&json!(["REQ", "a", {"search": text}])).await;
        assert!(words.starts_with("invalid: search "), "{words}");
    }
    let words = client
        .refused(&json!(["REQ", "a", {"search": ["a"]}]))
        .await;
    assert!(words.starts_with("invalid: search "), "{words}");
}

#[tokio::test]
async fn a_search_among_ids_finds_and_counts_those_that_match() {
    let world = World::start().await;
    let (mut client, keys, at) = (world.client().await, Keys::generate(), now());
    let made = [
        event(&keys, 1, at, &[], "an elephant"),
        event(&keys, 1, at - 1, &[], "a mouse"),
        event(&keys, 0, at - 2, &[], r#"{"about":"elephants"}"#),
        event(&keys, 1, at - 3, &[], "another elephant"),
    ];
    for event in &made {
        client.store(event).await;
    }
    world.caught_up("index-v1").await;
    let ids: Vec<_> = made.iter().map(id).collect();
    let unknown = "ab".repeat(32);
    for (filter, found) in [
        (json!({"ids": [ids[0]], "search": "elephant"}), &[0][..]),
        (json!({"ids": [ids[1]], "search": "elephant"}), &[]),
        (json!({"ids": [unknown], "search": "elephant"}), &[]),
        (json!({"ids": ids[..3], "search": "elephant"}), &[0, 2]),
        (
            json!({"ids": ids[..3], "search": "elephant", "kinds": [0]}),
            &[2],
        ),
        (
            json!({"ids": ids[..3], "search": "language:en"}),
            &[0, 1, 2],
        ),
    ] {
        let wanted: Vec<_> = found.iter().map(|n: &usize| ids[*n].clone()).collect();
        let given = client.find(std::slice::from_ref(&filter)).await;
        assert_eq!(given, wanted, "{filter}");
        client.say(&json!(["COUNT", "c", filter])).await;
        let counted = client.hear().await;
        assert_eq!(counted[2]["count"], json!(wanted.len()), "{filter}");
    }
}

#[tokio::test]
async fn what_an_extension_is_alone_in_listens_as_if_it_was_not_there() {
    let world = World::start().await;
    let (mut client, mut listener) = (world.client().await, world.client().await);
    for (name, search) in [("words", "orange"), ("none", "include:spam")] {
        listener.subscribe(name, &[json!({"search": search})]).await;
    }
    let made: Value = event(&Keys::generate(), 1, now(), &[], "orange");
    client.store(&made).await;
    // Words are searched in what is stored, and nowhere else.
    assert_eq!(listener.news("none").await, made);
    listener.hears_nothing().await;
}
