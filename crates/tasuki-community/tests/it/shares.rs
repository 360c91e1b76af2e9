//! What some ask for keeps nobody else from being served.

use std::time::Duration;

use nostr::Keys;
use serde_json::{Value, json};
use tasuki_testkit::eventually;

use crate::support::{World, id, memory, note, now};

#[tokio::test]
async fn counts_that_take_long_keep_nobody_from_being_served() {
    let world = World::patient().await;
    let said = note(&Keys::generate(), now());
    world.client().await.store(&said).await;
    // Whoever counts tags has to wait, and whoever looks for kinds does not.
    let held = world.hold("event_tags").await;
    let mut counting = Vec::new();
    for _ in 0..20 {
        let mut client = world.client().await;
        client.say(&json!(["COUNT", "c", {"#t": ["a"]}])).await;
        client.say(&json!(["COUNT", "d", {"#t": ["a"]}])).await;
        // What was said before is heard when this is answered.
        client.say_raw("[]").await;
        assert_eq!(client.hear().await[0], json!("NOTICE"));
        counting.push(client);
    }
    let waiting = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()
        AND wait_event_type = 'Lock' AND query LIKE '%count(DISTINCT event_id)%'";
    eventually("two count", async || {
        (world.count(waiting).await == 2).then_some(())
    })
    .await;
    for client in counting.iter_mut().chain([&mut world.client().await]) {
        assert_eq!(client.find(&[json!({"kinds": [1]})]).await, [id(&said)]);
    }
    assert_eq!(world.count(waiting).await, 2);
    held.rollback().await.unwrap();
    for client in &mut counting {
        for _ in 0..2 {
            let answer = client.hear().await;
            assert_eq!(
                (&answer[0], &answer[2]["count"]),
                (&json!("COUNT"), &json!(0))
            );
        }
    }
}

/// Events of five kinds, 3.5 KiB each.
const MANY: &str = r#"
    INSERT INTO cn_relay.events (event_id, ingested_at, pubkey, created_at, kind, topics, body)
    SELECT
        sha256(number), now(), sha256('author'), n, 2000 + n % 5, '{public}',
        '{"id":"' || encode(sha256(number), 'hex') || '","content":"' || repeat('x', 3500) || '"}'
    FROM generate_series(1, 5000) AS n
    CROSS JOIN LATERAL convert_to(n::text, 'UTF8') AS number"#;

#[tokio::test]
async fn what_was_found_and_nobody_reads_takes_little_memory() {
    let world = World::start().await;
    let many = sqlx::query(MANY).execute(&world.env.db.pool).await.unwrap();
    assert_eq!(many.rows_affected(), 5_000);
    let mut message = vec![json!("REQ"), json!("all")];
    message.extend((2_000..2_005).map(|kind| json!({"kinds": [kind]})));
    let message = Value::Array(message);
    let before = memory();
    let mut clients = Vec::new();
    for _ in 0..20 {
        let mut client = world.client().await;
        client.say(&message).await;
        // All is found when the first of it comes; more is not read.
        assert_eq!(client.hear().await[0], json!("EVENT"));
        clients.push(client);
    }
    let each = memory().saturating_sub(before) / 20;
    println!("a client that reads nothing of what it asked for costs {each} KiB");
    assert!(each < 5 * 1024, "{each} KiB");
    let one = json!({"kinds": [2_000], "limit": 1});
    assert_eq!(world.client().await.find(&[one]).await.len(), 1);
    // Whoever reads on gets it all, in its order.
    let mut client = clients.swap_remove(0);
    let mut read = 1;
    let ended = async {
        while client.hear().await[0] == json!("EVENT") {
            read += 1;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), ended)
        .await
        .unwrap();
    assert_eq!(read, 5_000);
}
