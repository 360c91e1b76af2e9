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
    let mut accepted = Vec::new();
    let gate = async {
        eventually("it begins nothing any more", async || {
            let begun = first.engine.begin(&waits, &1).await;
            begun.map(|id| accepted.push(id)).err()
        })
        .await;
        world.gate.notify_one();
    };
    let (stopped, ()) = tokio::join!(first.supervisor.stop(GRACE), gate);
    assert_eq!(stopped, Stopped::Finished);
    for id in accepted {
        let state = bench.view(id).await.state;
        assert_eq!(state, State::Step("for_long".to_owned()));
    }
    assert_eq!(world.log(), words("a:act b:act"));
    let second = bench.process_of(&registry, bench.settings("two").lease(HOUR));
    let ended = second.engine.wait(id).await.unwrap();
    assert_eq!(ended.state, State::Completed);
    assert_eq!(world.log(), words("a:act b:act c:act"));
    second.stop().await;
}

/// A process of its own, as far as the database can tell: its connections end with its runtime.
fn mortal(
    bench: &Bench,
    registry: &Registry,
    definition: &Definition<u32>,
) -> (tokio::runtime::Runtime, tokio::task::JoinHandle<SagaId>) {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let (url, sagas) = (bench.db.url(), bench.sagas.clone());
    let (registry, definition) = (registry.clone(), definition.clone());
    let begins = runtime.spawn(async move {
        let pool = PgPool::connect(&url).await.unwrap();
        let settings = Settings::new("test.sagas", pool)
            .owner(Owner::on("one"))
            .lease(HOUR);
        let engine = Engine::new(&sagas, registry, settings).unwrap();
        engine.start(&Supervisor::new(Clock::system()));
        engine.begin(&definition, &7).await.unwrap()
    });
    (runtime, begins)
}

/// Writes into a row that somebody holds.
struct Waits;

impl Step for Waits {
    const NAME: &'static str = "waits";
    type Input = u32;
    type Output = ();
    type Failure = Fail<sqlx::Error>;
}

impl Local for Waits {
    async fn act(&self, tx: &mut Tx, _: &u32, _: &At) -> Result<(), Fail<sqlx::Error>> {
        sqlx::query("UPDATE app.rows SET n = n + 1")
            .execute(tx.get().await?)
            .await?;
        Ok(())
    }
}

#[tokio::test]
async fn a_saga_whose_step_waits_for_a_lock_as_its_process_dies_is_taken_over_all_the_same() {
    let bench = Bench::new().await;
    let rows = "CREATE TABLE app.rows AS SELECT 0 AS n";
    sqlx::query(rows).execute(bench.pool()).await.unwrap();
    let definition = tasuki::saga::define::<u32>("waits", 1)
        .remote(r::<0>(&bench.world), |saga| Ok(*saga.input()))
        .pivot_local(Waits, |saga| Ok(*saga.input()))
        .build()
        .unwrap();
    let registry = Registry::new().with(&definition);
    let mut holder = bench.pool().begin().await.unwrap();
    let hold = sqlx::query("SELECT FROM app.rows FOR UPDATE");
    hold.execute(&mut *holder).await.unwrap();
    let (first, begins) = mortal(&bench, &registry, &definition);
    let id = begins.await.unwrap();
    eventually("its step waits in a transaction of its own", async || {
        let waits = "SELECT count(*) FROM pg_stat_activity
            WHERE datname = current_database() AND wait_event_type = 'Lock'
                AND state_change < clock_timestamp() - INTERVAL '0.2 s'";
        let owners = bench.scalar("SELECT count(*) FROM app.lease_owners").await;
        (bench.scalar(waits).await == 1 && owners == 1).then_some(())
    })
    .await;
    first.shutdown_background();
    let second = bench.process_of(&registry, bench.settings("two").lease(HOUR));
    eventually("another process has it", async || {
        let by = bench.view(id).await.locked_by;
        by.filter(|by| by.starts_with("two"))
    })
    .await;
    holder.rollback().await.unwrap();
    let ended = second.engine.wait(id).await.unwrap();
    assert_eq!(ended.state, State::Completed);
    assert_eq!(bench.scalar("SELECT n::bigint FROM app.rows").await, 1);
    second.stop().await;
}

#[tokio::test]
async fn whoever_looks_for_the_leases_of_the_dead_is_not_taken_for_dead_meanwhile() {
    let bench = Bench::new().await;
    let world = &bench.world;
    world.tell("a:act", [Answer::Hold]);
    let definition = three_remote(world);
    let registry = Registry::new().with(&definition);
    let (first, begins) = mortal(&bench, &registry, &definition);
    let id = begins.await.unwrap();
    let second = bench.process_of(&registry, bench.settings("two").lease(HOUR));
    eventually("both are known to live", async || {
        let owners = bench.scalar("SELECT count(*) FROM app.lease_owners").await;
        (owners == 2).then_some(())
    })
    .await;
    // Looking for them takes long.
    let mut holder = bench.pool().begin().await.unwrap();
    let hold = sqlx::query("LOCK TABLE app.sagas IN ACCESS EXCLUSIVE MODE");
    hold.execute(&mut *holder).await.unwrap();
    first.shutdown_background();
    let looks = "SELECT count(*) FROM pg_stat_activity AS a
        WHERE a.datname = current_database() AND a.wait_event_type = 'Lock'
            AND a.query LIKE '%orphans%'";
    eventually("it looks for them", async || {
        (bench.scalar(looks).await == 1).then_some(())
    })
    .await;
    let with_the_lock = format!(
        "{looks} AND EXISTS (
            SELECT FROM pg_locks AS l WHERE l.pid = a.pid AND l.locktype = 'advisory'
        )"
    );
    assert_eq!(bench.scalar(&with_the_lock).await, 0);
    holder.rollback().await.unwrap();
    let ended = second.engine.wait(id).await.unwrap();
    assert_eq!(ended.state, State::Completed);
    eventually("the dead one is forgotten", async || {
        let owners = bench.scalar("SELECT count(*) FROM app.lease_owners").await;
        (owners == 1).then_some(())
    })
    .await;
    second.stop().await;
}

