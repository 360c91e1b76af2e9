//! Servers that can't prepare, and poolers in between.

use sqlx::PgPool;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use tasuki::lease::Route;
use tasuki::twopc::{Coordinator, Database, Error, Listed};
use tasuki::worker::Worker;
use tasuki_stack::{PgBouncer, Postgres};
use tasuki_testkit::breakable;

use super::{SECOND, World, add, bare, run, schema, transfer};

#[tokio::test]
async fn a_server_that_prepares_no_transactions_is_named_with_what_to_set() {
    let world = World::new().await;
    let folder = breakable("twopc-disabled").durable();
    let server = Postgres::start(&folder).await.unwrap();
    let pool = PgPool::connect(&server.url("postgres")).await.unwrap();
    run(&pool, "ALTER SYSTEM SET max_prepared_transactions = 0").await;
    pool.close().await;
    server.restart().await.unwrap();
    let pool = PgPool::connect(&server.url("postgres")).await.unwrap();
    run(
        &pool,
        "CREATE TABLE stock (units bigint NOT NULL); INSERT INTO stock VALUES (100)",
    )
    .await;
    let north = Database::new("north", pool).unwrap();
    let coordinator = world.coordinator().database(&north).unwrap();

    let told = |error: Error| {
        assert!(matches!(error, Error::Disabled { .. }), "{error:?}");
        let text = error.to_string();
        assert!(text.contains("`north`") && text.contains("max_prepared_transactions"));
    };
    told(coordinator.check().await.unwrap_err());
    world.coordinator().check().await.unwrap();

    let mut tx = coordinator.begin("transfer").await.unwrap();
    add(tx.on(&world.east()).await.unwrap(), -1).await.unwrap();
    add(tx.on(&north).await.unwrap(), 1).await.unwrap();
    told(tx.commit().await.unwrap_err());
    assert_eq!(world.units().await, (100, 100));
    assert_eq!(world.prepared().await, [""; 0]);
    assert_eq!(world.list(Listed::Open).await, []);
}

#[tokio::test]
async fn a_database_that_is_away_is_named() {
    let world = World::new().await;
    let nowhere = PgPoolOptions::new()
        .acquire_timeout(SECOND)
        .connect_lazy("postgres://nobody@127.0.0.1:1/nowhere")
        .unwrap();
    let north = Database::new("north", nowhere).unwrap();
    let coordinator = bare(&world).database(&north).unwrap();
    let away =
        |error: &Error| matches!(error, Error::Away { participant, .. } if participant == "north");
    assert!(away(&coordinator.check().await.unwrap_err()));
    let mut tx = coordinator.begin("transfer").await.unwrap();
    assert!(away(&tx.on(&north).await.unwrap_err()));
}

#[tokio::test(flavor = "multi_thread")]
async fn behind_a_pooler_a_two_phase_commit_ends_the_same_in_both() {
    let world = World::new().await;
    let mut poolers = Vec::new();
    let mut pools = Vec::new();
    for (name, db) in [("log", &world.log), ("east", &world.east)] {
        let folder = breakable(&format!("pooled-twopc-{name}"));
        let pooler = PgBouncer::start(&folder, &db.url()).await.unwrap();
        let options: PgConnectOptions = pooler.url().parse().unwrap();
        let pool = PgPoolOptions::new()
            .max_connections(6)
            .connect_lazy_with(options.statement_cache_capacity(0));
        pools.push(pool);
        poolers.push(pooler);
    }
    let east = Database::new("east", pools[1].clone()).unwrap();
    let west = world.west_that_goes_away().await;
    let coordinator = |west: &Database| {
        Coordinator::new(&schema(), pools[0].clone())
            .through(Route::Pooler)
            .timeout(2 * SECOND)
            .database(&east)
            .unwrap()
            .database(west)
            .unwrap()
    };
    coordinator(&world.west()).check().await.unwrap();
    let all = coordinator(&world.west());
    for _ in 0..5 {
        transfer(&all, &world, 1).await.unwrap();
    }
    let committed = transfer(&coordinator(&west), &world, 1).await.unwrap();
    assert_eq!(committed.waiting_for, ["west"]);
    world.time_passes().await;
    all.recovery().drain().await.unwrap();
    all.sweep().tick().await.unwrap();
    assert_eq!(world.units().await, (94, 106));
    assert_eq!(world.prepared().await, [""; 0]);
    assert_eq!(world.list(Listed::Open).await, []);
}
