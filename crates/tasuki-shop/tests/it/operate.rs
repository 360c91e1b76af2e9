//! What operators may do about orders: go on, and nothing that would grant what was taken back.

use serde_json::Value;
use tasuki::jobs::BoxError;
use tasuki::saga::{
    Again, At, By, Definition, Fail, Local, LocalUndo, Registry, Remote, RemoteUndo, Sagas, Step,
    Tx, define,
};
use tasuki_testkit::eventually;
use uuid::Uuid;

use crate::support::{World, basket};

/// Steps with the names of an order's: somebody who operates sagas needs no more than those.
macro_rules! steps {
    ($($step:ident: $name:literal;)+) => {$(
        struct $step;

        impl Step for $step {
            const NAME: &'static str = $name;
            type Input = ();
            type Output = ();
            type Failure = Fail<BoxError>;
        }

        impl Local for $step {
            async fn act(&self, _: &mut Tx, (): &(), _: &At) -> Result<(), Fail<BoxError>> {
                Ok(())
            }
        }

        impl LocalUndo for $step {
            async fn undo(&self, _: &mut Tx, (): &(), (): &(), _: &At) -> Result<(), Again> {
                Ok(())
            }
        }

        impl Remote for $step {
            async fn act(&self, (): &(), _: &At) -> Result<(), Fail<BoxError>> {
                Ok(())
            }
        }

        impl RemoteUndo for $step {
            async fn undo(&self, (): &(), _: Option<&()>, _: &At) -> Result<(), Again> {
                Ok(())
            }
        }
    )+};
}

steps! {
    Create: "create_order";
    Charge: "charge_payment";
    Reserve: "reserve_stock";
    Grant: "grant_entitlement";
    Confirm: "confirm";
}

fn order() -> Definition<Value> {
    define::<Value>("order", 1)
        .local(Create, |_| Ok(()))
        .remote(Charge, |_| Ok(()))
        .local(Reserve, |_| Ok(()))
        .remote(Grant, |_| Ok(()))
        .pivot_local(Confirm, |_| Ok(()))
        .build()
        .unwrap()
}

#[tokio::test]
async fn an_order_that_is_half_undone_and_sent_forward_again_is_undone() {
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
    let (sagas, registry) = (
        Sagas::new(&world.tables.schema),
        Registry::new().with(&order()),
    );
    let saga: Uuid = id.parse().unwrap();
    let by = By::new("ada", "it should work now");
    let mut tx = world.env.db.pool.begin().await.unwrap();
    sagas
        .retry_from(&mut tx, &registry, saga.into(), "grant_entitlement", &by)
        .await
        .unwrap();
    tx.commit().await.unwrap();

    // The first was granted under a key that would be answered as before.
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
    let notices = world.notices().await;
    assert_eq!(notices.len(), 1, "{notices:?}");
    assert_eq!(notices[0]["kind"], "REFUND_FAILED");
    drop(held);
    world.resume(std::slice::from_ref(&id)).await;
    assert_eq!(world.ended(&id).await["state"], "COMPENSATED");
    world.matches().await;
}
