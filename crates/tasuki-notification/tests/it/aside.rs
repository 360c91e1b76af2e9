//! What the broker gave up or lost: recorded, shown, and sent again by a person.

use tasuki_contract::events::Message;
use tasuki_notification::{Aside, Redriven};
use tasuki_testkit::eventually;
use uuid::Uuid;

use crate::intake::REFUSE_BAD;
use crate::support::{World, granted};

const OPEN: &str = "SELECT count(*) FROM notification.notification_nats_dlq
    WHERE redriven_at IS NULL AND discarded_at IS NULL";

async fn aside(world: &World) -> Aside {
    let common = world.env.common().unwrap();
    let own = tasuki_notification::config(&world.env.config).unwrap();
    // With pools of its own: those of a service that has stopped are closed.
    let tables = tasuki_notification::tables(&common, &own).unwrap();
    tasuki_notification::aside(&common, &own, &tables, &world.env.clock)
        .await
        .unwrap()
}

#[tokio::test]
async fn a_message_that_fails_to_the_last_is_recorded_and_a_redrive_tells_it_once() {
    let world = World::with(|config| {
        config
            .with_value("notification.nats.max-deliver", 2)
            .unwrap()
    })
    .await;
    world.execute(REFUSE_BAD).await;
    world.tell(&granted("bad", "s", 1)).await;
    world.counts(1, OPEN).await;
    let aside = aside(&world).await;
    let entry = aside.list(true, 10).await.unwrap().remove(0);
    assert_eq!(
        (entry.kind.as_str(), entry.deliveries),
        ("MAX_DELIVERIES", Some(2))
    );
    assert_eq!(entry.consumer, world.durable());

    let refused = aside.redrive(&entry, "ann").await;
    assert!(
        refused.is_err(),
        "the database still refuses it, and nothing has changed"
    );
    assert_eq!(world.count(OPEN).await, 1);

    world
        .execute("ALTER TABLE notification.notifications_live DROP CONSTRAINT nobody_bad")
        .await;
    assert_eq!(aside.redrive(&entry, "ann").await.unwrap(), Redriven::Done);
    let sent = "SELECT count(*) FROM notification.notifications WHERE status = 'SENT'";
    world.counts(1, sent).await;
    assert_eq!(
        aside.redrive(&entry, "bob").await.unwrap(),
        Redriven::NotOpen
    );
    assert_eq!(
        world
            .count("SELECT count(*) FROM notification.notifications")
            .await,
        1
    );
    assert!(aside.list(true, 10).await.unwrap().is_empty());
    let closed = aside.list(false, 10).await.unwrap();
    assert!(closed[0].redriven_at.is_some());
}

#[tokio::test]
async fn poison_stays_open_after_a_redrive_until_somebody_discards_it() {
    let world = World::start().await;
    world
        .publish(&Uuid::now_v7().to_string(), b"\xff".to_vec())
        .await;
    world.counts(1, OPEN).await;
    let aside = aside(&world).await;
    let entry = aside.list(true, 10).await.unwrap().remove(0);
    let still = aside.redrive(&entry, "ann").await.unwrap();
    assert!(matches!(still, Redriven::Failed(_)), "{still:?}");
    let entry = aside.list(true, 10).await.unwrap().remove(0);
    assert!(entry.last_error.is_some());
    assert!(aside.discard(&entry, "ann", "noise").await.unwrap());
    assert!(!aside.discard(&entry, "ann", "noise").await.unwrap());
    assert_eq!(world.count(OPEN).await, 0);
}

#[tokio::test]
async fn a_message_that_was_settled_and_never_processed_is_found_and_can_be_sent_again() {
    let world = World::with(|config| {
        // Nobody takes messages in but us.
        config
            .with_value("notification.nats.enabled", true)
            .unwrap()
    })
    .await;
    world.tell(&granted("u", "first", 1)).await;
    world.settled().await;
    world.host.phases.stop();
    eventually("it has stopped", async || {
        world.host.stopped.is_finished().then_some(())
    })
    .await;

    // The broker lost a delivery: settled, and neither processed nor reported.
    let lost = granted("u", "lost", 1);
    let sequence = world.publish(&lost.event_id, lost.encode_to_vec()).await;
    let stream = world.jetstream.get_stream(world.stream()).await.unwrap();
    let consumer: async_nats::jetstream::consumer::PullConsumer =
        stream.get_consumer(&world.durable()).await.unwrap();
    let mut batch = consumer.fetch().max_messages(1).messages().await.unwrap();
    let message = futures_util::StreamExt::next(&mut batch)
        .await
        .unwrap()
        .unwrap();
    message.double_ack().await.unwrap();

    let _again = world.another().await;
    world.counts(1, OPEN).await;
    let aside = aside(&world).await;
    let entry = aside.list(true, 10).await.unwrap().remove(0);
    assert_eq!(
        (entry.kind.as_str(), entry.stream_seq.unsigned_abs()),
        ("MISSED", sequence)
    );
    assert_eq!(aside.redrive(&entry, "ann").await.unwrap(), Redriven::Done);
    let sent = "SELECT count(*) FROM notification.notifications WHERE status = 'SENT'";
    world.counts(2, sent).await;
}
