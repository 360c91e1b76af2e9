//! One is active, another takes over, and whoever comes back too late changes nothing.

use tasuki_testkit::eventually;

use super::*;

/// Ticks until it has done something.
async fn works(worker: &impl Worker) {
    eventually("it works", async || {
        (worker.tick().await.unwrap() == Tick::Worked).then_some(())
    })
    .await;
}

#[tokio::test]
async fn of_two_sequencers_one_works_and_the_other_goes_on_when_it_stops() {
    let bench = Bench::new().await;
    let (first, second) = (bench.sequencer(), bench.sequencer());
    assert_eq!(drain(&first).await.unwrap(), 0);
    bench.append("a").await;
    assert_eq!(second.tick().await.unwrap(), Tick::Idle);
    assert_eq!(bench.unnumbered().await, 1);
    works(&first).await;
    first.release().await;
    bench.append("b").await;
    works(&second).await;
    assert_eq!(bench.entries().await, "1:a 2:b");
}

#[tokio::test]
async fn a_sequencer_is_replaced_when_its_lease_is_over_and_numbers_nothing_any_more() {
    let bench = Bench::new().await;
    let (first, second) = (bench.sequencer(), bench.sequencer());
    bench.append("a").await;
    drain(&first).await.unwrap();
    bench.leases_end().await;
    bench.append("b").await;
    drain(&second).await.unwrap();
    bench.append("c").await;
    // It still believes that it is the one.
    assert_eq!(first.tick().await.unwrap(), Tick::Idle);
    assert_eq!(bench.unnumbered().await, 1);
    assert_eq!(first.tick().await.unwrap(), Tick::Idle);
    assert_eq!(bench.unnumbered().await, 1);
    drain(&second).await.unwrap();
    assert_eq!(bench.entries().await, "1:a 2:b 3:c");
}

#[tokio::test]
async fn a_look_that_takes_longer_than_its_lease_keeps_it() {
    let bench = Bench::new().await;
    let lease = Duration::from_millis(600);
    let (first, second) = (
        bench.sequencer().lease(lease),
        bench.sequencer().lease(lease),
    );
    drain(&first).await.unwrap();
    bench.append("a").await;
    let mut slow = bench.pool().begin().await.unwrap();
    sqlx::query("LOCK TABLE app.seqlog_pending IN ACCESS EXCLUSIVE MODE")
        .execute(&mut *slow)
        .await
        .unwrap();
    let until = "SELECT (extract(EPOCH FROM lease_until) * 1000)::bigint FROM app.seqlogs";
    let before = bench.number(until).await;
    let waits = async {
        eventually("the lease was renewed for a while", async || {
            assert_eq!(second.tick().await.unwrap(), Tick::Idle);
            (bench.number(until).await >= before + 2000).then_some(())
        })
        .await;
        slow.rollback().await.unwrap();
    };
    let (looked, ()) = tokio::join!(first.tick(), waits);
    assert_eq!(looked.unwrap(), Tick::Worked);
    assert_eq!(bench.entries().await, "1:a");
    assert_eq!(bench.number("SELECT epoch FROM app.seqlogs").await, 1);
}

#[tokio::test]
async fn of_two_instances_one_is_active_and_the_other_goes_on_when_it_stops() {
    let bench = Bench::new().await;
    let (here, there) = (World::default(), World::default());
    let (first, second) = (bench.follower(&here), bench.follower(&there));
    bench.write("a b").await;
    drain(&first).await.unwrap();
    bench.write("c").await;
    assert_eq!(second.tick().await.unwrap(), Tick::Idle);
    assert_eq!(bench.seen().await, "1:a 2:b");
    assert!(bench.consumer().await.owner.is_some());
    first.release().await;
    assert_eq!(bench.consumer().await.owner, None);
    works(&second).await;
    assert_eq!(bench.seen().await, "1:a 2:b 3:c");
    assert_eq!(there.calls(), ["c"]);
}

#[tokio::test]
async fn an_instance_that_slept_through_its_replacement_undoes_what_it_had_in_hand() {
    let bench = Bench::new().await;
    let (here, there) = (World::default(), World::default());
    let (first, second) = (bench.follower(&here), bench.follower(&there));
    bench.write("a b c").await;
    here.tell("b", Answer::Hold);
    let sleeps = first.tick();
    let takes_over = async {
        here.inner.holding.notified().await;
        bench.leases_end().await;
        drain(&second).await.unwrap();
        assert_eq!(bench.seen().await, "1:a 2:b 3:c");
        here.inner.go.notify_one();
    };
    let (slept, ()) = tokio::join!(sleeps, takes_over);
    slept.unwrap();
    assert_eq!(here.calls(), ["a b c"]);
    assert_eq!(bench.seen().await, "1:a 2:b 3:c");
    assert_eq!(bench.consumer().await.last_seq, 3);
    // Nor does it handle anything later.
    bench.write("d").await;
    assert_eq!(first.tick().await.unwrap(), Tick::Idle);
    drain(&second).await.unwrap();
    assert_eq!(bench.seen().await, "1:a 2:b 3:c 4:d");
}

