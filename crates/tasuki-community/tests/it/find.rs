//! Stored events: every way to ask for them.

use nostr::Keys;
use serde_json::{Value, json};

use crate::support::{World, event, id, note, now};

#[tokio::test]
async fn every_filter_finds_what_a_look_at_all_events_finds() {
    let world = World::start().await;
    let mut client = world.client().await;
    let authors: Vec<_> = (0..3).map(|_| Keys::generate()).collect();
    let base = now() - 1_000;
    let mut all = Vec::new();
    for n in 0..90_i64 {
        let by = &authors[usize::try_from(n % 3).unwrap()];
        let kind = [1, 7, 30_023, 0][usize::try_from(n % 4).unwrap()];
        let (topic, other, d) = (format!("t{}", n % 5), hash(n % 7), format!("d{n}"));
        let tags: [&[&str]; 3] = [&["t", &topic], &["e", &other], &["d", &d]];
        // Several in one second, so that ids decide.
        all.push(event(by, kind, base + n / 2, &tags, ""));
    }
    for event in &all {
        client.say(&json!(["EVENT", event])).await;
    }
    for _ in &all {
        assert_eq!(client.hear().await[2], json!(true));
    }
    // Of kind 0 one stays for each author.
    let is_latest = |event: &&Value| {
        event["kind"] != json!(0)
            || !all.iter().any(|other| {
                let newer = |of: &Value| (of["created_at"].as_i64(), std::cmp::Reverse(id(of)));
                other["kind"] == json!(0)
                    && other["pubkey"] == event["pubkey"]
                    && newer(other) > newer(event)
            })
    };
    let visible: Vec<_> = all.iter().filter(is_latest).collect();
    for filter in every_kind_of(&authors, &all, base) {
        let found = client.find(std::slice::from_ref(&filter)).await;
        assert_eq!(
            found,
            by_hand(&visible, std::slice::from_ref(&filter)),
            "{filter}"
        );
        client.say(&json!(["COUNT", "c", filter])).await;
        let mut unlimited = filter.clone();
        unlimited.as_object_mut().unwrap().remove("limit");
        let wanted = by_hand(&visible, &[unlimited]).len();
        let counted = client.hear().await;
        // A limit says nothing of a count, but that nothing is wanted.
        assert_eq!(
            counted,
            json!(["COUNT", "c", {"count": wanted}]),
            "{filter}"
        );
    }
    let both = [
        json!({"kinds": [7], "limit": 3}),
        json!({"#t": ["t1"], "limit": 8}),
    ];
    assert_eq!(client.find(&both).await, by_hand(&visible, &both));
}

/// What an `e` may be.
fn hash(n: i64) -> String {
    format!("{n:064x}")
}

fn every_kind_of(authors: &[Keys], all: &[Value], base: i64) -> Vec<Value> {
    let key = |n: usize| authors[n].public_key().to_hex();
    let ids = [id(&all[3]), id(&all[2]), id(&all[50])];
    vec![
        json!({}),
        json!({"limit": 7}),
        json!({"limit": 0}),
        json!({"ids": ids}),
        json!({"ids": ids, "kinds": [1]}),
        json!({"authors": [key(0)]}),
        json!({"authors": [key(0), key(2)], "limit": 11}),
        json!({"authors": [key(1)], "kinds": [7, 0]}),
        json!({"kinds": [30_023]}),
        json!({"kinds": [1, 0], "limit": 5}),
        json!({"#t": ["t1"]}),
        json!({"#t": ["t1", "t2"], "limit": 9}),
        json!({"#t": ["t1", "t2"], "#e": [hash(3), hash(4)]}),
        json!({"#t": ["t3"], "#e": [hash(1)], "authors": [key(0), key(1)], "kinds": [1, 7]}),
        json!({"#d": ["d8", "d9"]}),
        json!({"#t": ["T1"]}),
        json!({"since": base + 10, "until": base + 20}),
        json!({"since": base + 10, "until": base + 10}),
        json!({"kinds": [7], "since": base + 20, "limit": 4}),
        json!({"authors": [key(2)], "until": base + 20}),
        json!({"#e": [hash(2)], "since": base + 5, "until": base + 40}),
        json!({"kinds": []}),
        json!({"since": base + 20, "until": base + 10}),
    ]
}

/// What filters want, by a look at all events.
fn by_hand(events: &[&Value], filters: &[Value]) -> Vec<String> {
    let mut found: Vec<&Value> = Vec::new();
    for filter in filters {
        let mut wanted: Vec<_> = events.iter().filter(|event| wants(filter, event)).collect();
        sort(&mut wanted);
        let limit = filter["limit"]
            .as_u64()
            .map_or(1_000, |limit| usize::try_from(limit).unwrap());
        for event in wanted.into_iter().take(limit) {
            if !found.contains(event) {
                found.push(event);
            }
        }
    }
    let mut found: Vec<_> = found.iter().collect();
    sort(&mut found);
    found.into_iter().map(|event| id(event)).collect()
}

fn sort(events: &mut [&&Value]) {
    events.sort_by_key(|event| (std::cmp::Reverse(event["created_at"].as_i64()), id(event)));
}

