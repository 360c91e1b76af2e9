//! Both or none.

use std::collections::HashSet;

use futures_util::future::join_all;
use sqlx::{AssertSqlSafe, Executor, SqlSafeStr};
use tasuki::Clock;
use tasuki::outbox::{Event, Outbox};
use tasuki::twopc::{BranchState, Coordinator, Database, Decision, Error, Listed};
use tasuki::worker::Worker;
use tasuki_testkit::eventually;

use super::{SECOND, World, add, bare, gid, names, number, run, schema, transfer};
use crate::dropped::no_transaction_is_left;

#[tokio::test]
async fn every_statement_of_the_log_prepares() {
    let world = World::new().await;
    let mut db = world.log.pool.acquire().await.unwrap();
    let ledger = bare(&world).ledger();
    for sql in ledger.statements() {
        let statement = AssertSqlSafe(sql.to_owned()).into_sql_str();
        let prepared = db.prepare(statement).await;
        assert!(prepared.is_ok(), "{sql}\n{:?}", prepared.err());
    }
}

#[tokio::test]
async fn what_is_committed_is_committed_in_both_and_written_down() {
    let world = World::new().await;
    let committed = transfer(&world.coordinator(), &world, 30).await.unwrap();
    assert!(committed.waiting_for.is_empty());
    assert_eq!(world.units().await, (70, 130));
    assert_eq!(world.prepared().await, [""; 0]);

    assert_eq!(world.list(Listed::Open).await, []);
    let finished = world.list(Listed::Finished).await;
    assert_eq!(finished.len(), 1);
    assert_eq!(finished[0].id, committed.id);
    assert_eq!(finished[0].name, "transfer");
    assert_eq!(finished[0].decision, Some(Decision::Commit));
    assert_eq!(names(&finished[0].branches), ["east", "west"]);
    for branch in finished[0].branches.values() {
        assert_eq!(branch.state, BranchState::Committed);
        assert!(branch.xid.is_some() && branch.error.is_none());
    }
}

#[tokio::test]
async fn a_branch_that_a_failed_statement_has_doomed_aborts_all_though_nobody_looked() {
    let world = World::new().await;
    let mut tx = world.coordinator().begin("transfer").await.unwrap();
    add(tx.on(&world.west()).await.unwrap(), 500).await.unwrap();
    let refused = add(tx.on(&world.east()).await.unwrap(), -500).await;
    assert!(refused.is_err(), "east has not so much");

    let error = tx.commit().await.unwrap_err();
    assert!(
        matches!(&error, Error::Refused { participant, .. } if participant == "east"),
        "{error:?}"
    );
    assert_eq!(world.units().await, (100, 100));
    assert_eq!(world.prepared().await, [""; 0]);
    assert_eq!(world.list(Listed::Open).await, []);
    let finished = world.list(Listed::Finished).await;
    assert_eq!(finished[0].decision, Some(Decision::Abort));
}

#[tokio::test]
async fn what_postgresql_can_not_prepare_is_refused_and_the_others_are_rolled_back() {
    let world = World::new().await;
    let mut tx = world.coordinator().begin("transfer").await.unwrap();
    add(tx.on(&world.east()).await.unwrap(), -1).await.unwrap();
    let west = tx.on(&world.west()).await.unwrap();
    sqlx::query("NOTIFY somebody").execute(west).await.unwrap();
    let error = tx.commit().await.unwrap_err();
    assert!(
        matches!(&error, Error::Refused { participant, .. } if participant == "west"),
        "{error:?}"
    );
    assert_eq!(world.units().await, (100, 100));
    assert_eq!(world.prepared().await, [""; 0]);
}

#[tokio::test]
async fn an_event_that_is_enqueued_in_a_branch_is_there_if_the_transaction_commits() {
    let world = World::new().await;
    let outbox = Outbox::new(&schema());
    for (ends_well, expected) in [(false, 0), (true, 1)] {
        let mut tx = world.coordinator().begin("transfer").await.unwrap();
        add(tx.on(&world.east()).await.unwrap(), -1).await.unwrap();
        let west = tx.on(&world.west()).await.unwrap();
        let id = tasuki::uuid_v7(&Clock::system());
        let event = Event::new(id, "Moved", "stock:1", "{}");
        outbox.enqueue(west, &event).await.unwrap();
        if ends_well {
            tx.commit().await.unwrap();
        } else {
            tx.abort().await;
        }
        let events = "SELECT count(*) FROM app.outbox_events";
        assert_eq!(number(&world.west.pool, events).await, expected);
    }
}

