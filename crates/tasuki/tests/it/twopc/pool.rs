//! The log has connections of its own: a pool that is used up holds up no decision.

use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;
use tasuki::twopc::{BranchState, Coordinator, Listed};
use tasuki_testkit::eventually;

use super::custom::{self, Desk};
use super::{SECOND, World, add, number, run, schema};

/// A pool of the log's database, of so many connections.
async fn small(world: &World, connections: u32) -> PgPool {
    PgPoolOptions::new()
        .max_connections(connections)
        .acquire_timeout(SECOND)
        .connect(&world.log.url())
        .await
        .unwrap()
}

#[tokio::test]
async fn a_commit_with_work_at_home_needs_no_second_connection_of_the_pool() {
    let world = World::new().await;
    run(&world.log.pool, "CREATE TABLE moved (n int)").await;
    let pool = small(&world, 2).await;
    let coordinator = Coordinator::new(&schema(), pool)
        .timeout(5 * SECOND)
        .database(&world.east())
        .unwrap()
        .database(&world.west())
        .unwrap();
    let mut one = coordinator.begin("one").await.unwrap();
    let mut other = coordinator.begin("other").await.unwrap();
    for tx in [&mut one, &mut other] {
        let insert = sqlx::query("INSERT INTO moved VALUES (1)");
        insert.execute(tx.here().await.unwrap()).await.unwrap();
    }
    add(one.on(&world.east()).await.unwrap(), -1).await.unwrap();
    add(other.on(&world.west()).await.unwrap(), 1)
        .await
        .unwrap();
    let (one, other) = tokio::join!(one.commit(), other.commit());
    one.unwrap();
    other.unwrap();
    assert_eq!(world.units().await, (99, 101));
    let moved = number(&world.log.pool, "SELECT count(*) FROM moved").await;
    assert_eq!(moved, 2);
}

#[tokio::test]
async fn a_recovery_ends_what_was_left_though_every_connection_of_the_pool_is_held() {
    let (world, desk) = (World::new().await, Desk::with_gate());
    let mut tx = custom::coordinator(&world, &desk)
        .begin("transfer")
        .await
        .unwrap();
    add(tx.on(&world.east()).await.unwrap(), -1).await.unwrap();
    tx.enlist("desk").unwrap();
    tokio::select! {
        ended = tx.commit() => panic!("{ended:?}"),
        () = desk.is_asked() => {} // Gone, while the desk thinks.
    }
    eventually("east is prepared", async || {
        (world.prepared().await.len() == 1).then_some(())
    })
    .await;
    world.time_passes().await;
    let pool = small(&world, 1).await;
    let _held = pool.acquire().await.unwrap();
    let another = Coordinator::new(&schema(), pool)
        .timeout(5 * SECOND)
        .database(&world.east())
        .unwrap()
        .participant(desk.clone())
        .unwrap();
    another.recovery().drain().await.unwrap();
    assert_eq!(world.list(Listed::Open).await, []);
    assert_eq!(world.prepared().await, [""; 0]);
    assert_eq!(desk.states(), [BranchState::Aborted]);
}
