//! What people see and may do.

use tasuki::admin::Admin;
use tasuki::twopc::{
    BranchState, Decision, Listed, Record, Resolution, ResolveError, TransactionId,
};
use tasuki::upkeep::Upkeep;
use tasuki::worker::drain;

use super::custom::{self, Desk};
use super::{SECOND, World, add, gid, number, run, schema, transfer, west_has_not_heard};

async fn resolve(
    world: &World,
    id: TransactionId,
    resolution: Resolution,
) -> Result<Decision, ResolveError> {
    let mut tx = world.log.pool.begin().await.unwrap();
    let ledger = world.coordinator().ledger();
    let resolved = ledger
        .resolve(&mut tx, id, &resolution, "ann", "nobody else will")
        .await;
    tx.commit().await.unwrap();
    resolved
}

fn west() -> Resolution {
    Resolution::WriteOff("west".to_owned())
}

#[tokio::test]
async fn a_person_writes_a_participant_off_with_a_name_and_a_reason_and_it_ends() {
    let world = World::new().await;
    let id = west_has_not_heard(&world).await;
    let gid = gid(&world.open().await, "west");
    run(&world.west.pool, &format!("ROLLBACK PREPARED '{gid}'")).await;

    for (wrong, expected) in [
        (Resolution::Abort, "is decided: COMMIT"),
        (
            Resolution::WriteOff("east".to_owned()),
            "does not wait for `east`",
        ),
        (
            Resolution::WriteOff("mars".to_owned()),
            "does not wait for `mars`",
        ),
    ] {
        let refused = resolve(&world, id, wrong).await.unwrap_err();
        assert!(refused.to_string().contains(expected), "{refused}");
    }
    let mut db = world.log.pool.acquire().await.unwrap();
    let ledger = world.coordinator().ledger();
    for (actor, reason) in [("", "because"), ("ann", " "), ("ann", "\u{7}")] {
        let refused = ledger.resolve(&mut db, id, &west(), actor, reason).await;
        assert!(
            matches!(refused, Err(ResolveError::Invalid { .. })),
            "{actor} {reason}"
        );
    }
    assert_eq!(ledger.show(&mut db, id).await.unwrap().unwrap().trail, []);

    assert_eq!(resolve(&world, id, west()).await.unwrap(), Decision::Commit);
    // It is due at once: nobody has to wait for a pause or a lease.
    world.coordinator().recovery().drain().await.unwrap();
    let story = ledger.show(&mut db, id).await.unwrap().unwrap();
    assert!(story.record.finished_at.is_some());
    let west = &story.record.branches["west"];
    assert_eq!(west.state, BranchState::WrittenOff);
    assert_eq!(story.trail.len(), 1);
    let said = &story.trail[0];
    assert_eq!(said.action, "WRITE_OFF");
    assert_eq!(said.participant.as_deref(), Some("west"));
    assert_eq!(said.actor, "ann");
    assert_eq!(said.reason, "nobody else will");
    let again = resolve(&world, id, super::people::west()).await;
    assert!(matches!(again, Err(ResolveError::NotOpen(_))), "{again:?}");
}

#[tokio::test]
async fn a_person_who_says_commit_has_everybody_told_again_now() {
    let world = World::new().await;
    let id = west_has_not_heard(&world).await;
    let resolved = resolve(&world, id, Resolution::Commit).await;
    assert_eq!(resolved.unwrap(), Decision::Commit);
    world.coordinator().recovery().drain().await.unwrap();
    assert_eq!(world.list(Listed::Open).await, []);
    assert_eq!(world.units().await, (70, 130));
}

