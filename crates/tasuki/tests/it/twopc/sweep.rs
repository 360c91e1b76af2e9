//! What is prepared in a participant and not open in the log.

use std::time::Duration;

use sqlx::PgPool;
use tasuki::twopc::{BranchState, Coordinator, Database, Error, Listed, Resolution};
use tasuki::worker::Worker;
use tasuki_testkit::eventually;
use uuid::Uuid;

use super::{
    SECOND, World, add, bare, gid, is_prepared_for_a_while, run, transfer, west_has_not_heard,
};

const HOUR: Duration = Duration::from_secs(3600);

/// Prepares a transaction under this name in west.
async fn prepare(world: &World, gid: &str) {
    run(
        &world.west.pool,
        &format!("BEGIN; UPDATE stock SET units = 0; PREPARE TRANSACTION '{gid}'"),
    )
    .await;
}

/// West for a role of its own, which is no superuser.
async fn west_as(world: &World, role: &str) -> PgPool {
    let create = format!("CREATE ROLE {role} LOGIN PASSWORD '{role}'");
    run(&world.west.pool, &create).await;
    let west = (*world.west.pool.connect_options()).clone();
    PgPool::connect_with(west.username(role).password(role))
        .await
        .unwrap()
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
async fn a_branch_that_prepares_after_its_abort_is_swept_while_another_participant_is_away() {
    let world = World::new().await;
    let east = world.east_that_goes_away().await;
    let coordinator = bare(&world).database(&east).unwrap();
    let coordinator = coordinator.database(&world.west()).unwrap();
    let mut tx = coordinator.begin("transfer").await.unwrap();
    add(tx.on(&east).await.unwrap(), -30).await.unwrap();
    let west = tx.on(&world.west()).await.unwrap();
    sqlx::query("CREATE TEMPORARY TABLE nobody_can_prepare ()")
        .execute(west)
        .await
        .unwrap();
    tx.commit().await.unwrap_err();
    let open = world.open().await;
    assert_eq!(open.branches["west"].state, BranchState::Aborted);
    assert!(!open.branches["east"].state.is_done());
    // As if it had been asked to, and had taken its time.
    let late = gid(&open, "west");
    run(
        &world.west.pool,
        &format!("BEGIN; PREPARE TRANSACTION '{late}'"),
    )
    .await;
    let coordinator = coordinator.timeout(SECOND / 10);
    eventually("it is swept", async || {
        sweeps(&coordinator).await;
        (!world.prepared().await.contains(&late)).then_some(())
    })
    .await;
    assert_eq!(world.open().await.id, open.id);
    world.recovers().await;
    assert_eq!(world.units().await, (100, 100));
}

#[tokio::test]
async fn a_participant_that_was_written_off_is_swept_while_another_one_is_away() {
    let world = World::new().await;
    let east = world.east_that_goes_away().await;
    let west = world.west_that_goes_away().await;
    let nobody = bare(&world).database(&east).unwrap();
    let nobody = nobody.database(&west).unwrap();
    let committed = transfer(&nobody, &world, 30).await.unwrap();
    assert_eq!(committed.waiting_for, ["east", "west"]);
    let mut db = world.log.pool.acquire().await.unwrap();
    let gone = Resolution::WriteOff("west".to_owned());
    let ledger = nobody.ledger();
    let resolved = ledger.resolve(&mut db, committed.id, &gone, "ann", "its disk is dust");
    resolved.await.unwrap();

    let coordinator = bare(&world).database(&east).unwrap();
    let coordinator = coordinator.database(&world.west()).unwrap();
    let coordinator = coordinator.timeout(SECOND / 10);
    eventually("it is told after all", async || {
        sweeps(&coordinator).await;
        (world.units().await == (100, 130)).then_some(())
    })
    .await;
    assert_eq!(world.open().await.id, committed.id);
    world.recovers().await;
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

/// Orphans of two roles: the older is another's, and the sweep is of the younger's.
struct Inherited {
    theirs: String,
    ours: String,
    roles: [String; 2],
    coordinator: Coordinator,
}

impl Inherited {
    async fn by(world: &World) -> Self {
        let (theirs, ours) = (strange(world).await, strange(world).await);
        let roles = ["old", "new"].map(|role| format!("{role}_{}", world.west.name()));
        let [old, new] = &roles;
        let (old, new) = (west_as(world, old).await, west_as(world, new).await);
        for (pool, gid) in [(&old, &theirs), (&new, &ours)] {
            run(pool, &format!("BEGIN; PREPARE TRANSACTION '{gid}'")).await;
        }
        old.close().await;
        let west = Database::new("west", new).unwrap();
        Self {
            theirs,
            ours,
            roles,
            coordinator: world.coordinator_with(&west).timeout(SECOND / 2),
        }
    }

    /// A superuser cleans up: roles are the whole server's.
    async fn end(self, world: &World) {
        let west = &world.west.pool;
        run(west, &format!("ROLLBACK PREPARED '{}'", self.theirs)).await;
        run(west, &format!("DROP ROLE {}", self.roles.join(", "))).await;
    }
}

#[tokio::test]
async fn one_that_another_role_has_prepared_does_not_keep_the_younger_ones_prepared() {
    let world = World::new().await;
    let inherited = Inherited::by(&world).await;
    let sweep = inherited.coordinator.sweep();
    eventually("ours is swept", async || {
        let swept = sweep.tick().await.map_err(|error| error.to_string());
        let left = world.prepared().await;
        let is_swept = !left.contains(&inherited.ours);
        // What could not be ended is told all the same.
        let told = swept.is_err_and(|error| error.contains("`west`: ") && error.contains("denied"));
        (is_swept && told).then_some(())
    })
    .await;
    assert_eq!(world.prepared().await, [inherited.theirs.as_str()]);
    inherited.end(&world).await;
}

#[tokio::test]
async fn what_another_role_has_prepared_is_named_before_it_matters() {
    let world = World::new().await;
    let inherited = Inherited::by(&world).await;
    let patient = inherited.coordinator.clone().timeout(HOUR);
    patient.check().await.unwrap();
    let told = eventually("it is old enough", async || {
        let told = inherited.coordinator.check().await.err()?;
        matches!(told, Error::Foreign { .. }).then_some(told)
    })
    .await;
    let told = told.to_string();
    for named in ["`west`", &inherited.theirs, &inherited.roles[0]] {
        assert!(told.contains(named), "{told}");
    }
    let superuser = world.coordinator().timeout(SECOND / 2);
    superuser.check().await.unwrap();
    run(
        &world.west.pool,
        &format!("ROLLBACK PREPARED '{}'", inherited.ours),
    )
    .await;
    inherited.end(&world).await;
}
