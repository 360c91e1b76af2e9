//! What is prepared in a participant and not open in the log.

use std::time::Duration;

use tasuki::twopc::{Coordinator, Listed, Resolution};
use tasuki::worker::Worker;
use tasuki_testkit::eventually;
use uuid::Uuid;

use super::{SECOND, World, gid, is_prepared_for_a_while, run, transfer, west_has_not_heard};

const HOUR: Duration = Duration::from_secs(3600);

/// Prepares a transaction under this name in west.
async fn prepare(world: &World, gid: &str) {
    run(
        &world.west.pool,
        &format!("BEGIN; UPDATE stock SET units = 0; PREPARE TRANSACTION '{gid}'"),
    )
    .await;
}

/// A name as those of this log, with another transaction in it.
async fn strange(world: &World) -> String {
    transfer(&world.coordinator(), world, 1).await.unwrap();
    let finished = world.list(Listed::Finished).await;
    let last = finished.first().unwrap();
    let id = last.id.as_uuid().simple().to_string();
    gid(last, "west").replace(&id, &Uuid::now_v7().simple().to_string())
}

/// A short timeout lets things be old soon; on a busy machine it may be too short to be answered.
async fn sweeps(coordinator: &Coordinator) {
    coordinator.sweep().tick().await.ok();
}

#[tokio::test]
async fn what_nobody_knows_is_aborted_when_it_is_older_than_the_timeout() {
    let world = World::new().await;
    let orphan = strange(&world).await;
    prepare(&world, &orphan).await;
    let patient = world.coordinator().timeout(HOUR);
    patient.sweep().tick().await.unwrap();
    assert_eq!(world.prepared().await, [orphan], "it is young");
    let coordinator = world.coordinator().timeout(SECOND / 2);
    eventually("it is old enough", async || {
        sweeps(&coordinator).await;
        world.prepared().await.is_empty().then_some(())
    })
    .await;
    assert_eq!(world.units().await, (99, 101));
}

#[tokio::test]
async fn what_is_open_in_the_log_is_left_to_the_recovery_however_old() {
    let world = World::new().await;
    west_has_not_heard(&world).await;
    is_prepared_for_a_while(&world.west).await;
    let sweep = world.coordinator().timeout(SECOND / 10).sweep();
    eventually("it has swept", async || sweep.tick().await.ok()).await;
    assert_eq!(world.prepared().await.len(), 1);
    world.recovers().await;
}

#[tokio::test]
async fn what_is_prepared_by_others_is_none_of_ours() {
    let world = World::new().await;
    let ours = strange(&world).await;
    let log = ours.split(':').nth(2).unwrap();
    let another_log = ours.replace(log, "0123456789abcdef");
    let theirs = [another_log.as_str(), "tasuki:app:", "somebody''s"];
    for gid in theirs {
        // Not the same row: they would wait for each other.
        let insert = "BEGIN; INSERT INTO stock VALUES (0); PREPARE TRANSACTION";
        run(&world.west.pool, &format!("{insert} '{gid}'")).await;
    }
    let coordinator = world.coordinator().timeout(SECOND / 10);
    prepare(&world, &ours).await;
    eventually("ours is swept", async || {
        sweeps(&coordinator).await;
        (!world.prepared().await.contains(&ours)).then_some(())
    })
    .await;
    assert_eq!(world.prepared().await.len(), 3);
    for gid in theirs {
        run(&world.west.pool, &format!("ROLLBACK PREPARED '{gid}'")).await;
    }
}

#[tokio::test]
async fn a_participant_that_was_written_off_and_came_back_ends_as_it_was_decided() {
    let world = World::new().await;
    let id = west_has_not_heard(&world).await;
    let mut db = world.log.pool.acquire().await.unwrap();
    let gone = Resolution::WriteOff("west".to_owned());
    let ledger = world.coordinator().ledger();
    let resolved = ledger.resolve(&mut db, id, &gone, "ann", "its disk is dust");
    resolved.await.unwrap();
    // Whoever recovers has not heard of west either.
    let west = world.west_that_goes_away().await;
    world.time_passes().await;
    let elsewhere = world.coordinator_with(&west);
    elsewhere.recovery().drain().await.unwrap();
    assert_eq!(world.list(Listed::Open).await, []);
    assert_eq!(world.prepared().await.len(), 1);

    let coordinator = world.coordinator().timeout(SECOND / 10);
    eventually("it is told after all", async || {
        sweeps(&coordinator).await;
        world.prepared().await.is_empty().then_some(())
    })
    .await;
    assert_eq!(world.units().await, (70, 130));
}

#[tokio::test]
async fn a_participant_that_is_away_does_not_keep_the_others_from_being_swept() {
    let world = World::new().await;
    let orphan = strange(&world).await.replace(":west", ":east");
    run(
        &world.east.pool,
        &format!("BEGIN; UPDATE stock SET units = 0; PREPARE TRANSACTION '{orphan}'"),
    )
    .await;
    let away = world.west_that_goes_away().await;
    let coordinator = world.coordinator_with(&away).timeout(SECOND / 2);
    eventually("east is swept", async || {
        let told = coordinator.sweep().tick().await;
        assert!(told.unwrap_err().to_string().contains("west"));
        world.prepared().await.is_empty().then_some(())
    })
    .await;
}