#[tokio::test]
async fn a_dead_owners_sagas_are_taken_over_long_before_their_leases_end() {
    let bench = Bench::new().await;
    let world = &bench.world;
    world.tell("b:act", [Answer::Hold]);
    let definition = three_remote(world);
    let registry = Registry::new().with(&definition);
    let (first, begins) = mortal(&bench, &registry, &definition);
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

#[tokio::test]
async fn a_saga_that_comes_back_to_its_process_keeps_its_second_lease() {
    let bench = Bench::new().await;
    let world = &bench.world;
    world.tell("a:act", [Answer::Hold, Answer::Hold]);
    let definition = three_remote(world);
    let lease = Duration::from_millis(600);
    let registry = Registry::new().with(&definition);
    let process = bench.process_of(&registry, bench.settings("one").lease(lease));
    let id = process.engine.begin(&definition, &7).await.unwrap();
    let first: uuid::Uuid = sqlx::query_scalar("SELECT claim_token FROM app.sagas")
        .fetch_one(bench.pool())
        .await
        .unwrap();
    let expire = "UPDATE app.sagas SET lease_until = now(), next_retry_at = now()
        WHERE claim_token = $1";
    eventually("it is lost, and claimed by the same process", async || {
        let expired = sqlx::query(expire).bind(first).execute(bench.pool());
        expired.await.unwrap();
        (world.log().len() == 2).then_some(())
    })
    .await;
    // The first call ends, finds itself fenced, and lets go of what is not its own any more.
    world.gate.notify_one();
    let kept = "SELECT extract(EPOCH FROM lease_until - locked_at)::bigint FROM app.sagas";
    eventually("the second lease was renewed for some time", async || {
        (bench.scalar(kept).await >= 3).then_some(())
    })
    .await;
    assert_eq!(world.log(), words("a:act a:act"));
    world.gate.notify_one();
    let ended = process.engine.wait(id).await.unwrap();
    assert_eq!(ended.state, State::Completed);
    assert_eq!(world.log(), words("a:act a:act b:act c:act"));
    process.stop().await;
}

#[tokio::test]
async fn a_stop_gives_each_saga_back_as_soon_as_it_can_whatever_the_others_still_do() {
    let bench = Bench::new().await;
    let world = &bench.world;
    // The first saga is in the middle of a call, the others wait a moment for their next attempt.
    let pause = Backoff::list([Duration::from_millis(900)]);
    *world.retries.lock().unwrap() = Some(Policy::new(3, pause));
    world.tell("a:act", [Answer::Hold]);
    world.tell("a:act", vec![Answer::Retry; 5]);
    let definition = three_remote(world);
    let registry = Registry::new().with(&definition);
    let first = bench.process_of(&registry, bench.settings("one").lease(HOUR));
    let mut ids = Vec::new();
    for calls in 1..=6 {
        ids.push(first.engine.begin(&definition, &7).await.unwrap());
        eventually("it is called", async || {
            (world.log().len() == calls).then_some(())
        })
        .await;
    }
    let second = bench.process_of(&registry, bench.settings("two").lease(HOUR));
    let meanwhile = async {
        for id in &ids[1..] {
            let ended = second.engine.wait(*id).await.unwrap();
            assert_eq!(ended.state, State::Completed);
        }
        world.gate.notify_one();
    };
    let (stopped, ()) = tokio::join!(first.supervisor.stop(GRACE), meanwhile);
    assert_eq!(
        stopped,
        Stopped::Finished,
        "the call ended after the other sagas"
    );
    let ended = second.engine.wait(ids[0]).await.unwrap();
    assert_eq!(ended.state, State::Completed);
    second.stop().await;
}

#[tokio::test]
async fn a_call_that_runs_on_while_its_engine_stops_keeps_its_lease() {
    let bench = Bench::new().await;
    let world = &bench.world;
    world.tell("a:act", [Answer::Hold]);
    let definition = three_remote(world);
    let registry = Registry::new().with(&definition);
    let lease = Duration::from_millis(300);
    let first = bench.process_of(&registry, bench.settings("one").lease(lease));
    let second = bench.process_of(&registry, bench.settings("two").lease(lease));
    let id = first.engine.begin(&definition, &7).await.unwrap();
    let meanwhile = async {
        let until = "SELECT extract(EPOCH FROM lease_until - created_at)::bigint FROM app.sagas";
        eventually("the lease was renewed for some time", async || {
            (bench.scalar(until).await >= 3).then_some(())
        })
        .await;
        world.gate.notify_one();
    };
    let (stopped, ()) = tokio::join!(first.supervisor.stop(GRACE), meanwhile);
    assert_eq!(stopped, Stopped::Finished);
    let ended = second.engine.wait(id).await.unwrap();
    assert_eq!(ended.state, State::Completed);
    assert_eq!(world.log(), words("a:act b:act c:act"), "each once");
    second.stop().await;
}