#[tokio::test]
async fn a_person_aborts_what_is_not_decided_and_its_coordinator_has_to_follow() {
    let (world, desk) = (World::new().await, Desk::with_gate());
    let coordinator = custom::coordinator(&world, &desk).timeout(20 * SECOND);
    let mut tx = coordinator.begin("transfer").await.unwrap();
    let id = tx.id();
    add(tx.on(&world.east()).await.unwrap(), -1).await.unwrap();
    tx.enlist("desk").unwrap();
    let person = async {
        desk.is_asked().await;
        for too_early in [Resolution::Commit, Resolution::WriteOff("desk".to_owned())] {
            let refused = resolve(&world, id, too_early).await;
            assert!(matches!(refused, Err(ResolveError::Undecided(_))));
        }
        let resolved = resolve(&world, id, Resolution::Abort).await;
        assert_eq!(resolved.unwrap(), Decision::Abort);
        let turned = resolve(&world, id, Resolution::Commit).await.unwrap_err();
        assert!(turned.to_string().contains("is decided: ABORT"), "{turned}");
        desk.open();
    };
    let (ended, ()) = tokio::join!(tx.commit(), person);
    assert!(ended.is_err(), "{ended:?}");
    let everybody = custom::coordinator(&world, &desk);
    everybody.recovery().drain().await.unwrap();
    assert_eq!(world.list(Listed::Open).await, []);
    assert_eq!(world.prepared().await, [""; 0]);
    assert_eq!(world.units().await, (100, 100));
    assert_eq!(desk.states(), [BranchState::Aborted]);
}

#[tokio::test]
async fn lists_come_in_pages_the_latest_first() {
    let world = World::new().await;
    let coordinator = world.coordinator();
    let mut ids = Vec::new();
    for _ in 0..5 {
        ids.push(transfer(&coordinator, &world, 1).await.unwrap().id);
    }
    ids.reverse();
    let mut db = world.log.pool.acquire().await.unwrap();
    let (ledger, mut seen, mut after) = (coordinator.ledger(), Vec::new(), None);
    loop {
        let page = ledger.list(&mut db, Listed::Finished, after, 2);
        let page: Vec<Record> = page.await.unwrap();
        let Some(last) = page.last() else { break };
        after = Some(last.id);
        seen.extend(page.iter().map(|record| record.id));
    }
    assert_eq!(seen, ids);
}

#[tokio::test]
async fn how_many_wait_and_for_how_long_is_told() {
    let world = World::new().await;
    let mut db = world.log.pool.acquire().await.unwrap();
    let admin = Admin::new(&schema());
    let none = admin.twopc(&mut db).await.unwrap();
    assert_eq!((none.open, none.oldest), (0, None));
    west_has_not_heard(&world).await;
    run(
        &world.log.pool,
        "UPDATE app.twopc_transactions SET created_at = now() - INTERVAL '2 minutes'",
    )
    .await;
    let one = admin.twopc(&mut db).await.unwrap();
    assert_eq!(one.open, 1);
    assert!(one.oldest.is_some_and(|age| age >= 120 * SECOND));
    world.recovers().await;
}

#[tokio::test]
async fn upkeep_removes_what_has_ended_but_not_what_may_still_be_asked_for() {
    let world = World::new().await;
    let coordinator = world.coordinator();
    transfer(&coordinator, &world, 1).await.unwrap();
    transfer(&coordinator, &world, 1).await.unwrap();
    run(
        &world.log.pool,
        "UPDATE app.twopc_finished SET
             finished_at = now() - INTERVAL '31 days',
             written_off = transaction_id = (SELECT max(transaction_id::text)::uuid FROM app.twopc_finished)",
    )
    .await;
    transfer(&coordinator, &world, 1).await.unwrap();
    let upkeep = Upkeep::new(world.log.pool.clone(), &schema());
    drain(&upkeep).await.unwrap();
    let left = "SELECT count(*) FROM app.twopc_finished";
    assert_eq!(number(&world.log.pool, left).await, 2);
    let old = "SELECT count(*) FROM app.twopc_finished WHERE written_off";
    assert_eq!(number(&world.log.pool, old).await, 1);
}
