//! A coordinator is gone, wherever it was; another process ends what it had begun.

use sqlx::PgPool;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use tasuki::Clock;
use tasuki::twopc::{BranchState, Coordinator, Decision, Error, Listed};
use tasuki::worker::{Supervisor, Worker};
use tasuki_stack::Proxy;
use tasuki_testkit::eventually;

use super::custom::{self, Desk};
use super::{
    SECOND, World, add, bare, gid, is_prepared_for_a_while, number, run, west_has_not_heard,
};
use crate::dropped::{ROUNDS, after};

/// Polls after which the longest commit has come to its end.
const ENOUGH: usize = 400;

#[tokio::test]
async fn a_commit_that_is_cut_anywhere_is_ended_by_another_process_the_same_in_both() {
    let world = World::new().await;
    let (mut moved, mut whole) = (0, 0);
    for polls in 1..ENOUGH {
        let coordinator = world.coordinator();
        let mut tx = coordinator.begin("transfer").await.unwrap();
        add(tx.on(&world.east()).await.unwrap(), -1).await.unwrap();
        add(tx.on(&world.west()).await.unwrap(), 1).await.unwrap();
        let committed = after(polls, tx.commit()).await;
        // What was on its way when it was cut may come through later.
        let another = world.coordinator().timeout(SECOND / 20);
        let (recovery, sweep) = (world.coordinator().recovery(), another.sweep());
        eventually("everything has come to its end", async || {
            world.time_passes().await;
            recovery.drain().await.unwrap();
            sweep.tick().await.ok();
            let (east, west) = world.units().await;
            let rests = world.prepared().await.is_empty() && is_idle(&world).await;
            let ended = world.list(Listed::Open).await.is_empty();
            (rests && ended && east + west == 200).then_some(())
        })
        .await;
        let (east, _) = world.units().await;
        let now = 100 - east;
        assert!(now == moved || now == moved + 1);
        if let Some(committed) = committed {
            committed.unwrap();
            assert_eq!(now, moved + 1, "what was told as committed is");
            whole += 1;
        }
        moved = now;
        if whole > ROUNDS {
            return;
        }
    }
    panic!("no commit came to its end");
}

/// Whether nobody is in a transaction anywhere.
async fn is_idle(world: &World) -> bool {
    let open: i64 = sqlx::query_scalar(
        "SELECT count(*) FROM pg_stat_activity
         WHERE datname = ANY ($1) AND pid <> pg_backend_pid()
             AND (xact_start IS NOT NULL OR state = 'active')",
    )
    .bind([world.log.name(), world.east.name(), world.west.name()])
    .fetch_one(&world.west.pool)
    .await
    .unwrap();
    open == 0
}

#[tokio::test]
async fn a_recovery_finds_by_itself_what_a_coordinator_left_when_its_time_is_over() {
    let (world, desk) = (World::new().await, Desk::with_gate());
    let coordinator = custom::coordinator(&world, &desk).timeout(SECOND / 2);
    let mut tx = coordinator.begin("transfer").await.unwrap();
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
    assert_eq!(world.open().await.decision, None);

    let supervisor = Supervisor::new(Clock::system());
    supervisor.start(custom::coordinator(&world, &desk).recovery());
    eventually("it is ended", async || {
        world.list(Listed::Open).await.is_empty().then_some(())
    })
    .await;
    assert_eq!(world.prepared().await, [""; 0]);
    assert_eq!(world.units().await, (100, 100));
    assert_eq!(desk.states(), [BranchState::Aborted]);
    let _stopped = supervisor.stop(SECOND).await;
}

#[tokio::test]
async fn a_coordinator_that_was_only_slow_can_not_commit_what_the_recovery_has_aborted() {
    let (world, desk) = (World::new().await, Desk::with_gate());
    let coordinator = custom::coordinator(&world, &desk).timeout(20 * SECOND);
    let mut tx = coordinator.begin("transfer").await.unwrap();
    add(tx.on(&world.east()).await.unwrap(), -1).await.unwrap();
    add(tx.here().await.unwrap(), 1).await.unwrap();
    tx.enlist("desk").unwrap();
    let recovery = async {
        desk.is_asked().await;
        eventually("east is prepared", async || {
            (world.prepared().await.len() == 1).then_some(())
        })
        .await;
        // Somebody else recovers, who never heard of the desk: the decision comes first.
        world.time_passes().await;
        world.coordinator().recovery().drain().await.unwrap();
        assert_eq!(world.open().await.decision, Some(Decision::Abort));
        desk.open();
    };
    let (ended, ()) = tokio::join!(tx.commit(), recovery);
    assert!(matches!(ended, Err(Error::Overruled { .. })), "{ended:?}");
    world.time_passes().await;
    let everybody = custom::coordinator(&world, &desk);
    everybody.recovery().drain().await.unwrap();
    assert_eq!(world.list(Listed::Open).await, []);
    assert_eq!(world.prepared().await, [""; 0]);
    assert_eq!(world.units().await, (100, 100));
    assert_eq!(
        number(&world.log.pool, "SELECT units FROM stock").await,
        100
    );
    assert_eq!(desk.states(), [BranchState::Aborted]);
}

