//! `tasuki dlq` on what the broker gave up, on what died in a table, and on both together.

#![expect(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    reason = "helpers of tests"
)]

use serde_json::{Value, json};
use tasuki_testkit::eventually;

use crate::support::{Answer, Up, World};
use crate::walk::grant;

const REFUSE_BAD: &str = "ALTER TABLE notification.notifications_live
    ADD CONSTRAINT nobody_bad CHECK (user_id <> 'bad')";

/// Messages that fail are given up at the second delivery, and deliveries to some users at the first.
async fn up(world: &World) -> Up {
    let mut command = world.command(&["up"]);
    for (name, value) in [
        ("NATS__MAX_DELIVER", "2"),
        ("DELIVERY__FAILURE_INJECTION__ENABLED", "true"),
        ("DELIVERY__FAILURE_INJECTION__USER_ID_PREFIX", "fail-"),
        ("DELIVERY__MAX_ATTEMPTS", "1"),
    ] {
        command.env(format!("TASUKI_NOTIFICATION__{name}"), value);
    }
    world.ready(world.start(command)).await
}

async fn dlq(world: &World, words: &[&str]) -> Answer {
    let words: Vec<&str> = ["dlq"].iter().chain(words).copied().collect();
    world.run(world.joined(&words)).await
}

/// What is dead, by these words.
async fn listed(world: &World, words: &[&str]) -> Vec<Value> {
    let words: Vec<&str> = ["list", "--json"].iter().chain(words).copied().collect();
    let listed = dlq(world, &words).await.json();
    listed.as_array().unwrap().clone()
}

/// The ids of entries.
fn ids(entries: &[Value]) -> Vec<&str> {
    entries
        .iter()
        .map(|it| it["id"].as_str().unwrap())
        .collect()
}

/// A message that nobody can read, one that the database refuses, and a notification that failed.
async fn three(world: &World, up: &Up) -> [String; 3] {
    let pool = up.database().await;
    sqlx::raw_sql(REFUSE_BAD).execute(&pool).await.unwrap();
    grant(up, "bad").await;
    grant(up, "fail-1").await;
    let broker = up.jetstream().await;
    let sent = broker.publish("entitlement.events", "x".into()).await;
    sent.unwrap().await.unwrap();
    let only = async |words: &[&str]| {
        eventually(&format!("{words:?} is dead"), async || {
            let found = listed(world, words).await;
            let [one] = &*found else { return None };
            Some(one["id"].as_str().unwrap().to_owned())
        })
        .await
    };
    [
        only(&["--source", "broker", "--kind", "TERMINATED"]).await,
        only(&["--source", "broker", "--kind", "MAX_DELIVERIES"]).await,
        only(&["--source", "notifications_live"]).await,
    ]
}

#[tokio::test]
async fn what_the_broker_gave_up_is_listed_shown_redriven_and_discarded_beside_what_died() {
    let world = World::new();
    let up = up(&world).await;
    let all = three(&world, &up).await;
    let [noise, bad, letter] = all.each_ref().map(String::as_str);

    let found = listed(&world, &[]).await;
    assert_eq!(found.len(), 3, "{found:?}");
    let broker = listed(&world, &["--service", "notification", "--source", "broker"]).await;
    assert_eq!(broker.len(), 2, "{broker:?}");
    let none = listed(&world, &["--source", "broker", "--kind", "MISSED"]).await;
    assert_eq!(none, [Value::Null; 0]);
    let elsewhere = listed(&world, &["--service", "entitlement"]).await;
    assert_eq!(elsewhere, [Value::Null; 0]);

    let shown = dlq(&world, &["show", noise, "--json"]).await.json();
    assert_eq!(
        (&shown["kind"], &shown["payload"]),
        (&json!("TERMINATED"), &json!("x"))
    );
    assert!(
        shown["error"].as_str().unwrap().contains("not the message"),
        "{shown}"
    );
    let shown = dlq(&world, &["show", bad, "--json"]).await.json();
    assert_eq!(
        (&shown["kind"], &shown["attempts"]),
        (&json!("MAX_DELIVERIES"), &json!(2))
    );

    a_preview_says_what_is_meant_and_changes_nothing(&world, all.each_ref()).await;

    // What is wrong with it is not mended: it stays, and says why.
    let failed = dlq(&world, &["redrive", noise]).await;
    assert_eq!(failed.code, Some(1), "{failed:?}");
    assert!(failed.out.starts_with("0 redriven"), "{failed:?}");
    assert!(failed.out.contains("not the message"), "{failed:?}");

    what_is_mended_is_taken_in(&world, &up, bad, letter).await;

    let kind = ["--source", "broker", "--kind", "TERMINATED"];
    let discard = ["discard", "--all", "--reason", "noise", "--json"];
    let words: Vec<&str> = discard.iter().chain(&kind).copied().collect();
    assert_eq!(dlq(&world, &words).await.json()["discarded"], 1);
    assert_eq!(
        listed(&world, &["--source", "broker"]).await,
        [Value::Null; 0]
    );
    let shown = dlq(&world, &["show", noise, "--json"]).await.json();
    assert_eq!(shown["discard_reason"], "noise");
}

