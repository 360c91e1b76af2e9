//! Another process goes on: after a stop, after a death, after a lease.

use super::*;

#[tokio::test]
async fn a_stop_gives_sagas_back_at_once_and_another_process_goes_on() {
    let bench = Bench::new().await;
    let world = &bench.world;
    world.tell("b:act", [Answer::Hold]);
    let definition = three_remote(world);
    let waits = tasuki::saga::define::<u32>("waits", 1)
        .timer("for_long", HOUR)
        .build()
        .unwrap();
    let registry = Registry::new().with(&definition).with(&waits);
    let first = bench.process_of(&registry, bench.settings("one").lease(HOUR));
    let id = first.engine.begin(&definition, &7).await.unwrap();
    eventually("it is at its second step", async || {
        (world.log().len() == 2).then_some(())
    })
    .await;
    // The call that runs is finished and written down; nothing new begins.
    let gate = async {
        eventually("it begins nothing any more", async || {
            first.engine.begin(&waits, &1).await.err()
        })
        .await;
        world.gate.notify_one();
    };
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
    // A process of its own, as far as the database can tell: its connections end with its runtime.
    let first = tokio::runtime::Runtime::new().unwrap();
    let begins = {
        let (url, sagas) = (bench.db.url(), bench.sagas.clone());
        let (registry, definition) = (registry.clone(), definition.clone());
        first.spawn(async move {
            let pool = PgPool::connect(&url).await.unwrap();
            let settings = Settings::new("test.sagas", pool)
                .owner(Owner::on("one"))
                .lease(HOUR);
            let engine = Engine::new(&sagas, registry, settings).unwrap();
            engine.start(&Supervisor::new(Clock::system()));
            engine.begin(&definition, &7).await.unwrap()
        })
    };
    let id = begins.await.unwrap();
    eventually("it is at its second step and known to live", async || {
        let owners = bench.scalar("SELECT count(*) FROM app.lease_owners").await;
        (world.log().len() == 2 && owners == 1).then_some(())
    })
    .await;
    first.shutdown_background();
    let second = bench.process_of(&registry, bench.settings("two").lease(HOUR));
    let ended = second.engine.wait(id).await.unwrap();
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
