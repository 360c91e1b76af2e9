//! What operators may do about orders: go on, and nothing that would grant what was taken back.

use tasuki::saga::{By, Sagas};
use tasuki_testkit::eventually;
use uuid::Uuid;

use crate::support::{World, basket};

/// Sends the saga of an order forward again.
async fn retry(world: &World, id: &str, from: &str) -> Result<(), String> {
    let sagas = Sagas::new(&world.tables.schema);
    let (saga, by): (Uuid, _) = (id.parse().unwrap(), By::new("ada", "it should work now"));
    let mut tx = world.env.db.pool.begin().await.unwrap();
    let sent = sagas.retry_from(&mut tx, saga.into(), from, &by).await;
    tx.commit().await.unwrap();
    sent.map_err(|refused| refused.to_string())
}

#[tokio::test]
async fn an_order_that_is_half_undone_and_sent_forward_again_is_undone() {
    let world = World::with(|config| config.with_value("shop.payment.undo-attempts", 1).unwrap());
    let world = world.await;
    world.sell("sword", 100, 0).await;
    let wanted = basket("ada", &["sword"], "test-refund-refused", "orchestrated");
    let id = world.order(&wanted).await;
    world.until(&id, &["NEEDS_ATTENTION"]).await;
    world
        .execute("UPDATE shop.simulated_charges SET refuses_refund = FALSE")
        .await;
    world.receive("sword", 1).await;
    retry(&world, &id, "reserve_stock").await.unwrap();
    let seen = world.ended(&id).await;
    assert_eq!(seen["state"], "COMPENSATED", "{seen}");
    assert!(!world.owns("ada", "sword").await);
    assert_eq!(world.stock("sword").await, (1, 0));
    world.matches().await;
}

#[tokio::test]
async fn an_order_whose_grant_is_half_undone_can_only_be_undone() {
    let world = World::start().await;
    for sku in ["a", "b", "c"] {
        world.sell(sku, 100, 1).await;
    }
    // The third can't be granted, and then the second can't be taken back.
    let held = world.hold("ada", "c").await;
    world
        .execute(
            "CREATE FUNCTION entitlement.refuse() RETURNS trigger LANGUAGE plpgsql AS $$
             BEGIN
                IF NEW.action = 'REVOKE' AND NEW.stock_keeping_unit = 'b' THEN
                    RAISE EXCEPTION 'not now';
                END IF;
                RETURN NEW;
             END $$;
             CREATE TRIGGER refuse BEFORE INSERT ON entitlement.entitlement_audit
             FOR EACH ROW EXECUTE FUNCTION entitlement.refuse()",
        )
        .await;
    let wanted = basket("ada", &["a", "b", "c"], "card", "orchestrated");
    let id = world.order(&wanted).await;
    world.until(&id, &["NEEDS_ATTENTION"]).await;
    assert!(!world.owns("ada", "a").await && world.owns("ada", "b").await);

    world
        .execute("DROP TRIGGER refuse ON entitlement.entitlement_audit")
        .await;
    drop(held);
    // The first was granted under a key that would be answered as before.
    let refused = retry(&world, &id, "grant_entitlement").await.unwrap_err();
    assert!(refused.contains("resume or skip that first"), "{refused}");
    world.resume(std::slice::from_ref(&id)).await;
    let seen = world.ended(&id).await;
    assert_eq!(seen["state"], "COMPENSATED", "{seen}");
    for sku in ["a", "b", "c"] {
        assert!(!world.owns("ada", sku).await, "{sku}");
        assert_eq!(world.stock(sku).await, (1, 0));
    }
    world.matches().await;
}

#[tokio::test]
async fn a_refund_whose_last_attempt_takes_too_long_is_told_to_an_operator() {
    let world = World::with(|config| {
        config
            .with_value("shop.payment.undo-attempts", 2)
            .unwrap()
            .with_value("shop.payment.timeout", "1s")
            .unwrap()
            .with_value("shop.payment.backoff-base", "2s")
            .unwrap()
            .with_value("shop.payment.backoff-max", "2s")
            .unwrap()
            .with_value("shop.entitlement.timeout", "50ms")
            .unwrap()
    })
    .await;
    world.sell("sword", 100, 0).await;
    let wanted = basket("ada", &["sword"], "test-refund-refused", "orchestrated");
    let id = world.order(&wanted).await;
    eventually("the first attempt is over", async || {
        let tries =
            "SELECT count(*) FROM shop.sagas, json_array_elements(story -> 'steps') AS entry
                     WHERE (entry ->> 'undo_tries')::integer = 1";
        (world.count(tries).await == 1).then_some(())
    })
    .await;
    // The second is not refused, and can't be recorded.
    let mut held = world.env.db.pool.begin().await.unwrap();
    sqlx::query("SELECT FROM shop.orders FOR UPDATE")
        .execute(&mut *held)
        .await
        .unwrap();
    world
        .execute("UPDATE shop.simulated_charges SET refuses_refund = FALSE")
        .await;
    world.until(&id, &["NEEDS_ATTENTION"]).await;
    let notices = world.notices("").await;
    assert_eq!(notices.len(), 1, "{notices:?}");
    assert_eq!(notices[0]["kind"], "REFUND_FAILED");
    drop(held);
    world.resume(std::slice::from_ref(&id)).await;
    assert_eq!(world.ended(&id).await["state"], "COMPENSATED");
    world.matches().await;
}