#[tokio::test]
async fn a_batch_that_takes_longer_than_its_lease_keeps_it() {
    let bench = Bench::new().await;
    let (here, there) = (World::default(), World::default());
    let lease = Duration::from_millis(900);
    let first = bench.follower(&here).lease(lease);
    let second = bench.follower(&there).lease(lease);
    bench.write("a").await;
    here.tell("a", Answer::Hold);
    let waits = async {
        here.inner.holding.notified().await;
        let renewed = "SELECT extract(EPOCH FROM lease_until - created_at)::bigint
            FROM app.consumer_offsets";
        eventually("the lease was renewed for a while", async || {
            assert_eq!(second.tick().await.unwrap(), Tick::Idle);
            (bench.number(renewed).await >= 2).then_some(())
        })
        .await;
        here.inner.go.notify_one();
    };
    let (handled, ()) = tokio::join!(first.tick(), waits);
    assert_eq!(handled.unwrap(), Tick::Worked);
    assert_eq!(bench.seen().await, "1:a");
    assert_eq!(there.calls(), [""; 0]);
}

#[tokio::test]
async fn an_instance_that_is_replaced_while_it_works_is_cut_at_its_next_renewal() {
    let bench = Bench::new().await;
    let (here, there) = (World::default(), World::default());
    let first = bench.follower(&here).lease(Duration::from_secs(2));
    let second = bench.follower(&there);
    bench.write("a").await;
    here.tell("a", Answer::Hang);
    let takes_over = async {
        here.inner.holding.notified().await;
        bench.leases_end().await;
        drain(&second).await.unwrap();
    };
    let (cut, ()) = tokio::join!(first.tick(), takes_over);
    cut.unwrap();
    assert_eq!(bench.seen().await, "1:a");
}

#[tokio::test]
async fn an_instance_that_can_not_renew_gives_up_what_it_has_in_hand_when_its_lease_is_over() {
    let bench = Bench::new().await;
    let world = World::default();
    let follower = bench.follower(&world).lease(Duration::from_millis(600));
    bench.write("a").await;
    world.tell("a", Answer::Hang);
    let keeps_out = async {
        world.inner.holding.notified().await;
        let mut db = bench.pool().begin().await.unwrap();
        sqlx::query("LOCK TABLE app.consumer_offsets IN ACCESS EXCLUSIVE MODE")
            .execute(&mut *db)
            .await
            .unwrap();
        db
    };
    let handles = tokio::time::timeout(Duration::from_secs(20), follower.tick());
    let (cut, db) = tokio::join!(handles, keeps_out);
    assert_eq!(cut.expect("it gave up").unwrap(), Tick::Worked);
    db.rollback().await.unwrap();
    assert_eq!(bench.consumer().await.last_seq, 0);
    assert_eq!(bench.seen().await, "");
}

#[tokio::test]
async fn the_transaction_of_a_process_that_stopped_is_ended_by_the_server() {
    let bench = Bench::new().await;
    let world = World::default();
    let idle = Duration::from_millis(200);
    let follower = bench.follower(&world).idle(idle);
    bench.write("a").await;
    world.tell("a", Answer::Hold);
    let ends = async {
        world.inner.holding.notified().await;
        super::super::dropped::no_transaction_is_left(bench.pool()).await;
        world.inner.go.notify_one();
    };
    let (_cut, ()) = tokio::join!(follower.tick(), ends);
    assert_eq!(bench.seen().await, "");
    assert_eq!(bench.consumer().await.last_seq, 0);
}

#[tokio::test]
async fn moving_the_offset_undoes_what_a_running_consumer_has_in_hand_and_is_not_overwritten() {
    let bench = Bench::new().await;
    let world = World::default();
    let follower = bench.follower(&world);
    bench.write("a b c").await;
    drain(&follower).await.unwrap();
    bench.write("d e").await;
    world.tell("d", Answer::Hold);
    let moves = async {
        world.inner.holding.notified().await;
        bench.replay(1).await;
        world.inner.go.notify_one();
    };
    let (cut, ()) = tokio::join!(follower.tick(), moves);
    cut.unwrap();
    assert_eq!(bench.consumer().await.last_seq, 1);
    assert_eq!(bench.seen().await, "1:a 2:b 3:c");
    drain(&follower).await.unwrap();
    assert_eq!(bench.seen().await, "1:a 2:b 3:c 2:b 3:c 4:d 5:e");
    assert_eq!(bench.consumer().await.last_seq, 5);
}

#[tokio::test]
async fn moving_the_offset_reaches_a_consumer_that_is_idle() {
    let bench = Bench::new().await;
    let world = World::default();
    let follower = bench.follower(&world).lease(Duration::from_secs(3));
    bench.write("a b").await;
    drain(&follower).await.unwrap();
    bench.replay(0).await;
    works(&follower).await;
    assert_eq!(bench.seen().await, "1:a 2:b 1:a 2:b");
}