#[tokio::test]
async fn nobody_takes_a_transaction_from_a_coordinator_whose_time_is_not_over() {
    let (world, desk) = (World::new().await, Desk::with_gate());
    let coordinator = custom::coordinator(&world, &desk).timeout(20 * SECOND);
    let mut tx = coordinator.begin("transfer").await.unwrap();
    add(tx.on(&world.east()).await.unwrap(), -1).await.unwrap();
    tx.enlist("desk").unwrap();
    let others = async {
        desk.is_asked().await;
        let other = custom::coordinator(&world, &desk);
        assert_eq!(other.recovery().drain().await.unwrap(), 0);
        is_prepared_for_a_while(&world.east).await;
        let sweep = other.timeout(SECOND / 10).sweep();
        eventually("it has swept", async || sweep.tick().await.ok()).await;
        assert_eq!(world.prepared().await.len(), 1);
        desk.open();
    };
    let (ended, ()) = tokio::join!(tx.commit(), others);
    ended.unwrap();
    assert_eq!(world.units().await, (99, 100));
}

#[tokio::test]
async fn a_participant_that_was_away_when_it_was_decided_is_told_when_it_is_back() {
    let world = World::new().await;
    let id = west_has_not_heard(&world).await;
    let open = world.open().await;
    assert_eq!((open.id, open.decision), (id, Some(Decision::Commit)));
    assert_eq!(open.branches["east"].state, BranchState::Committed);
    assert_eq!(open.branches["west"].state, BranchState::Prepared);
    assert_eq!(open.branches["west"].tries, 1);
    assert!(open.next_try_at.is_some() && open.last_error.unwrap().contains("west: "));
    world.recovers().await;
    assert_eq!(world.units().await, (70, 130));
}

#[tokio::test]
async fn a_commit_whose_answer_got_lost_is_recognised_by_its_number() {
    let world = World::new().await;
    west_has_not_heard(&world).await;
    let gid = gid(&world.open().await, "west");
    // As if it had come through, and its answer had not.
    run(&world.west.pool, &format!("COMMIT PREPARED '{gid}'")).await;
    world.recovers().await;
    assert_eq!(world.units().await, (70, 130));
    let finished = world.list(Listed::Finished).await;
    assert_eq!(finished[0].branches["west"].state, BranchState::Committed);
}

#[tokio::test]
async fn a_branch_that_somebody_rolled_back_by_hand_is_never_taken_for_committed() {
    let world = World::new().await;
    west_has_not_heard(&world).await;
    let gid = gid(&world.open().await, "west");
    run(&world.west.pool, &format!("ROLLBACK PREPARED '{gid}'")).await;
    world.time_passes().await;
    world.coordinator().recovery().drain().await.unwrap();
    let open = world.open().await;
    let error = open.branches["west"].error.as_ref().unwrap();
    assert!(
        error.contains("rolled back there by somebody else"),
        "{error}"
    );
}

#[tokio::test]
async fn recoveries_of_several_processes_end_everything_once() {
    let world = World::new().await;
    let west = world.west_that_goes_away().await;
    for _ in 0..3 {
        let mut tx = world.coordinator_with(&west).begin("many").await.unwrap();
        add(tx.on(&world.east()).await.unwrap(), -1).await.unwrap();
        let west = tx.on(&world.west()).await.unwrap();
        let insert = sqlx::query("INSERT INTO stock VALUES (1)");
        insert.execute(west).await.unwrap();
        assert_eq!(tx.commit().await.unwrap().waiting_for, ["west"]);
    }
    world.time_passes().await;
    let recoveries = [
        world.coordinator().recovery(),
        world.coordinator().recovery(),
    ];
    let (one, other) = tokio::join!(recoveries[0].drain(), recoveries[1].drain());
    assert_eq!(one.unwrap() + other.unwrap(), 3);
    assert_eq!(world.units().await, (97, 103));
    assert_eq!(world.prepared().await, [""; 0]);
    assert_eq!(world.list(Listed::Finished).await.len(), 3);
}

#[tokio::test]
async fn a_process_that_does_not_know_a_participant_leaves_it_to_one_that_does() {
    let world = World::new().await;
    west_has_not_heard(&world).await;
    world.time_passes().await;
    let half = bare(&world).database(&world.east()).unwrap();
    half.recovery().drain().await.unwrap();
    let open = world.open().await;
    let error = open.branches["west"].error.as_ref().unwrap();
    assert!(error.contains("does not know it"), "{error}");
    world.recovers().await;
    assert_eq!(world.units().await, (70, 130));
}