fn wants(filter: &Value, event: &Value) -> bool {
    let among = |key: &str, field: &str| {
        filter[key]
            .as_array()
            .is_none_or(|list| list.contains(&event[field]))
    };
    let at = event["created_at"].as_i64();
    let tags = filter
        .as_object()
        .unwrap()
        .iter()
        .filter(|(key, _)| key.starts_with('#'));
    among("ids", "id")
        && among("authors", "pubkey")
        && among("kinds", "kind")
        && filter["since"]
            .as_i64()
            .is_none_or(|since| at >= Some(since))
        && filter["until"]
            .as_i64()
            .is_none_or(|until| at <= Some(until))
        && tags.into_iter().all(|(key, values)| {
            let tags = event["tags"].as_array().unwrap().iter();
            let mut tags = tags.filter(|tag| tag[0].as_str() == key.strip_prefix('#'));
            tags.any(|tag| values.as_array().unwrap().contains(&tag[1]))
        })
}

#[tokio::test]
async fn long_events_come_whole_and_in_their_place() {
    let world = World::start().await;
    let mut client = world.client().await;
    let keys = Keys::generate();
    let mut wanted = Vec::new();
    let at = now();
    for n in 0..120_i64 {
        let length = if n % 2 == 0 { 20_000 } else { 10 };
        let event = event(&keys, 1, at - n, &[], &"x".repeat(length));
        client.store(&event).await;
        wanted.push(event);
    }
    assert_eq!(
        client.subscribe("a", &[json!({"kinds": [1]})]).await,
        wanted
    );
}

#[tokio::test]
async fn a_subscription_of_the_same_name_takes_the_place_of_the_one_before() {
    let world = World::start().await;
    let (mut listener, mut sender) = (world.client().await, world.client().await);
    let keys = Keys::generate();
    listener.subscribe("a", &[json!({"kinds": [1]})]).await;
    listener.subscribe("a", &[json!({"kinds": [7]})]).await;
    let reaction = event(&keys, 7, now(), &[], "+");
    sender.store(&note(&keys, now())).await;
    sender.store(&reaction).await;
    assert_eq!(listener.news("a").await, reaction);
    listener.say(&json!(["CLOSE", "a"])).await;
    listener.say(&json!(["CLOSE", "never was"])).await;
    // Whatever was said before is done when this is answered.
    listener.subscribe("b", &[json!({"kinds": [2]})]).await;
    sender.store(&event(&keys, 7, now(), &[], "-")).await;
    listener.hears_nothing().await;
}

#[tokio::test]
async fn an_event_comes_once_for_each_subscription_that_wants_it() {
    let world = World::start().await;
    let (mut listener, mut sender) = (world.client().await, world.client().await);
    for name in ["a", "b"] {
        let filters = [
            json!({"kinds": [1]}),
            json!({"kinds": [1, 2]}),
            json!({"limit": 0}),
        ];
        listener.subscribe(name, &filters).await;
    }
    let note = note(&Keys::generate(), now());
    sender.store(&note).await;
    let mut names = Vec::new();
    for _ in 0..2 {
        let news = listener.hear().await;
        assert_eq!(news[2], note);
        names.push(news[1].as_str().unwrap().to_owned());
    }
    names.sort();
    assert_eq!(names, ["a", "b"]);
    listener.hears_nothing().await;
}

#[tokio::test]
async fn what_can_not_be_asked_is_refused_and_the_rest_goes_on() {
    let world = World::start().await;
    let mut client = world.client().await;
    let many: Vec<_> = (0..201).collect();
    let filters: Vec<_> = (0..11).map(|_| json!({})).collect();
    for (message, words) in [
        (
            json!(["REQ", "a", {"search": "…!"}]),
            "invalid: search has no words",
        ),
        (json!(["REQ", "a", {"#long": ["x"]}]), "unsupported: "),
        (
            json!(["REQ", "a", {"kinds": many}]),
            "invalid: kinds has more than 200",
        ),
        (
            json!(["COUNT", "a", {"kinds": many}]),
            "invalid: kinds has more than 200",
        ),
        (json!(["REQ", "a"]), "invalid: no filter"),
    ] {
        let said = client.refused(&message).await;
        assert!(said.starts_with(words), "{said}");
    }
    let mut message = vec![json!("REQ"), json!("a")];
    message.extend(filters);
    assert!(
        client
            .refused(&Value::Array(message))
            .await
            .starts_with("invalid: more than 10")
    );
    assert!(client.find(&[json!({})]).await.is_empty());
}

#[tokio::test]
async fn so_many_subscriptions_and_requests_and_no_more() {
    let world = World::with(|config| {
        let config = config
            .with_value("community.limits.subscriptions", 2)
            .unwrap();
        config
            .with_value("community.limits.reqs-per-minute", 5)
            .unwrap()
    })
    .await;
    let mut client = world.client().await;
    client.subscribe("a", &[json!({})]).await;
    client.subscribe("b", &[json!({})]).await;
    assert!(
        client
            .refused(&json!(["REQ", "c", {}]))
            .await
            .starts_with("rate-limited: more than 2")
    );
    // One in the place of another is none more.
    client.subscribe("b", &[json!({})]).await;
    client.say(&json!(["CLOSE", "a"])).await;
    client.subscribe("c", &[json!({})]).await;
    assert!(
        client
            .refused(&json!(["REQ", "b", {}]))
            .await
            .starts_with("rate-limited: more than 5 requests")
    );
}
