//! What the node says of somebody: signed, renewed, replaced, and never said twice.

use std::collections::HashMap;

use nostr::{Event, JsonUtil as _, Keys};
use serde_json::{Value, json};
use tasuki_testkit::eventually;

use crate::support::{Client, World, event, id, note, now};
use crate::trust::{ask, counted, own, report, risk, talk};

/// A node that says things soon.
async fn eager() -> World {
    World::with(|config| config.with_value("community.trust.interval", "1s").unwrap()).await
}

/// What is stored.
async fn stored(client: &mut Client, filter: &Value) -> Vec<Value> {
    let found = client
        .subscribe("stored", std::slice::from_ref(filter))
        .await;
    client.say(&json!(["CLOSE", "stored"])).await;
    found
}

/// The tags of an event, by name.
fn tags(event: &Value) -> HashMap<String, String> {
    let tags = event["tags"].as_array().unwrap().iter();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    tags.map(|tag| (text(&tag[0]), text(&tag[1]))).collect()
}

/// The only assertion of `kind` about `d` whose value is this, once it is there.
async fn said(
    client: &mut Client,
    kind: u16,
    by: &Keys,
    d: &str,
    (name, value): (&str, &str),
) -> Value {
    let filter = json!({"kinds": [kind], "authors": [by.public_key().to_hex()], "#d": [d]});
    eventually(&format!("{kind} of {d} says {name} {value}"), async || {
        let mut found = stored(client, &filter).await;
        assert!(found.len() < 2, "{found:?}");
        let only = found.pop()?;
        (tags(&only).get(name)? == value).then_some(only)
    })
    .await
}

/// How often something of this kind was said, by the log.
async fn times(world: &World, kind: u16) -> i64 {
    let sql = "SELECT count(*) FROM cn_relay.events_outbox WHERE op = 'upsert' AND kind = $1";
    let query = sqlx::query_scalar(sql).bind(i32::from(kind));
    query.fetch_one(&world.env.db.pool).await.unwrap()
}

/// Has everybody looked at again, and waits until it is done.
async fn look_again(world: &World) {
    let sql = "UPDATE cn_relay.trust_assertions SET due_at = now() - interval '1 second'";
    sqlx::query(sql).execute(&world.env.db.pool).await.unwrap();
    quiet(world).await;
}

/// Waits until nobody is due.
async fn quiet(world: &World) {
    counted(world).await;
    eventually("nobody is due", async || {
        let due = "SELECT count(*) FROM cn_relay.trust_assertions WHERE due_at < now() + interval '5 seconds'";
        (world.count(due).await == 0).then_some(())
    })
    .await;
    counted(world).await;
}

/// Of whom something is said: the kind of the assertion, its `d`, and a tag that it has in the end.
type Expected<'a> = (u16, &'a Keys, &'a str, (&'a str, &'a str));

/// It is what it should be, and HTTP has the same.
async fn check(world: &World, client: &mut Client, expected: Expected<'_>, question: &str) {
    let (kind, by, d, tag) = expected;
    let said = said(client, kind, by, d, tag).await;
    Event::from_json(said.to_string())
        .unwrap()
        .verify()
        .unwrap();
    let tags = tags(&said);
    let ends: i64 = tags["expiration"].parse().unwrap();
    let week = now() + 6 * 86_400..=now() + 7 * 86_400;
    assert!(week.contains(&ends), "{tags:?}");
    if let Some(risk) = tags.get("risk") {
        let (rank, risk): (u8, u8) = (tags["rank"].parse().unwrap(), risk.parse().unwrap());
        assert!(risk >= 2 && rank + risk == 100, "{tags:?}");
    }
    quiet(world).await;
    let answer = ask(world, &format!("/v1/trust/{question}")).await;
    let author = json!(by.public_key().to_hex());
    assert_eq!(answer["assertion"]["pubkey"], author, "{question}");
    assert!(answer["expires_at"].is_string());
}

#[tokio::test]
async fn an_assertion_is_signed_by_the_key_of_its_algorithm() {
    let world = eager().await;
    let (mut client, author, reporter) = (world.client().await, Keys::generate(), Keys::generate());
    let key = author.public_key().to_hex();
    let article = event(&author, 30_023, now(), &[&["d", "a"]], "long");
    let (address, spam) = (format!("30023:{key}:a"), note(&author, now()));
    for event in [&article, &spam, &report(&reporter, now(), &spam)] {
        client.store(event).await;
    }
    let target = format!("address:{address}");
    for (d, target) in [("1", &*target), ("2", "identifier:isbn:1")] {
        let tags: &[&[&str]] = &[&["d", d], &["target", target]];
        client
            .store(&event(&reporter, 39_005, now(), tags, ""))
            .await;
    }
    talk(&mut client, &author, &reporter).await;

    let (risk, density) = (
        own(&world, "trust-risk.key"),
        own(&world, "trust-density.key"),
    );
    let d = id(&spam);
    for (expected, question) in [
        (
            (30_382, &risk, &*key, ("reports_cnt_recd", "1")),
            format!("risk?subject=pubkey:{key}"),
        ),
        (
            (30_382, &density, &key, ("rank", "5")),
            format!("density?subject=pubkey:{key}"),
        ),
        (
            (30_383, &risk, &d, ("e", &d)),
            format!("risk?subject=event:{d}"),
        ),
        (
            (30_384, &risk, &address, ("a", &address)),
            format!("risk?subject=address:{address}"),
        ),
        (
            (30_385, &risk, "isbn:1", ("k", "isbn")),
            "risk?subject=identifier:isbn:1".to_owned(),
        ),
    ] {
        check(&world, &mut client, expected, &question).await;
    }
    let kinds = [30_383, 30_384, 30_385];
    let others = json!({"kinds": kinds, "authors": [density.public_key().to_hex()]});
    assert_eq!(stored(&mut client, &others).await.len(), 0);
}

