//! Sagas that share commits: one that is stale, slow or held up harms no other.

use super::*;

#[tokio::test]
async fn many_sagas_at_once_end_each_with_its_own_effects() {
    let bench = Bench::new().await;
    let definition = three_local(&bench.world);
    let process = bench.process(&Registry::new().with(&definition));
    let numbers: Vec<u32> = (0..200).collect();
    let runs = numbers.iter().map(|n| process.engine.run(&definition, n));
    let ended = futures_util::future::join_all(runs).await;
    for ended in ended {
        assert_eq!(ended.unwrap().state, State::Completed);
    }
    process.stop().await;
    let whole = "SELECT count(*) FROM (
        SELECT saga_id FROM app.effects GROUP BY saga_id
        HAVING array_agg(step ORDER BY n) = ARRAY['a', 'b', 'c']
    ) AS whole";
    assert_eq!(bench.scalar(whole).await, 200);
    assert_eq!(bench.scalar("SELECT count(*) FROM app.effects").await, 600);
}

#[tokio::test]
async fn what_there_is_no_room_for_waits_in_the_database_for_whoever_has_room() {
    let bench = Bench::new().await;
    let world = &bench.world;
    world.tell("a:act", vec![Answer::Hold; 3]);
    let definition = three_remote(world);
    let registry = Registry::new().with(&definition);
    let full = bench.process_of(&registry, bench.settings("one").slots(3));
    for n in 0..3 {
        full.engine.begin(&definition, &n).await.unwrap();
    }
    let fourth = full.engine.begin(&definition, &4).await.unwrap();
    assert_eq!(bench.view(fourth).await.state, State::Started);
    assert_eq!(bench.view(fourth).await.locked_by, None);
    let free = bench.process_of(&registry, bench.settings("two"));
    let ended = free.engine.wait(fourth).await.unwrap();
    assert_eq!(ended.state, State::Completed);
    assert_eq!(world.log().len(), 3 + 3);
    world.gate.notify_waiters();
    full.stop().await;
    free.stop().await;
}

#[tokio::test]
async fn a_stale_saga_fails_alone_and_the_others_of_its_batch_are_unharmed() {
    let bench = Bench::new().await;
    let world = &bench.world;
    // Elsewhere first, so that all of them wait for the same moment before their local steps.
    let definition = tasuki::saga::define::<u32>("mixed", 1)
        .remote(r::<0>(world), |saga| Ok(*saga.input()))
        .local(l::<1>(world), |saga| Ok(*saga.input()))
        .local(l::<2>(world), |saga| Ok(*saga.input()))
        .build()
        .unwrap();
    world.tell("a:act", vec![Answer::Hold; 20]);
    let registry = Registry::new().with(&definition);
    let process = bench.process_of(&registry, bench.settings("one").lease(HOUR));
    let mut ids = Vec::new();
    for n in 0..20 {
        ids.push(process.engine.begin(&definition, &n).await.unwrap());
    }
    eventually("all of them are called", async || {
        (world.log().len() == 20).then_some(())
    })
    .await;
    // Somebody else has taken one of them, without a word.
    let stolen = ids[7];
    let steal = "UPDATE app.sagas SET claim_token = gen_random_uuid() WHERE saga_id = $1";
    let stole = sqlx::query(steal).bind(stolen).execute(bench.pool()).await;
    assert_eq!(stole.unwrap().rows_affected(), 1);
    world.gate.notify_waiters();
    for id in ids.iter().filter(|id| **id != stolen) {
        let ended = process.engine.wait(*id).await.unwrap();
        assert_eq!(ended.state, State::Completed);
    }
    process.stop().await;
    assert_eq!(bench.scalar("SELECT count(*) FROM app.effects").await, 38);
    let of_stolen = format!("SELECT count(*) FROM app.effects WHERE saga_id = '{stolen}'");
    assert_eq!(bench.scalar(&of_stolen).await, 0);
    assert_eq!(bench.view(stolen).await.state, State::Step("a".to_owned()));
}

struct Locks(u32);

impl Step for Locks {
    const NAME: &'static str = "locks";
    type Input = u32;
    type Output = ();
    type Failure = Fail<sqlx::Error>;
}

impl Local for Locks {
    async fn act(&self, tx: &mut Tx, row: &u32, _: &At) -> Result<(), Fail<sqlx::Error>> {
        sqlx::query("UPDATE app.counters SET value = value + $2 WHERE id = $1")
            .bind(i32::try_from(*row).unwrap())
            .bind(i32::try_from(self.0).unwrap())
            .execute(tx.get().await?)
            .await?;
        Ok(())
    }
}

#[tokio::test]
async fn a_step_that_is_held_up_waits_alone_and_loses_no_attempt() {
    let bench = Bench::new().await;
    let counters =
        "CREATE TABLE app.counters AS SELECT id, 0 AS value FROM generate_series(1, 9) AS id";
    sqlx::query(counters).execute(bench.pool()).await.unwrap();
    let definition = tasuki::saga::define::<u32>("count", 1)
        .pivot_local(Locks(1), |saga| Ok(*saga.input()))
        .build()
        .unwrap();
    let process = bench.process(&Registry::new().with(&definition));
    let mut holder = bench.pool().begin().await.unwrap();
    sqlx::query("SELECT FROM app.counters WHERE id = 1 FOR UPDATE")
        .execute(&mut *holder)
        .await
        .unwrap();
    let held = process.engine.run(&definition, &1);
    let others = async {
        for row in 2..=9 {
            let ended = process.engine.run(&definition, &row).await.unwrap();
            assert_eq!(ended.state, State::Completed);
        }
        holder.rollback().await.unwrap();
    };
    let (held, ()) = tokio::join!(held, others);
    let held = held.unwrap();
    assert_eq!(held.state, State::Completed);
    assert_eq!(
        bench
            .view(held.id)
            .await
            .step("locks")
            .unwrap()
            .failed_attempts,
        0
    );
    assert_eq!(bench.scalar("SELECT sum(value) FROM app.counters").await, 9);
    process.stop().await;
}

#[tokio::test]
async fn a_move_leaves_its_row_on_its_page_where_no_index_need_know_of_it() {
    let bench = Bench::new().await;
    let definition = three_local(&bench.world);
    let process = bench.process(&Registry::new().with(&definition));
    let numbers: Vec<u32> = (0..50).collect();
    let runs = numbers.iter().map(|n| process.engine.run(&definition, n));
    futures_util::future::join_all(runs).await;
    process.stop().await;
    // Sessions tell what they have counted when they end.
    drop(process);
    let hot = |what: &str| {
        format!(
            "SELECT {what} FROM pg_stat_user_tables
             WHERE schemaname = 'app' AND relname = 'sagas'"
        )
    };
    // Fifty births with their first step, fifty moves, fifty ends.
    eventually("the statistics have arrived", async || {
        (bench.scalar(&hot("n_tup_upd")).await == 50).then_some(())
    })
    .await;
    assert_eq!(bench.scalar(&hot("n_tup_hot_upd")).await, 50);
}