#[tokio::test]
async fn what_is_dropped_or_aborted_before_its_commit_leaves_nothing() {
    let world = World::new().await;
    for is_aborted in [false, true] {
        let mut tx = world.coordinator().begin("transfer").await.unwrap();
        add(tx.on(&world.east()).await.unwrap(), -1).await.unwrap();
        add(tx.on(&world.west()).await.unwrap(), 1).await.unwrap();
        add(tx.here().await.unwrap(), 1).await.unwrap();
        if is_aborted {
            tx.abort().await;
        } else {
            drop(tx);
        }
        for db in [&world.log, &world.east, &world.west] {
            no_transaction_is_left(&db.pool).await;
        }
        assert_eq!(world.units().await, (100, 100));
        assert_eq!(world.prepared().await, [""; 0]);
        assert_eq!(world.list(Listed::Open).await, []);
    }
}

#[tokio::test]
async fn one_database_alone_commits_without_preparing_or_a_log() {
    let world = World::new().await;
    let mut tx = world.coordinator().begin("alone").await.unwrap();
    add(tx.on(&world.east()).await.unwrap(), -1).await.unwrap();
    add(tx.on(&world.east()).await.unwrap(), -1).await.unwrap();
    // Gone: a decision could not be written down.
    run(&world.log.pool, "DROP TABLE app.twopc_transactions").await;
    tx.commit().await.unwrap();
    assert_eq!(world.units().await, (98, 100));

    let mut tx = world.coordinator().begin("here").await.unwrap();
    add(tx.here().await.unwrap(), 1).await.unwrap();
    tx.commit().await.unwrap();
    let here = "SELECT units FROM stock";
    assert_eq!(number(&world.log.pool, here).await, 101);

    let mut tx = world.coordinator().begin("doomed").await.unwrap();
    add(tx.on(&world.east()).await.unwrap(), -1).await.unwrap();
    let refused = add(tx.on(&world.east()).await.unwrap(), -500).await;
    assert!(refused.is_err());
    let refused = tx.commit().await;
    assert!(matches!(refused, Err(Error::Refused { participant, .. }) if participant == "east"));
    assert_eq!(world.units().await, (98, 100));

    let nothing = world.coordinator().begin("nothing").await.unwrap();
    nothing.commit().await.unwrap();
}

#[tokio::test]
async fn the_coordinators_own_database_commits_with_the_decision_and_prepares_nothing() {
    let world = World::new().await;
    // What it prepares is seen there at the end of the first phase, in the transaction that decides.
    run(
        &world.log.pool,
        "CREATE TABLE seen (gid text NOT NULL);
         CREATE FUNCTION see() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
             INSERT INTO seen SELECT gid FROM pg_prepared_xacts WHERE gid LIKE '%:east'
                 AND strpos(gid, replace(new.transaction_id::text, '-', '')) > 0;
             RETURN NULL;
         END $$;
         CREATE TRIGGER see AFTER UPDATE OF decision ON app.twopc_transactions
             FOR EACH ROW EXECUTE FUNCTION see()",
    )
    .await;
    let mut tx = world.coordinator().begin("transfer").await.unwrap();
    add(tx.on(&world.east()).await.unwrap(), -30).await.unwrap();
    add(tx.here().await.unwrap(), 30).await.unwrap();
    tx.commit().await.unwrap();
    let stock = "SELECT units FROM stock";
    assert_eq!(number(&world.log.pool, stock).await, 130);
    assert_eq!(world.units().await, (70, 100));
    let seen = "SELECT count(*) FROM seen";
    assert_eq!(number(&world.log.pool, seen).await, 1);
    let finished = world.list(Listed::Finished).await;
    assert_eq!(names(&finished[0].branches), ["east"]);
    assert_eq!(world.prepared().await, [""; 0]);
}

#[tokio::test]
async fn a_refusal_of_the_coordinators_own_database_at_the_very_end_aborts_the_others() {
    let world = World::new().await;
    run(
        &world.log.pool,
        "CREATE TABLE late (id int UNIQUE DEFERRABLE INITIALLY DEFERRED);
         INSERT INTO late VALUES (1)",
    )
    .await;
    let mut tx = world.coordinator().begin("transfer").await.unwrap();
    add(tx.on(&world.east()).await.unwrap(), -30).await.unwrap();
    let here = tx.here().await.unwrap();
    let insert = sqlx::query("INSERT INTO late VALUES (1)");
    insert.execute(here).await.unwrap();
    let error = tx.commit().await.unwrap_err();
    assert!(matches!(error, Error::Own { .. }), "{error:?}");
    assert_eq!(world.units().await, (100, 100));
    assert_eq!(world.prepared().await, [""; 0]);
    assert_eq!(world.list(Listed::Open).await, []);
}

#[tokio::test]
async fn a_decision_can_not_be_made_in_a_snapshot_of_the_past_and_that_is_said() {
    let world = World::new().await;
    let mut tx = world.coordinator().begin("transfer").await.unwrap();
    add(tx.on(&world.east()).await.unwrap(), -30).await.unwrap();
    let here = tx.here().await.unwrap();
    let level = sqlx::query("SET TRANSACTION ISOLATION LEVEL SERIALIZABLE");
    level.execute(&mut *here).await.unwrap();
    add(here, 30).await.unwrap();
    assert!(matches!(tx.commit().await, Err(Error::Isolation)));
    assert_eq!(world.units().await, (100, 100));
}

