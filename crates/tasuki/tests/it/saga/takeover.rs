//! Another process goes on: after a stop, after a death, after a lease.

use super::*;

/// Forgets a process as `kill -9` would: nothing is given back, its session is gone.
async fn kill(bench: &Bench, owner: &str) {
    let held = "SELECT count(*) FROM app.sagas WHERE locked_by LIKE $1 || '/%'";
    let held: i64 = sqlx::query_scalar(held)
        .bind(owner)
        .fetch_one(bench.pool())
        .await
        .unwrap();
    assert!(held > 0, "it holds something");
}

#[tokio::test]
async fn a_stop_gives_sagas_back_at_once_and_another_process_goes_on() {
    let bench = Bench::new().await;
    let world = &bench.world;
    world.tell("b:act", [Answer::Hold]);
    let definition = three_remote(world);
    let registry = Registry::new().with(&definition);
    let first = bench.process_of(&registry, bench.settings("one").lease(HOUR));
    let id = first.engine.begin(&definition, &7).await.unwrap();
    eventually("it is at its second step", async || {
        (world.log().len() == 2).then_some(())
    })
    .await;
    // The call that runs is finished and written down; nothing new begins.
    let gate = async { world.gate.notify_one() };
    let (stopped, ()) = tokio::join!(first.supervisor.stop(GRACE), gate);
    assert_eq!(stopped, Stopped::Finished);
    assert_eq!(world.log(), words("a:act b:act"));
    let second = bench.process_of(&registry, bench.settings("two").lease(HOUR));
    let ended = second.engine.wait(id).await.unwrap();
    assert_eq!(ended.state, State::Completed);
    assert_eq!(world.log(), words("a:act b:act c:act"));
    second.stop().await;
}

#[tokio::test]
async fn a_dead_owners_sagas_are_taken_over_long_before_their_leases_end() {
    let bench = Bench::new().await;
    let world = &bench.world;
    world.tell("b:act", [Answer::Hold]);
    let definition = three_remote(world);
    let registry = Registry::new().with(&definition);
    let first = bench.process_of(&registry, bench.settings("one").lease(HOUR));
    let id = first.engine.begin(&definition, &7).await.unwrap();
    eventually("it is at its second step and known to live", async || {
        let owners = bench.scalar("SELECT count(*) FROM app.lease_owners").await;
        (world.log().len() == 2 && owners == 1).then_some(())
    })
    .await;
    kill(&bench, "one").await;
    // All that a death leaves: rows with leases, and an owner whose lock nobody holds.
    let runtime = "SELECT count(pg_terminate_backend(pid)) FROM pg_locks
        WHERE locktype = 'advisory' AND pid <> pg_backend_pid()
            AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";
    drop(first);
    let second = bench.process_of(&registry, bench.settings("two").lease(HOUR));
    // The first one lives on in this test, and shows it again: until it is believed to be dead.
    let ended = eventually("another one has taken over", async || {
        bench.scalar(runtime).await;
        let view = bench.view(id).await;
        view.ended()
    })
    .await;
    assert_eq!(ended.state, State::Completed);
    assert_eq!(world.log(), words("a:act b:act b:act c:act"));
    let keys = world.keys();
    assert_eq!(keys[1], keys[2], "the same call");
    second.stop().await;
}

#[tokio::test]
async fn a_saga_whose_lease_expired_is_taken_over_and_its_first_owner_changes_nothing_any_more() {
    let bench = Bench::new().await;
    let world = &bench.world;
    world.tell("b:act", [Answer::Hold]);
    let definition = three_remote(world);
    let registry = Registry::new().with(&definition);
    let first = bench.process_of(&registry, bench.settings("one").lease(HOUR));
    let id = first.engine.begin(&definition, &7).await.unwrap();
    eventually("it is at its second step", async || {
        (world.log().len() == 2).then_some(())
    })
    .await;
    let expire = "UPDATE app.sagas SET lease_until = now(), next_retry_at = now()";
    sqlx::query(expire).execute(bench.pool()).await.unwrap();
    let second = bench.process_of(&registry, bench.settings("two").lease(HOUR));
    let ended = second.engine.wait(id).await.unwrap();
    assert_eq!(ended.state, State::Completed);
    let moves = "SELECT moves::bigint FROM app.sagas_done";
    let before = bench.scalar(moves).await;

    world.gate.notify_one();
    first.stop().await;
    assert_eq!(bench.scalar(moves).await, before);
    assert_eq!(bench.scalar("SELECT count(*) FROM app.sagas_done").await, 1);
    assert_eq!(world.log(), words("a:act b:act b:act c:act"));
    second.stop().await;
}

#[tokio::test]
async fn a_long_call_keeps_its_lease() {
    let bench = Bench::new().await;
    let world = &bench.world;
    world.tell("a:act", [Answer::Hold]);
    let definition = three_remote(world);
    let registry = Registry::new().with(&definition);
    let lease = Duration::from_millis(300);
    let first = bench.process_of(&registry, bench.settings("one").lease(lease));
    let second = bench.process_of(&registry, bench.settings("two").lease(lease));
    let id = first.engine.begin(&definition, &7).await.unwrap();
    let until = "SELECT extract(EPOCH FROM lease_until - created_at)::bigint FROM app.sagas";
    eventually("the lease was renewed for some time", async || {
        (bench.scalar(until).await >= 2).then_some(())
    })
    .await;
    world.gate.notify_one();
    assert_eq!(first.engine.wait(id).await.unwrap().state, State::Completed);
    assert_eq!(world.log(), words("a:act b:act c:act"));
    first.stop().await;
    second.stop().await;
}
