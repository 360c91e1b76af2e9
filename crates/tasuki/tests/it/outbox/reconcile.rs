//! The broker loses what it had acknowledged: it is noticed, and sent again.

use tasuki::worker::Worker;

use super::*;

async fn settle_down(shop: &Shop, reconciler: &Reconciler<MemoryBus>) {
    reconciler.tick().await.unwrap();
    shop.relay().drain().await.unwrap();
}

#[tokio::test]
async fn a_stream_that_was_deleted_is_made_again_and_every_retained_event_is_published_again() {
    let shop = Shop::open().await;
    let ids = shop.enqueue(300).await;
    shop.relay().drain().await.unwrap();
    shop.bus.delete_stream(STREAM);
    settle_down(&shop, &shop.reconciler()).await;
    assert_same(shop.arrived(), ids);
}

#[tokio::test]
async fn a_stream_that_was_recreated_by_somebody_else_is_noticed() {
    let shop = Shop::open().await;
    let mut ids = shop.enqueue(300).await;
    shop.relay().drain().await.unwrap();
    shop.bus.recreate_stream(STREAM);
    // More is published than before, so that no number tells.
    ids.extend(shop.enqueue(400).await);
    shop.relay().drain().await.unwrap();
    settle_down(&shop, &shop.reconciler()).await;
    assert_same(shop.arrived(), ids);
}

#[tokio::test]
async fn a_stream_that_lost_its_tail_gets_it_back() {
    let shop = Shop::open().await;
    let ids = shop.enqueue(1_000).await;
    shop.relay().drain().await.unwrap();
    shop.bus.truncate(STREAM, 900);
    settle_down(&shop, &shop.reconciler()).await;
    assert_same(shop.arrived(), ids);
}

#[tokio::test]
async fn sequences_that_are_used_again_hide_nothing() {
    let shop = Shop::open().await;
    let relay = shop.relay();
    let reconciler = shop.reconciler().suspecting(relay.work().suspicion());
    let mut ids = shop.enqueue(5_000).await;
    relay.drain().await.unwrap();
    reconciler.tick().await.unwrap();
    shop.bus.truncate(STREAM, 4_900);
    ids.extend(shop.enqueue(200).await); // Over the place where the lost ones were.
    relay.drain().await.unwrap();
    settle_down(&shop, &reconciler).await;
    assert_same(shop.arrived(), ids);
}

#[tokio::test]
async fn sequences_that_another_relay_uses_again_are_noticed_without_its_help() {
    let shop = Shop::open().await;
    let reconciler = shop.reconciler(); // Nobody raises a suspicion.
    let mut ids = shop.enqueue(5_000).await;
    shop.relay().drain().await.unwrap();
    reconciler.tick().await.unwrap();
    ids.extend(shop.enqueue(50).await); // After the last look: 5,001 to 5,050.
    shop.relay().drain().await.unwrap();
    shop.bus.truncate(STREAM, 5_025);
    ids.extend(shop.enqueue(75).await);
    shop.relay().drain().await.unwrap();
    settle_down(&shop, &reconciler).await;
    assert_same(shop.arrived(), ids);
}

#[tokio::test]
async fn a_healthy_stream_is_left_alone() {
    let shop = Shop::open().await;
    let reconciler = shop.reconciler();
    reconciler.tick().await.unwrap();
    let ids = shop.enqueue(500).await;
    shop.relay().drain().await.unwrap();
    for _ in 0..20 {
        settle_down(&shop, &reconciler).await;
    }
    assert_eq!(reconciler.verify().await.unwrap(), 0);
    assert_same(shop.arrived(), ids);
}

#[tokio::test]
async fn a_message_that_vanished_from_the_middle_comes_back_though_its_id_is_still_remembered() {
    let shop = Shop::open_with(stream().duplicate_window(Duration::from_millis(500))).await;
    let ids = shop.enqueue(100).await;
    shop.relay().drain().await.unwrap();
    shop.bus.delete_message(STREAM, 42);
    assert_eq!(shop.reconciler().verify().await.unwrap(), 1);
    // The broker takes it for a duplicate of what it has not; later it forgets the id.
    tasuki_testkit::eventually("it is stored again", async || {
        shop.relay().drain().await.unwrap();
        (shop.arrived().len() == 100).then_some(())
    })
    .await;
    assert_same(shop.arrived(), ids);
    assert_eq!(
        shop.count("SELECT count(*) FROM shop.outbox_published")
            .await,
        100
    );
}

#[tokio::test]
async fn two_reconcilers_send_a_lost_event_once() {
    let shop = Shop::open().await;
    let ids = shop.enqueue(3_000).await;
    shop.relay().drain().await.unwrap();
    shop.bus.truncate(STREAM, 0);
    let (one, two) = (shop.reconciler(), shop.reconciler());
    let (a, b) = tokio::join!(one.verify(), two.verify());
    assert_eq!(a.unwrap() + b.unwrap(), 3_000);
    shop.relay().drain().await.unwrap();
    assert_same(shop.arrived(), ids);
}

#[tokio::test]
async fn lost_events_of_one_key_are_sent_again_in_their_order() {
    let shop = Shop::open().await;
    let events: Vec<Event> = (0..50).map(|n| event("Moved", n).ordered_by("k")).collect();
    let ids = shop.enqueue_these(&events).await;
    shop.relay().drain().await.unwrap();
    shop.bus.recreate_stream(STREAM);
    settle_down(&shop, &shop.reconciler()).await;
    assert_eq!(shop.arrived(), ids);
}