/// The log through a proxy.
async fn log_through(world: &World) -> (Proxy, PgPool) {
    let direct: PgConnectOptions = world.log.url().parse().unwrap();
    let target = format!("{}:{}", direct.get_host(), direct.get_port());
    let proxy = Proxy::start(target.parse().unwrap()).await.unwrap();
    let through = direct.port(proxy.addr().port());
    let pool = PgPoolOptions::new().connect_lazy_with(through);
    (proxy, pool)
}

#[tokio::test]
async fn a_decision_whose_answer_got_lost_is_looked_up_and_stands() {
    let world = World::new().await;
    // What is deferred runs in the commit that decides.
    run(
        &world.log.pool,
        "CREATE FUNCTION dawdle() RETURNS trigger LANGUAGE plpgsql AS
             $$ BEGIN PERFORM pg_sleep(1); RETURN NULL; END $$;
         CREATE CONSTRAINT TRIGGER dawdle AFTER UPDATE ON stock
             DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION dawdle()",
    )
    .await;
    let (proxy, pool) = log_through(&world).await;
    let coordinator = Coordinator::new(&super::schema(), pool)
        .timeout(15 * SECOND)
        .database(&world.east())
        .unwrap();
    let mut tx = coordinator.begin("transfer").await.unwrap();
    add(tx.on(&world.east()).await.unwrap(), -30).await.unwrap();
    add(tx.here().await.unwrap(), 30).await.unwrap();
    let cut = async {
        eventually("it is being decided", async || {
            let deciding: i64 = sqlx::query_scalar(
                "SELECT count(*) FROM pg_stat_activity
                 WHERE datname = current_database() AND query = 'COMMIT' AND state = 'active'",
            )
            .fetch_one(&world.log.pool)
            .await
            .unwrap();
            (deciding == 1).then_some(())
        })
        .await;
        proxy.reset().await.unwrap();
    };
    let (ended, ()) = tokio::join!(tx.commit(), cut);
    assert_eq!(ended.unwrap().waiting_for, [""; 0]);
    assert_eq!(world.units().await, (70, 100));
    assert_eq!(
        number(&world.log.pool, "SELECT units FROM stock").await,
        130
    );
    assert_eq!(world.prepared().await, [""; 0]);
}

#[tokio::test]
async fn a_decision_that_was_never_made_is_looked_up_and_all_are_rolled_back() {
    let world = World::new().await;
    let mut tx = world.coordinator().begin("transfer").await.unwrap();
    add(tx.on(&world.east()).await.unwrap(), -30).await.unwrap();
    let here = tx.here().await.unwrap();
    // Dies where it decides, and nowhere before.
    run(
        &world.log.pool,
        "CREATE FUNCTION die() RETURNS trigger LANGUAGE plpgsql AS
             $$ BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); RETURN NULL; END $$;
         CREATE TRIGGER die AFTER UPDATE ON app.twopc_transactions
             FOR EACH ROW WHEN (new.decision = 'COMMIT') EXECUTE FUNCTION die()",
    )
    .await;
    add(here, 30).await.unwrap();
    let ended = tx.commit().await;
    assert!(matches!(ended, Err(Error::Own { .. })), "{ended:?}");
    assert_eq!(world.prepared().await, [""; 0]);
    assert_eq!(world.units().await, (100, 100));
    let finished = world.list(Listed::Finished).await;
    assert_eq!(finished[0].decision, Some(Decision::Abort));
}

#[tokio::test]
async fn a_decision_that_nobody_can_look_up_is_unsure_and_the_recovery_ends_it() {
    let (world, desk) = (World::new().await, Desk::with_gate());
    let (proxy, pool) = log_through(&world).await;
    let coordinator = Coordinator::new(&super::schema(), pool)
        .timeout(2 * SECOND)
        .database(&world.east())
        .unwrap()
        .participant(desk.clone())
        .unwrap();
    let mut tx = coordinator.begin("transfer").await.unwrap();
    add(tx.on(&world.east()).await.unwrap(), -30).await.unwrap();
    tx.enlist("desk").unwrap();
    let cut = async {
        desk.is_asked().await;
        proxy.blackhole().await.unwrap();
        desk.open();
    };
    let (ended, ()) = tokio::join!(tx.commit(), cut);
    assert!(matches!(ended, Err(Error::Unsure { .. })), "{ended:?}");
    assert_eq!(world.prepared().await.len(), 1);
    world.time_passes().await;
    let another = custom::coordinator(&world, &desk);
    another.recovery().drain().await.unwrap();
    assert_eq!(world.prepared().await, [""; 0]);
    assert_eq!(world.units().await, (100, 100));
    assert_eq!(desk.states(), [BranchState::Aborted]);
}
