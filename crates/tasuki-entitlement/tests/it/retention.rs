//! What is made ahead of time, what is removed, and what never is.

use tasuki::worker::drain;
use tasuki_service::config::Config;
use tasuki_testkit::eventually;

use crate::support::{World, body};

/// The setting that says whether anything is removed.
const ENABLED: &str = "entitlement.retention.enabled";

/// What each test counts.
const OLD_KEYS: &str =
    "SELECT count(*) FROM entitlement.idempotency_keys WHERE expires_at <= now()";
const OLD_EVENTS: &str = "SELECT count(*) FROM entitlement.outbox_published
    WHERE published_at < now() - interval '24 hours'";
const OLD_AUDIT: &str = "SELECT count(*) FROM pg_class WHERE relname = 'entitlement_audit_p200101'";

/// A service that removes nothing by itself.
async fn world() -> World {
    World::with(|config| config.with_value(ENABLED, false).unwrap()).await
}

/// Two entitlements with everything that belongs to them, one of them long ago.
async fn an_old_and_a_young_one(world: &World) {
    world.grant("old", &body("u", "old")).await;
    world.grant("young", &body("u", "young")).await;
    world.drained().await;
    for sql in [
        "UPDATE entitlement.idempotency_keys SET expires_at = now() WHERE idem_key = 'old'",
        "UPDATE entitlement.outbox_published SET published_at = now() - interval '25 hours'
         WHERE aggregate_key = 'u:old'",
        "CREATE TABLE entitlement.entitlement_audit_p200101
         PARTITION OF entitlement.entitlement_audit
         FOR VALUES FROM ('2001-01-01+00') TO ('2001-02-01+00')",
        "UPDATE entitlement.entitlement_audit SET occurred_at = '2001-01-15+00'
         WHERE stock_keeping_unit = 'old'",
    ] {
        sqlx::query(sql).execute(&world.env.db.pool).await.unwrap();
    }
    for old in [OLD_KEYS, OLD_EVENTS, OLD_AUDIT] {
        assert_eq!(world.count(old).await, 1, "{old}");
    }
}

/// Upkeep, once to its end.
async fn kept_up(world: &World, config: &Config) {
    let own = tasuki_entitlement::config(config).unwrap();
    let upkeep = tasuki_entitlement::upkeep(&own, &world.tables).unwrap();
    drain(&upkeep).await.unwrap();
}

async fn rows(world: &World) -> [i64; 3] {
    [
        world
            .count("SELECT count(*) FROM entitlement.idempotency_keys")
            .await,
        world
            .count("SELECT count(*) FROM entitlement.outbox_published")
            .await,
        world
            .count("SELECT count(*) FROM entitlement.entitlement_audit")
            .await,
    ]
}

#[tokio::test]
async fn old_keys_events_and_months_of_the_audit_go_and_young_ones_stay() {
    let world = world().await;
    an_old_and_a_young_one(&world).await;
    assert_eq!(rows(&world).await, [2, 2, 2]);
    let removing = world.env.config.clone().with_value(ENABLED, true).unwrap();

    // The service's own upkeep may have its turn just now.
    eventually("what is old is gone", async || {
        kept_up(&world, &removing).await;
        let keys = world.count(OLD_KEYS).await;
        let events = world.count(OLD_EVENTS).await;
        let audit = world.count(OLD_AUDIT).await;
        (keys + events + audit == 0).then_some(())
    })
    .await;
    assert_eq!(rows(&world).await, [1, 1, 1]);
    let again = world.grant("young", &body("u", "young")).await;
    assert_eq!(again.headers["idempotency-replayed"], "true");
}

#[tokio::test]
async fn nothing_is_removed_where_retention_is_off_and_partitions_are_made_all_the_same() {
    let world = world().await;
    eventually("there are months ahead", async || {
        let months = world.count(
            "SELECT count(*) FROM pg_inherits
             WHERE inhparent = 'entitlement.entitlement_audit'::regclass",
        );
        // This one, the next two at least, and the default one.
        (months.await >= 4).then_some(())
    })
    .await;
    an_old_and_a_young_one(&world).await;
    kept_up(&world, &world.env.config).await;
    assert_eq!(rows(&world).await, [2, 2, 2]);
    assert_eq!(world.count(OLD_AUDIT).await, 1);
}
