//! NIP-01, what is asked for: filters of what is stored and of what is new.

use nostr::Keys;
use serde_json::{Value, json};

use crate::support::{World, event, id, now};

#[tokio::test]
async fn since_and_until_include_their_second() {
    let world = World::start().await;
    let (mut client, keys, at) = (world.client().await, Keys::generate(), now() - 100);
    let events: Vec<_> = (0..5).map(|n| event(&keys, 1, at + n, &[], "")).collect();
    let of = |numbers: &[usize]| -> Vec<_> { numbers.iter().map(|n| id(&events[*n])).collect() };
    for event in &events {
        client.store(event).await;
    }
    for (filter, wanted) in [
        (json!({"since": at + 2}), &[4, 3, 2][..]),
        (json!({"until": at + 2}), &[2, 1, 0]),
        (json!({"since": at + 2, "until": at + 2}), &[2]),
        (json!({"since": at + 3, "until": at + 2}), &[]),
        (json!({"since": 0, "until": i64::MAX}), &[4, 3, 2, 1, 0]),
        (json!({"until": 0}), &[]),
    ] {
        let found = client.find(std::slice::from_ref(&filter)).await;
        assert_eq!(found, of(wanted), "{filter}");
    }
    // And of what is new.
    let mut listener = world.client().await;
    let time = at + 50;
    listener
        .subscribe("a", &[json!({"since": time, "until": time})])
        .await;
    let news: Vec<_> = (-1..2)
        .map(|n| event(&keys, 1, time + n, &[], "new"))
        .collect();
    for event in &news {
        client.store(event).await;
    }
    assert_eq!(listener.news("a").await, news[1]);
    listener.hears_nothing().await;
}

#[tokio::test]
async fn a_limit_is_of_its_filter_and_of_what_is_stored() {
    let world = World::start().await;
    let (mut client, keys, at) = (world.client().await, Keys::generate(), now() - 100);
    // Three of each second: ids decide which are the last.
    let mut events: Vec<_> = (0..30)
        .map(|n| {
            event(
                &keys,
                [1, 7][n % 2],
                at + i64::try_from(n / 3).unwrap(),
                &[],
                &n.to_string(),
            )
        })
        .collect();
    for event in &events {
        client.store(event).await;
    }
    events.sort_by_key(|event| (std::cmp::Reverse(event["created_at"].as_i64()), id(event)));
    let of = |kind: u16, most: usize| {
        let kind = json!(kind);
        let fits = events.iter().filter(move |event| event["kind"] == kind);
        fits.take(most).cloned().collect::<Vec<Value>>()
    };
    let stored = client
        .subscribe(
            "a",
            &[
                json!({"kinds": [1], "limit": 4}),
                json!({"kinds": [7], "limit": 2}),
            ],
        )
        .await;
    let mut wanted = [of(1, 4), of(7, 2)].concat();
    wanted.sort_by_key(|event| (std::cmp::Reverse(event["created_at"].as_i64()), id(event)));
    assert_eq!(stored, wanted);
    let stored = client
        .subscribe(
            "b",
            &[json!({"limit": 0}), json!({"kinds": [7], "limit": 1})],
        )
        .await;
    assert_eq!(stored, of(7, 1));
    assert!(
        client
            .subscribe("c", &[json!({"limit": 0})])
            .await
            .is_empty()
    );
    // What is new comes to all of them.
    let new = event(&keys, 1, now(), &[], "new");
    world.client().await.store(&new).await;
    let mut names = Vec::new();
    for _ in 0..3 {
        let heard = client.hear().await;
        assert_eq!(heard[2], new);
        names.push(heard[1].clone());
    }
    names.sort_by_key(ToString::to_string);
    assert_eq!(names, ["a", "b", "c"]);
}

#[tokio::test]
async fn an_empty_list_fits_nothing_and_spoils_no_other_filter() {
    let world = World::start().await;
    let (mut client, keys) = (world.client().await, Keys::generate());
    let stored = event(&keys, 1, now(), &[&["t", "a"]], "");
    client.store(&stored).await;
    let empty = ["ids", "authors", "kinds", "#t", "#e"].map(|name| json!({name: []}));
    for filter in &empty {
        let found = client.find(std::slice::from_ref(filter)).await;
        assert!(found.is_empty(), "{filter}");
        client.say(&json!(["COUNT", "c", filter])).await;
        assert_eq!(client.hear().await, json!(["COUNT", "c", {"count": 0}]));
    }
    let mut listener = world.client().await;
    listener.subscribe("empty", &empty).await;
    let beside = [empty[0].clone(), json!({"kinds": [1]})];
    assert_eq!(listener.subscribe("both", &beside).await, [stored]);
    let new = event(&keys, 1, now(), &[&["t", "a"]], "new");
    client.store(&new).await;
    assert_eq!(listener.news("both").await, new);
    listener.hears_nothing().await;
}