async fn what_is_mended_is_taken_in(world: &World, up: &Up, bad: &str, letter: &str) {
    let pool = up.database().await;
    let mend = "ALTER TABLE notification.notifications_live DROP CONSTRAINT nobody_bad";
    sqlx::raw_sql(mend).execute(&pool).await.unwrap();
    let redriven = dlq(world, &["redrive", bad, letter, "--json"]).await.json();
    assert_eq!(redriven, json!({ "redriven": 2, "already": [], "not": [] }));
    eventually("it is told", async || {
        let told: i64 = sqlx::query_scalar(
            "SELECT count(*) FROM notification.notifications_sent WHERE user_id = 'bad'",
        )
        .fetch_one(&pool)
        .await
        .unwrap();
        (told == 1).then_some(())
    })
    .await;
    let again = dlq(world, &["redrive", bad, "--json"]).await.json();
    assert_eq!(again["redriven"], 0);
    assert!(
        again["already"][0]
            .as_str()
            .unwrap()
            .contains("already redriven")
    );
}

async fn a_preview_says_what_is_meant_and_changes_nothing(world: &World, all: [&String; 3]) {
    let before = listed(world, &[]).await;
    let [noise, bad, letter] = all.map(String::as_str);
    let (broker, kind) = (["--source", "broker"], ["--kind", "TERMINATED"]);
    for (narrowed, meant) in [
        (&[] as &[&str], &[letter, noise, bad] as &[&str]),
        (&broker, &[noise, bad]),
        (&kind, &[noise]),
    ] {
        let preview = ["redrive", noise, bad, letter, "--preview", "--json"];
        let words: Vec<&str> = preview.iter().chain(narrowed).copied().collect();
        let answer = dlq(world, &words).await;
        assert_eq!(answer.code, Some(i32::from(meant.len() < 3)), "{answer:?}");
        let rows: Vec<Value> = serde_json::from_str(&answer.out).unwrap();
        assert_eq!(ids(&rows), meant, "{narrowed:?}");
        for id in [noise, bad, letter] {
            let said = format!("{id}: it does not fit");
            assert_eq!(
                answer.err.contains(&said),
                !meant.contains(&id),
                "{answer:?}"
            );
        }
        let everything = ["redrive", "--all", "--preview"];
        let words: Vec<&str> = everything.iter().chain(narrowed).copied().collect();
        let text = dlq(world, &words).await.ok();
        let told = format!("{} in all are meant", meant.len());
        assert!(text.contains(&told), "{narrowed:?}: {text}");
    }
    assert_eq!(listed(world, &[]).await, before);
}

#[tokio::test]
async fn a_preview_counts_all_that_is_meant_also_what_is_too_much_to_be_shown() {
    let world = World::new();
    let up = world.up().await;
    let pool = up.database().await;
    sqlx::raw_sql(
        "INSERT INTO notification.notification_nats_dlq (
            stream, stream_created_at, stream_seq, consumer, kind
         )
         SELECT 'gone', '2026-01-01', n, 'c', 'MISSED' FROM generate_series(1, 1203) AS n;
         INSERT INTO shop.dead_letters (
            letter_id, source, source_id, queue, kind, payload, error, attempt_count
         )
         SELECT gen_random_uuid(), 'jobs', gen_random_uuid(), 'q', 'k', '', 'e', 1
         FROM generate_series(1, 1204)",
    )
    .execute(&pool)
    .await
    .unwrap();
    let text = dlq(&world, &["redrive", "--all", "--preview"]).await.ok();
    assert!(text.contains("2407 in all are meant"), "{text}");
    assert!(text.contains("1204 of them can't be put back"), "{text}");
    assert!(text.contains("the latest 200 of each"), "{text}");
    assert_eq!(text.matches(" k ").count(), 200);
    let list = dlq(&world, &["list"]).await.ok();
    assert!(list.contains("2407 in all"), "{list}");
    assert_eq!(listed(&world, &[]).await.len(), 2407);

    let words = ["discard", "--all", "--reason", "a test", "--json"];
    assert_eq!(dlq(&world, &words).await.json()["discarded"], 2407);
    assert_eq!(dlq(&world, &["list"]).await.ok().trim(), "nothing is dead");
}
