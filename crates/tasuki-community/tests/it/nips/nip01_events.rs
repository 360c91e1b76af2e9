//! NIP-01, what is published: kinds, versions, JSON, and what is answered.

use nostr::Keys;
use serde_json::{Value, json};

use crate::support::{Client, World, event, id, note, now};

/// Two events by one author that differ in their content alone, the one with the lower id first.
fn twins(by: &Keys, kind: u16) -> [Value; 2] {
    let at = now();
    let mut twins = ["a", "b"].map(|content| event(by, kind, at, &[&["d", "x"]], content));
    twins.sort_by_key(id);
    twins
}

#[tokio::test]
async fn the_number_of_a_kind_says_how_long_its_events_are_kept() {
    let world = World::start().await;
    let (mut client, at) = (world.client().await, now());
    for (kinds, stored) in [
        (
            &[1_u16, 2, 4, 44, 45, 999, 1_000, 9_999, 40_000, 65_535][..],
            2,
        ),
        (&[0, 3, 10_000, 19_999], 1),
        (&[20_000, 29_999], 0),
        (&[30_000, 39_999], 1),
    ] {
        for kind in kinds {
            let keys = Keys::generate();
            for n in 0..2 {
                client
                    .store(&event(&keys, *kind, at + n, &[&["d", "x"]], ""))
                    .await;
            }
            let found = client.find(&[json!({"kinds": [kind]})]).await;
            assert_eq!(found.len(), stored, "{kind}");
        }
    }
}

#[tokio::test]
async fn of_twins_the_lower_id_stays_in_both_orders_and_after_a_restart() {
    let world = World::start().await;
    let mut client = world.client().await;
    let mut wanted = Vec::new();
    let mut others = Vec::new();
    for kind in [0, 10_002, 30_023] {
        for lower_first in [true, false] {
            let [lower, higher] = twins(&Keys::generate(), kind);
            if lower_first {
                client.store(&lower).await;
                let refused = (false, "duplicate: have a newer version".to_owned());
                assert_eq!(client.publish(&higher).await, refused, "{kind}");
            } else {
                client.store(&higher).await;
                client.store(&lower).await;
            }
            wanted.push(id(&lower));
            others.push(higher);
        }
    }
    world.host.phases.stop();
    let restarted = world.another().await;
    let mut client = Client::of(&restarted).await;
    for higher in &others {
        assert!(!client.publish(higher).await.0);
    }
    let mut found = client.find(&[json!({})]).await;
    found.sort();
    wanted.sort();
    assert_eq!(found, wanted);
}

#[tokio::test]
async fn an_older_version_is_refused_and_the_same_one_is_a_duplicate() {
    let world = World::start().await;
    let mut client = world.client().await;
    for kind in [0, 30_023] {
        let keys = Keys::generate();
        let version = |at| event(&keys, kind, at, &[&["d", "x"]], "");
        let (old, new) = (version(now() - 9), version(now()));
        client.store(&old).await;
        client.store(&new).await;
        let known = (true, "duplicate: already have this event".to_owned());
        assert_eq!(client.publish(&new).await, known);
        for older in [&old, &version(now() - 5)] {
            let refused = (false, "duplicate: have a newer version".to_owned());
            assert_eq!(client.publish(older).await, refused, "{kind}");
        }
        let found = client.find(&[json!({"kinds": [kind]})]).await;
        assert_eq!(found, [id(&new)]);
    }
}

#[tokio::test]
async fn events_of_one_client_are_taken_in_the_order_in_which_it_has_sent_them() {
    let world = World::start().await;
    let (mut client, keys, at) = (world.client().await, Keys::generate(), now());
    let mut versions: Vec<_> = (0..100).map(|n| event(&keys, 0, at + n, &[], "")).collect();
    let said = note(&keys, at);
    let deletion = event(&keys, 5, at, &[&["e", &id(&said)]], "");
    versions.extend([said, deletion]);
    for version in &versions {
        client.say(&json!(["EVENT", version])).await;
    }
    for _ in &versions {
        let answer = client.hear().await;
        assert_eq!((&answer[2], &answer[3]), (&json!(true), &json!("")));
    }
    let found = client.find(&[json!({})]).await;
    assert_eq!(found, [id(&versions[99]), id(&versions[101])]);
}