#[tokio::test]
async fn ids_and_keys_are_whole_and_in_lower_case() {
    let world = World::start().await;
    let (mut client, keys) = (world.client().await, Keys::generate());
    let stored = event(&keys, 1, now(), &[], "");
    client.store(&stored).await;
    let whole = id(&stored);
    for field in ["ids", "authors", "#e", "#p"] {
        for wrong in [
            &whole[..8],
            &whole[..63],
            &whole.to_uppercase().replace(char::is_numeric, "A"),
            &format!("{whole}00"),
            "",
            "xy",
        ] {
            let words = client.refused(&json!(["REQ", "a", {field: [wrong]}])).await;
            assert!(words.starts_with(&format!("invalid: {field} ")), "{words}");
        }
    }
    assert_eq!(client.find(&[json!({"ids": [whole]})]).await, [whole]);
}

#[tokio::test]
async fn what_is_no_filter_is_refused() {
    let world = World::start().await;
    let mut client = world.client().await;
    for (wrong, words) in [
        (json!({"kinds": 1}), "invalid: kinds"),
        (json!({"kinds": [65_536]}), "invalid: kinds"),
        (json!({"kinds": ["1"]}), "invalid: kinds"),
        (json!({"since": "0"}), "invalid: since"),
        (json!({"since": -1}), "invalid: since"),
        (json!({"until": 1.5}), "invalid: until"),
        (json!({"limit": -1}), "invalid: limit"),
        (json!({"#t": "a"}), "invalid: #t"),
        (json!({"#t": [1]}), "invalid: #t"),
        (
            json!({"#tag": ["a"]}),
            "unsupported: filter contains unknown elements",
        ),
        (
            json!({"#é": ["a"]}),
            "unsupported: filter contains unknown elements",
        ),
        (
            json!({"relays": ["a"]}),
            "unsupported: filter contains unknown elements",
        ),
        (json!([]), "invalid: a filter is an object"),
        (json!("x"), "invalid: a filter is an object"),
    ] {
        // One is enough, whatever is beside it.
        let said = client.refused(&json!(["REQ", "a", {}, wrong])).await;
        assert!(said.starts_with(words), "{wrong}: {said}");
    }
}

#[tokio::test]
async fn tags_of_any_one_letter_are_looked_for_by_their_first_value() {
    let world = World::start().await;
    let (mut client, keys) = (world.client().await, Keys::generate());
    let letters: Vec<String> = ('a'..='z').chain('A'..='Z').map(String::from).collect();
    let value = "ab".repeat(32);
    let tags: Vec<[&str; 3]> = letters
        .iter()
        .map(|it| [it.as_str(), &*value, "second"])
        .collect();
    let tags: Vec<&[&str]> = tags.iter().map(<[&str; 3]>::as_slice).collect();
    let made = event(&keys, 1, now(), &tags, "");
    let lower = event(&keys, 1, now() - 1, &[&["x", "only lower"]], "");
    client.store(&made).await;
    client.store(&lower).await;
    for letter in &letters {
        let name = format!("#{letter}");
        let found = client.find(&[json!({name.clone(): [value]})]).await;
        assert_eq!(found, [id(&made)], "{letter}");
        if !matches!(&**letter, "e" | "p") {
            let found = client.find(&[json!({name: ["second"]})]).await;
            assert!(found.is_empty(), "{letter}");
        }
    }
    assert_eq!(
        client.find(&[json!({"#x": ["only lower"]})]).await,
        [id(&lower)]
    );
    assert!(
        client
            .find(&[json!({"#X": ["only lower"]})])
            .await
            .is_empty()
    );
    // Each name must fit, and of each one value is enough.
    for (filter, fits) in [
        (json!({"#a": [value, "other"], "#b": [value]}), 1),
        (json!({"#a": [value], "#b": ["other"]}), 0),
        (json!({"#a": [value], "kinds": [2]}), 0),
    ] {
        let found = client.find(std::slice::from_ref(&filter)).await;
        assert_eq!(found.len(), fits, "{filter}");
    }
}