#[tokio::test]
async fn what_has_not_changed_is_not_said_again_and_what_has_takes_its_place() {
    let world = eager().await;
    let mut client = world.client().await;
    let spam = note(&Keys::generate(), now());
    client.store(&spam).await;
    client.store(&report(&Keys::generate(), now(), &spam)).await;
    let (node, d) = (own(&world, "trust-risk.key"), id(&spam));
    let first = said(&mut client, 30_383, &node, &d, ("risk", "2")).await;
    for _ in 0..3 {
        look_again(&world).await;
    }
    assert_eq!(times(&world, 30_383).await, 1, "nothing has changed");

    for _ in 0..2 {
        client.store(&report(&Keys::generate(), now(), &spam)).await;
    }
    let second = said(&mut client, 30_383, &node, &d, ("risk", "6")).await;
    assert!(second["created_at"].as_i64() > first["created_at"].as_i64());
    let gone = client.find(&[json!({"ids": [id(&first)]})]).await;
    assert!(gone.is_empty(), "the one before is gone");

    // Everything has faded: that is said once, and nothing more.
    sqlx::query("UPDATE cn_relay.trust_reports SET reported_at = reported_at - 100 * 86400")
        .execute(&world.env.db.pool)
        .await
        .unwrap();
    look_again(&world).await;
    let third = said(&mut client, 30_383, &node, &d, ("risk", "0")).await;
    assert_eq!(tags(&third)["rank"], "100");
    let before = times(&world, 30_383).await;
    look_again(&world).await;
    assert_eq!(times(&world, 30_383).await, before);
    assert_eq!(risk(&world, &format!("event:{d}")).await, (0, 0));
}

#[tokio::test]
async fn an_assertion_is_made_again_before_it_ends() {
    let world = World::with(|config| {
        let config = config.with_value("community.trust.interval", "1s").unwrap();
        config.with_value("community.trust.expiry", "10s").unwrap()
    })
    .await;
    let mut client = world.client().await;
    let spam = note(&Keys::generate(), now());
    client.store(&spam).await;
    client.store(&report(&Keys::generate(), now(), &spam)).await;
    let (node, d) = (own(&world, "trust-risk.key"), id(&spam));
    let first = said(&mut client, 30_383, &node, &d, ("risk", "2")).await;
    let renewed = eventually("it is made again", async || {
        let only = said(&mut client, 30_383, &node, &d, ("risk", "2")).await;
        (only["id"] != first["id"]).then_some(only)
    })
    .await;
    assert!(tags(&renewed)["expiration"] > tags(&first)["expiration"]);
    let late =
        "SELECT count(*) FROM cn_relay.events_outbox WHERE kind = 30383 AND reason = 'expiration'";
    assert_eq!(world.count(late).await, 0, "nobody was without");
}

#[tokio::test]
async fn several_processes_say_everything_once() {
    let world = eager().await;
    let (_second, _third) = (world.another().await, world.another().await);
    let (mut client, author) = (world.client().await, Keys::generate());
    // One moment: a second that passes meanwhile would make two of them the same.
    let at = now();
    let notes: Vec<_> = (0..120).map(|n| note(&author, at - n)).collect();
    for note in &notes {
        client.store(note).await;
        client.store(&report(&Keys::generate(), now(), note)).await;
    }
    quiet(&world).await;
    assert_eq!(times(&world, 30_383).await, 120);
    look_again(&world).await;
    assert_eq!(times(&world, 30_383).await, 120);
    let rows = "SELECT count(*) FROM cn_relay.trust_assertions AS said
        JOIN cn_relay.kept_events AS event ON event.event_id = said.event_id AND event.hidden_at IS NULL
        WHERE said.subject LIKE 'event:%'";
    assert_eq!(world.count(rows).await, 120, "each row names what is seen");
}

/// Cuts the connections of whoever is counting or asserting at this moment; answers how many.
async fn cut(world: &World) -> i64 {
    let working = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
        WHERE datname = current_database() AND pid <> pg_backend_pid() AND state <> 'idle'
            AND query LIKE '%trust\\_%'";
    world.count(working).await
}

#[tokio::test]
async fn connections_that_are_cut_at_any_point_count_and_say_everything_once() {
    let world = eager().await;
    let (mut client, author) = (world.client().await, Keys::generate());
    let (mut cuts, at) = (0, now());
    for n in 0..60 {
        let note = note(&author, at - n);
        for event in [&note, &report(&Keys::generate(), now(), &note)] {
            client.store(event).await;
        }
        cuts += cut(&world).await;
    }
    counted(&world).await;
    eventually("some were cut", async || {
        let sql = "UPDATE cn_relay.trust_assertions SET due_at = now() WHERE due_at > now()";
        sqlx::query(sql).execute(&world.env.db.pool).await.unwrap();
        cuts += cut(&world).await;
        (cuts >= 4).then_some(())
    })
    .await;
    quiet(&world).await;
    let reports = "SELECT count(*) FROM cn_relay.trust_reports WHERE author IS NOT NULL";
    assert_eq!(world.count(reports).await, 60);
    assert_eq!(times(&world, 30_383).await, 60);
    let dead = "SELECT count(*) FROM cn_relay.dead_letters";
    assert_eq!(world.count(dead).await, 0, "no row is to blame");
}
