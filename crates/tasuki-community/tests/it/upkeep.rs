//! What ends, and what it costs to look whether anything does.

use std::time::Duration;

use nostr::Keys;
use serde_json::json;
use tasuki_testkit::eventually;

use crate::support::{World, event, id, note, now};

/// Events of authors that the relay does not know, put where it keeps them.
const MANY: &str = "
    INSERT INTO cn_relay.kept_events
        (event_id, version_key, ingested_at, pubkey, created_at, kind, topics, expires_at, body)
    SELECT sha256(n::text::bytea), gen_random_uuid(), now() - interval '400 days', sha256('x'), n, 39006, '{t}',
        extract(EPOCH FROM now())::bigint + 100000 + n, '{}'
    FROM generate_series(1, 50000) AS n;
    INSERT INTO cn_relay.events
        (event_id, ingested_at, pubkey, created_at, kind, topics, expires_at, body)
    SELECT sha256(n::text::bytea), now(), sha256('x'), n, 1, '{t}',
        extract(EPOCH FROM now())::bigint + 100000 + n, '{}'
    FROM generate_series(1, 50000) AS n";

#[tokio::test]
async fn a_look_for_what_has_ended_reads_nothing_of_what_has_not() {
    let world = World::start().await;
    sqlx::raw_sql(MANY)
        .execute(&world.env.db.pool)
        .await
        .unwrap();
    // Rows read by indexes or in order, and how often it was looked for what expires.
    let read = async || -> (i64, i64) {
        sqlx::query_as(
            "SELECT sum(seq_tup_read + coalesce(idx_tup_fetch, 0))::bigint,
                (SELECT idx_scan FROM pg_stat_user_indexes WHERE indexrelname = 'kept_events_expiring_idx')
            FROM pg_stat_user_tables
            WHERE schemaname = 'cn_relay' AND (relname LIKE 'events\\_%' OR relname = 'kept_events')
                AND relname NOT LIKE 'events\\_outbox%'",
        )
        .fetch_one(&world.env.db.pool)
        .await
        .unwrap()
    };
    // What the filling itself has read is counted by then.
    let (_, begun) = read().await;
    let looked = async |beyond: i64| {
        eventually("it was looked a few times", async || {
            let (rows, looks) = read().await;
            (looks >= beyond + 3).then_some((rows, looks))
        })
        .await
    };
    let (before, looks) = looked(begun).await;
    let (after, _) = looked(looks).await;
    assert!(after - before < 100, "{} rows were read", after - before);
}

#[tokio::test]
async fn deletions_and_versions_that_cross_on_two_processes_never_deadlock() {
    let world = World::start().await;
    let other = world.another().await;
    let keys = [Keys::generate(), Keys::generate()];
    let at = now() - 1_000;
    let mut clients = [
        world.client().await,
        crate::support::Client::of(&other).await,
    ];
    let mut current = Vec::new();
    for key in &keys {
        let first = event(key, 10_000, at, &[], "");
        clients[0].store(&first).await;
        current.push(id(&first));
    }
    for round in 1..200 {
        let mut next = Vec::new();
        for (n, client) in clients.iter_mut().enumerate() {
            let (own, others) = (&keys[n], &keys[1 - n]);
            let version = event(own, 10_000, at + round, &[], "");
            let deletion = event(others, 5, at + round, &[&["e", &current[1 - n]]], "");
            // Together, so that they share a transaction.
            client.say(&json!(["EVENT", version])).await;
            client.say(&json!(["EVENT", deletion])).await;
            next.push(id(&version));
        }
        for client in &mut clients {
            for _ in 0..2 {
                let answer = client.hear().await;
                assert_eq!(answer[2], json!(true), "{answer}");
            }
        }
        current = next;
    }
    let deadlocks = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()";
    assert_eq!(world.count(deadlocks).await, 0);
}

#[tokio::test]
async fn who_subscribes_while_others_are_not_heard_yet_misses_nothing() {
    let world = World::start().await;
    // The log's state can't be read by a process that starts now: it has no place in the log.
    let mut held = world.env.db.pool.begin().await.unwrap();
    sqlx::query("LOCK TABLE cn_relay.seqlogs IN ACCESS EXCLUSIVE MODE")
        .execute(&mut *held)
        .await
        .unwrap();
    let late = world.another().await;
    let mut listener = crate::support::Client::of(&late).await;
    listener.say(&json!(["REQ", "s", {"kinds": [1]}])).await;
    listener.hears_nothing().await;
    let (mut client, event) = (world.client().await, note(&Keys::generate(), now()));
    client.store(&event).await;
    held.rollback().await.unwrap();
    assert_eq!(listener.news("s").await["id"], event["id"]);
    assert_eq!(listener.hear().await, json!(["EOSE", "s"]));
    listener.hears_nothing().await;
}

#[tokio::test]
async fn when_the_log_is_not_what_it_was_every_client_has_to_come_again() {
    let world = World::start().await;
    let mut client = world.client().await;
    let keys = Keys::generate();
    for n in 0..3 {
        client.store(&note(&keys, now() - n)).await;
    }
    client.subscribe("s", &[json!({"kinds": [1]})]).await;
    // The process has read as far as the log goes.
    world.caught_up("index-v1").await;
    tokio::time::timeout(Duration::from_secs(1), client.hears_nothing())
        .await
        .unwrap();
    // Another history, as a server has it that was promoted without the last rows.
    sqlx::raw_sql(
        "UPDATE cn_relay.events_outbox SET event_id = repeat('ab', 32);
         SELECT pg_notify('cn_relay_outbox', '3')",
    )
    .execute(&world.env.db.pool)
    .await
    .unwrap();
    let words = loop {
        match client.heard().await {
            Ok(message) => assert_eq!(message[0], json!("NOTICE")),
            Err(frame) => break frame.unwrap(),
        }
    };
    assert_eq!(u16::from(words.code), 1012, "{words:?}");
}