#[tokio::test]
async fn only_the_first_d_counts_and_replaceable_events_have_none() {
    let world = World::start().await;
    let (mut client, keys, at) = (world.client().await, Keys::generate(), now());
    client
        .store(&event(&keys, 10_000, at - 1, &[&["d", "a"]], ""))
        .await;
    let list = event(&keys, 10_000, at, &[&["d", "b"]], "");
    client.store(&list).await;
    client
        .store(&event(
            &keys,
            30_000,
            at - 1,
            &[&["d", "a", "z"], &["d", "b"]],
            "",
        ))
        .await;
    let first = event(&keys, 30_000, at, &[&["x"], &["d", "a"], &["d", "c"]], "");
    client.store(&first).await;
    // No value is an empty one.
    client
        .store(&event(&keys, 30_000, at - 1, &[&["d"]], ""))
        .await;
    let empty = event(&keys, 30_000, at, &[&["d", ""]], "");
    client.store(&empty).await;
    let mut found = client.find(&[json!({})]).await;
    let mut wanted = [&list, &first, &empty].map(id);
    found.sort();
    wanted.sort();
    assert_eq!(found, wanted);
}

#[tokio::test]
async fn events_are_taken_in_any_json_that_says_the_same() {
    let world = World::start().await;
    let (mut client, keys) = (world.client().await, Keys::generate());
    let all = "line\nquote\"back\\return\rtab\tbackspace\u{8}feed\u{c}end";
    let strange = "NUL \u{0} \u{1}\u{b}\u{1f} \u{7f} \u{fdd1}\u{10fff2} 🏃 \u{2028}";
    for content in [all, strange, "a/b é 🏃", ""] {
        let made = event(&keys, 1, now(), &[&["x", content]], content);
        let compact = made.to_string();
        let spaced = serde_json::to_string_pretty(&made).unwrap();
        let escaped = compact
            .replace('/', "\\/")
            .replace('é', "\\u00e9")
            .replace('🏃', "\\ud83c\\udfc3");
        let more = compact.replacen('{', "{\"ots\":null,\"seen\":[{}],", 1);
        for (n, json) in [compact, spaced, escaped, more].iter().enumerate() {
            client.say_raw(&format!(" [ \"EVENT\" ,\n{json} ] ")).await;
            let answer = client.hear().await;
            assert_eq!((&answer[1], &answer[2]), (&made["id"], &json!(true)));
            assert_eq!(answer[3] == json!(""), n == 0, "{answer}");
        }
        let ids = json!({"ids": [id(&made)]});
        assert_eq!(client.subscribe("a", &[ids]).await, [made]);
    }
}

#[tokio::test]
async fn an_event_may_be_of_any_time_up_to_now_and_a_little_more() {
    let world = World::start().await;
    let (mut client, keys, at) = (world.client().await, Keys::generate(), now());
    for time in [0, 1, 915_148_861, at - 365 * 86_400, at, at + 800] {
        client.store(&note(&keys, time)).await;
    }
    for time in [at + 1_000, 1 << 31, (1 << 32) + 1, i64::MAX] {
        let (taken, words) = client.publish(&note(&keys, time)).await;
        assert!(
            !taken && words.starts_with("invalid: created_at"),
            "{words}"
        );
    }
}

#[tokio::test]
async fn every_event_is_answered_with_its_id_and_a_word_that_programs_know() {
    let world = World::start().await;
    let (mut client, keys) = (world.client().await, Keys::generate());
    let made = note(&keys, now());
    for (field, value) in [
        ("id", json!("ab".repeat(32))),
        ("pubkey", json!("cd".repeat(32))),
        ("created_at", json!(-1)),
        ("created_at", json!(1e10)),
        ("kind", json!(65_536)),
        ("kind", json!(1.5)),
        ("tags", json!([["t", 7]])),
        ("tags", json!([[]])),
        ("content", json!(null)),
        ("sig", json!("00")),
    ] {
        let mut wrong = made.clone();
        wrong[field] = value;
        let (taken, words) = client.publish(&wrong).await;
        assert!(!taken && words.starts_with("invalid: "), "{field}: {words}");
    }
    let upper = made.to_string().replace(
        made["sig"].as_str().unwrap(),
        &made["sig"].as_str().unwrap().to_uppercase(),
    );
    client.say_raw(&format!("[\"EVENT\",{upper}]")).await;
    assert_eq!(client.hear().await[2], json!(false));
    client.store(&made).await;
}

#[tokio::test]
async fn there_is_one_endpoint() {
    let world = World::start().await;
    for path in ["other", "inbox/", "v1"] {
        let url = format!("ws://{}/{path}", world.host.api);
        let refused = tokio_tungstenite::connect_async(&url).await.unwrap_err();
        assert!(refused.to_string().contains("404"), "{path}: {refused}");
    }
    let url = format!("ws://{}/?from=here", world.host.api);
    tokio_tungstenite::connect_async(&url).await.unwrap();
}
