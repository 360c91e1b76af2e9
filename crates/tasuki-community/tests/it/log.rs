//! The log: whoever follows it from the beginning has exactly what is visible.

use std::collections::BTreeMap;

use nostr::Keys;
use serde_json::json;
use tasuki_testkit::eventually;

use crate::support::{Client, World, event, id, now};

/// Notes, versions, and deletions of some of them.
async fn publish_of_everything(client: &mut Client) {
    let (keys, at) = (Keys::generate(), now());
    let mut sent = 0;
    for n in 0..60_i64 {
        let (topic, d) = (format!("t{}", n % 3), format!("d{}", n % 4));
        let tags: [&[&str]; 2] = [&["t", &topic], &["d", &d]];
        let made = event(
            &keys,
            [1, 0, 30_000][usize::try_from(n % 3).unwrap()],
            at - 60 + n,
            &tags,
            "",
        );
        client.say(&json!(["EVENT", made])).await;
        sent += 1;
        if n % 10 == 9 {
            let gone = id(&made);
            client
                .say(&json!([
                    "EVENT",
                    event(&keys, 5, at, &[&["e", &gone], &["t", "t0"]], &gone)
                ]))
                .await;
            sent += 1;
        }
    }
    for _ in 0..sent {
        client.hear().await;
    }
}

/// Events and topics that can be seen.
async fn visible(world: &World) -> Vec<(String, String)> {
    let mut visible: Vec<(String, String)> = sqlx::query_as(
        "SELECT encode(event_id, 'hex'), unnest(topics) FROM cn_relay.events WHERE hidden_at IS NULL
         UNION ALL
         SELECT encode(event_id, 'hex'), unnest(topics) FROM cn_relay.kept_events WHERE hidden_at IS NULL",
    )
    .fetch_all(&world.env.db.pool)
    .await
    .unwrap();
    visible.sort();
    visible
}

#[tokio::test]
async fn whoever_follows_the_log_has_what_is_visible_and_its_numbers_have_no_gap() {
    let world = World::start().await;
    let mut client = world.client().await;
    publish_of_everything(&mut client).await;
    eventually("everything has its number", async || {
        (world
            .count("SELECT count(*) FROM cn_relay.events_outbox_pending")
            .await
            == 0)
            .then_some(())
    })
    .await;
    let rows: Vec<(i64, String, String, String)> = sqlx::query_as(
        "SELECT seq, op, event_id, topic_id FROM cn_relay.events_outbox ORDER BY seq",
    )
    .fetch_all(&world.env.db.pool)
    .await
    .unwrap();
    let numbers: Vec<_> = rows.iter().map(|row| row.0).collect();
    assert_eq!(
        numbers,
        (1..=i64::try_from(rows.len()).unwrap()).collect::<Vec<_>>()
    );
    let mut followed = BTreeMap::new();
    for (_, op, id, topic) in rows {
        match op.as_str() {
            "upsert" => assert!(followed.insert((id, topic), ()).is_none(), "told twice"),
            _ => assert!(
                followed.remove(&(id, topic)).is_some(),
                "gone without having been there"
            ),
        }
    }
    let visible = visible(&world).await;
    assert_eq!(followed.into_keys().collect::<Vec<_>>(), visible);
    let mut seen = client.find(&[json!({})]).await;
    seen.sort();
    let mut ids: Vec<_> = visible.into_iter().map(|(id, _)| id).collect();
    ids.dedup();
    assert_eq!(seen, ids);
}

#[tokio::test]
async fn what_is_older_than_it_is_kept_goes_and_the_log_is_told() {
    let world = World::start().await;
    let mut client = world.client().await;
    let keys = Keys::generate();
    let note = event(&keys, 1, now(), &[&["t", "a"], &["t", "b"]], "");
    let profile = event(&keys, 0, now(), &[], "");
    let deletion = event(
        &keys,
        5,
        now(),
        &[&["e", &id(&profile).replace('a', "b")]],
        "",
    );
    for event in [&note, &profile, &deletion] {
        client.store(event).await;
    }
    // As if 30 days had passed for the one, and 181 for the other.
    for sql in [
        "UPDATE cn_relay.events SET ingested_at = ingested_at - interval '30 days 1 hour'",
        "UPDATE cn_relay.kept_events SET ingested_at = ingested_at - interval '181 days'",
    ] {
        sqlx::query(sql).execute(&world.env.db.pool).await.unwrap();
    }
    eventually("what is old has gone", async || {
        (world
            .count("SELECT count(*) FROM cn_relay.events_outbox WHERE reason = 'retention'")
            .await
            == 3)
            .then_some(())
    })
    .await;
    assert_eq!(
        client.find(&[json!({})]).await,
        [id(&profile)],
        "the latest version stays"
    );
    assert_eq!(
        client.publish(&note).await.1,
        "duplicate: already have this event"
    );
}
