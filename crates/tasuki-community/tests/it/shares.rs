//! What some ask for keeps nobody else from being served.

use nostr::Keys;
use serde_json::json;
use tasuki_testkit::eventually;

use crate::support::{World, id, note, now};

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