#[tokio::test]
async fn a_database_that_does_not_prepare_in_time_aborts_all_and_is_swept_when_it_has() {
    let world = World::new().await;
    // What is deferred runs when the transaction prepares.
    run(
        &world.west.pool,
        "CREATE FUNCTION dawdle() RETURNS trigger LANGUAGE plpgsql AS
             $$ BEGIN PERFORM pg_sleep(2); RETURN NULL; END $$;
         CREATE CONSTRAINT TRIGGER dawdle AFTER UPDATE ON stock
             DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION dawdle()",
    )
    .await;
    let coordinator = world.coordinator().timeout(SECOND / 5);
    let error = transfer(&coordinator, &world, 30).await.unwrap_err();
    assert!(
        matches!(&error, Error::Refused { participant, .. } if participant == "west"),
        "{error:?}"
    );
    assert_eq!(world.list(Listed::Open).await, []);
    eventually("it has prepared all the same", async || {
        (world.prepared().await.len() == 1).then_some(())
    })
    .await;
    let sweep = coordinator.sweep();
    eventually("it is swept", async || {
        sweep.tick().await.ok();
        world.prepared().await.is_empty().then_some(())
    })
    .await;
    assert_eq!(world.units().await, (100, 100));
}

#[tokio::test]
async fn a_name_is_known_once_and_only_plain_ones_are() {
    let world = World::new().await;
    let east = world.east();
    let twice = world.coordinator().database(&east);
    assert!(matches!(twice, Err(Error::Twice { name }) if name == "east"));
    for name in ["", "a b", "it's", "a\\", &"p".repeat(65)] {
        let named = Database::new(name, world.east.pool.clone());
        assert!(matches!(named, Err(Error::Name { .. })), "{name}");
        let begun = world.coordinator().begin(name).await;
        assert!(matches!(begun, Err(Error::Name { .. })), "{name}");
    }
    let mut tx = bare(&world).begin("transfer").await.unwrap();
    let on = tx.on(&east).await;
    assert!(matches!(on, Err(Error::Unknown { name }) if name == "east"));
    let enlisted = world
        .coordinator()
        .begin("transfer")
        .await
        .unwrap()
        .enlist("east");
    assert!(
        matches!(enlisted, Err(Error::Unknown { .. })),
        "a database works"
    );
}

#[tokio::test]
async fn a_branch_carries_log_transaction_and_participant_in_its_name() {
    let world = World::new().await;
    super::west_has_not_heard(&world).await;
    let open = world.open().await;
    let gid = gid(&open, "west");
    assert_eq!(world.prepared().await, [gid.as_str()]);
    assert!(gid.starts_with("tasuki:app:") && gid.ends_with(":west"));
    assert!(gid.contains(&open.id.as_uuid().simple().to_string()));
    world.recovers().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn many_transfers_side_by_side_keep_the_sum_and_return_their_connections() {
    let world = World::new().await;
    let coordinators: Vec<Coordinator> = (0..2).map(|_| world.coordinator()).collect();
    let one = async |number: usize| {
        let coordinator = &coordinators[number % 2];
        let mut committed = HashSet::new();
        for round in 0..15 {
            let mut tx = coordinator.begin("transfer").await.unwrap();
            let units = if (number + round).is_multiple_of(2) {
                7
            } else {
                -7
            };
            // In one order: nobody sees a deadlock over two databases.
            let east = add(tx.on(&world.east()).await.unwrap(), -units).await;
            let west = add(tx.on(&world.west()).await.unwrap(), units).await;
            let is_sound = east.is_ok() && west.is_ok();
            match tx.commit().await {
                Ok(done) => assert!(is_sound && committed.insert(done.id)),
                Err(Error::Refused { .. }) => assert!(!is_sound),
                Err(error) => panic!("{error:?}"),
            }
        }
        committed
    };
    let committed = join_all((0..6).map(one)).await;
    let (east, west) = world.units().await;
    assert_eq!(east + west, 200);
    assert!(east >= 0 && west >= 0);
    assert_eq!(world.prepared().await, [""; 0]);
    let finished = world.list(Listed::Finished).await;
    let finished = finished.into_iter();
    let finished = finished.filter(|record| record.decision == Some(Decision::Commit));
    let written: HashSet<_> = finished.map(|record| record.id).collect();
    assert_eq!(written, committed.into_iter().flatten().collect());
    for db in [&world.log, &world.east, &world.west] {
        no_transaction_is_left(&db.pool).await;
        assert!(db.pool.size() <= 8);
    }
}
