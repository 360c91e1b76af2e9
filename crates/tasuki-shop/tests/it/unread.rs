//! Messages that nobody can read: a person sees them, and they hold up nobody.

use tasuki::dlq::{Filter, Letters};
use tasuki_testkit::eventually;

use crate::support::{World, basket};

/// Sends `payload` to the shop's own stream, under an id or under none.
async fn send(world: &World, id: Option<&str>, payload: &'static str) {
    let headers: Vec<_> = id.map(|id| ("Nats-Msg-Id", id)).into_iter().collect();
    send_with(world, &headers, payload).await;
}

async fn send_with(world: &World, with: &[(&str, &str)], payload: &'static str) {
    let client = async_nats::connect(world.env.config.text("nats.url")).await;
    let jetstream = async_nats::jetstream::new(client.unwrap());
    let subject = format!("{}.shop", world.env.prefix());
    eventually("it is sent", async || {
        let mut headers = async_nats::HeaderMap::new();
        for (name, value) in with {
            headers.insert(*name, *value);
        }
        let sent = jetstream.publish_with_headers(subject.clone(), headers, payload.into());
        sent.await.ok()?.await.ok()
    })
    .await;
}

async fn dead(world: &World, wanted: i64) {
    eventually("it is dead", async || {
        let letters = "SELECT count(*) FROM shop.dead_letters
                       WHERE kind = 'shop.unread' AND redriven_at IS NULL";
        (world.count(letters).await == wanted).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_message_that_can_not_be_read_is_a_dead_letter_and_a_redrive_acts_on_it_once() {
    let world = World::taking_orders_only().await;
    world.sell("sword", 100, 1).await;
    let body = basket("ada", &["sword"], "card", "choreographed");
    let order = world.order(&body).await;
    // What it begins with is never sent: under its id comes something else.
    let event: (uuid::Uuid, Vec<u8>) =
        sqlx::query_as("DELETE FROM shop.outbox_events RETURNING event_id, payload")
            .fetch_one(&world.env.db.pool)
            .await
            .unwrap();
    let _working = world.another().await;
    send(&world, Some(&event.0.to_string()), "noise").await;
    send(&world, None, "more noise").await;
    dead(&world, 2).await;

    // The next release can read one of them.
    sqlx::query(
        "UPDATE shop.jobs
         SET payload = jsonb_set(
             payload, '{payload}', to_jsonb(translate(encode($1, 'base64'), E'\n', ''))
         )
         WHERE payload ->> 'event' = $2",
    )
    .bind(&event.1)
    .bind(event.0.to_string())
    .execute(&world.env.db.pool)
    .await
    .unwrap();
    let mut tx = world.env.db.pool.begin().await.unwrap();
    let redriven = Letters::new(&world.tables.schema, &[])
        .redrive(&mut tx, &Filter::default(), "ada", None)
        .await
        .unwrap();
    assert_eq!(redriven.letters, 2, "{redriven:?}");
    tx.commit().await.unwrap();
    assert_eq!(world.ended(&order).await["state"], "COMPLETED");
    dead(&world, 1).await;
    let charges = "SELECT sum(calls)::bigint FROM shop.simulated_charges";
    assert_eq!(world.count(charges).await, 1);
    world.matches().await;
}

#[tokio::test]
async fn a_message_with_a_nul_is_a_dead_letter_without_it() {
    let world = World::start().await;
    let odd = [
        ("event_type", "Odd\0"),
        ("correlation_id", "a\0b"),
        ("traceparent", "\0"),
    ];
    send_with(&world, &odd, "noise").await;
    dead(&world, 1).await;
    let kept = "SELECT count(*) FROM shop.jobs
                WHERE payload ->> 'event_type' = 'Odd' AND payload ->> 'correlation_id' = 'ab'";
    assert_eq!(world.count(kept).await, 1);
}

#[tokio::test]
async fn a_message_that_can_not_be_kept_holds_back_no_other() {
    let world = World::taking_orders_only().await;
    // Somebody has made the stream, and is gone.
    let gone = world.another().await;
    send(&world, None, "noise").await;
    dead(&world, 1).await;
    gone.phases.stop();
    gone.stopped.await.unwrap();
    world
        .execute(
            "CREATE FUNCTION shop.refuse() RETURNS trigger LANGUAGE plpgsql AS
             'BEGIN RAISE ''no''; END';
             CREATE TRIGGER refuse BEFORE INSERT ON shop.jobs FOR EACH ROW
             WHEN (NEW.payload ->> 'event_type' = 'refused')
             EXECUTE FUNCTION shop.refuse()",
        )
        .await;
    // They come together.
    send_with(&world, &[("event_type", "refused")], "noise").await;
    send(&world, None, "more noise").await;
    let _working = world.another().await;
    dead(&world, 2).await;
    world.execute("DROP TRIGGER refuse ON shop.jobs").await;
    dead(&world, 3).await;
}
