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
    let settings = bench.settings("one").slots(3).poll(HOUR);
    let full = bench.process_of(&registry, settings);
    // A claim that is under way was counted when there was room.
    eventually("it has looked, and looks no more", async || {
        let health = full.supervisor.health();
        health.iter().all(|worker| worker.ticks > 0).then_some(())
    })
    .await;
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
async fn whoever_was_full_takes_the_next_ones_as_soon_as_there_is_room() {
    let bench = Bench::new().await;
    let definition = three_local(&bench.world);
    let mut connection = bench.pool().acquire().await.unwrap();
    for n in 0..300 {
        let started = bench.sagas.start(&mut connection, &definition, &n).await;
        started.unwrap();
    }
    // It looks once by itself, and then not for an hour.
    let settings = bench.settings("one").slots(20).poll(HOUR);
    let process = bench.process_of(&Registry::new().with(&definition), settings);
    eventually("all of them have ended", async || {
        let ended = bench.scalar("SELECT count(*) FROM app.sagas_done").await;
        (ended == 300).then_some(())
    })
    .await;
    process.stop().await;
}

#[tokio::test]
async fn what_waits_for_no_time_waits_for_no_poll() {
    let bench = Bench::new().await;
    let definition = tasuki::saga::define::<u32>("at_once", 1)
        .timer("no_time", Duration::ZERO)
        .local(l::<0>(&bench.world), |saga| Ok(*saga.input()))
        .build()
        .unwrap();
    let settings = bench.settings("one").slots(2).poll(HOUR);
    let process = bench.process_of(&Registry::new().with(&definition), settings);
    let numbers: Vec<u32> = (0..10).collect();
    // More of them than there is room for.
    let runs = numbers.iter().map(|n| process.engine.run(&definition, n));
    for ended in futures_util::future::join_all(runs).await {
        assert_eq!(ended.unwrap().state, State::Completed);
    }
    process.stop().await;
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

/// Adds one to the row of its number.
struct Locks(World);

impl Step for Locks {
    const NAME: &'static str = "locks";
    type Input = u32;
    type Output = ();
    type Failure = Fail<sqlx::Error>;
}

impl Local for Locks {
    async fn act(&self, tx: &mut Tx, row: &u32, _: &At) -> Result<(), Fail<sqlx::Error>> {
        self.0.log.lock().unwrap().push(format!("row {row}"));
        sqlx::query("UPDATE app.counters SET value = value + 1 WHERE id = $1")
            .bind(row.cast_signed())
            .execute(tx.get().await?)
            .await?;
        Ok(())
    }
}

#[tokio::test]
async fn a_step_that_is_held_up_waits_alone_and_loses_no_attempt() {
    let bench = Bench::new().await;
    let definition = counting(&bench).await;
    let process = bench.process(&Registry::new().with(&definition));
    let holder = hold(&bench, 1).await;
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

/// A definition that counts in the row of its input, and the table for it.
pub(super) async fn counting(bench: &Bench) -> Definition<u32> {
    let counters =
        "CREATE TABLE app.counters AS SELECT id, 0 AS value FROM generate_series(1, 9) AS id";
    sqlx::query(counters).execute(bench.pool()).await.unwrap();
    tasuki::saga::define::<u32>("count", 1)
        .pivot_local(Locks(bench.world.clone()), |saga| Ok(*saga.input()))
        .build()
        .unwrap()
}

/// Somebody who holds a row.
pub(super) async fn hold(bench: &Bench, row: i32) -> sqlx::Transaction<'static, sqlx::Postgres> {
    let mut holder = bench.pool().begin().await.unwrap();
    sqlx::query("SELECT FROM app.counters WHERE id = $1 FOR UPDATE")
        .bind(row)
        .execute(&mut *holder)
        .await
        .unwrap();
    holder
}

#[tokio::test]
async fn a_hot_row_holds_up_those_who_want_it_and_nobody_else() {
    let bench = Bench::new().await;
    let count = counting(&bench).await;
    let alone = tasuki::saga::define::<u32>("alone", 1)
        .pivot_local(Brief(GRACE), |saga| Ok(*saga.input()))
        .build()
        .unwrap();
    let process = bench.process(&Registry::new().with(&count).with(&alone));
    let engine = &process.engine;
    let (hot, other) = (hold(&bench, 1).await, hold(&bench, 2).await);
    let wants = |row: &'static u32| engine.run(&count, row);
    let many = futures_util::future::join_all((0..400).map(|_| wants(&1)));
    let others = async {
        // If each of those before it waited for its lock, that would take twenty seconds.
        let limit = Duration::from_secs(15);
        let free = tokio::time::timeout(limit, wants(&3)).await.unwrap();
        assert_eq!(free.unwrap().state, State::Completed);
        // The few transactions of one's own are not all taken by those who wait for the hot row.
        let alone = tokio::time::timeout(GRACE, engine.run(&alone, &7)).await;
        assert_eq!(alone.unwrap().unwrap().state, State::Completed);
        // And who waits for another row has it when that is free.
        let frees = async {
            eventually("it has tried again, with the others", async || {
                let log = bench.world.log();
                (log.iter().filter(|row| *row == "row 2").count() > 1).then_some(())
            })
            .await;
            other.rollback().await.unwrap();
        };
        let freed = tokio::time::timeout(GRACE, wants(&2));
        let (freed, ()) = tokio::join!(freed, frees);
        assert_eq!(freed.unwrap().unwrap().state, State::Completed);
        hot.rollback().await.unwrap();
    };
    let (many, ()) = tokio::join!(many, others);
    for ended in many {
        let ended = ended.unwrap();
        assert_eq!(ended.state, State::Completed);
        let view = bench.view(ended.id).await;
        assert_eq!(view.step("locks").unwrap().failed_attempts, 0);
    }
    let counted = bench.scalar("SELECT sum(value) FROM app.counters").await;
    assert_eq!(counted, 402);
    process.stop().await;
}

/// Takes almost as long as a step in a shared transaction may.
struct Long;

impl Step for Long {
    const NAME: &'static str = "long";
    type Input = u32;
    type Output = ();
    type Failure = Fail<sqlx::Error>;
}

impl Local for Long {
    async fn act(&self, tx: &mut Tx, _: &u32, _: &At) -> Result<(), Fail<sqlx::Error>> {
        sqlx::query("SELECT pg_sleep(0.8)")
            .execute(tx.get().await?)
            .await?;
        Ok(())
    }
}

#[tokio::test]
async fn sagas_end_however_slow_the_steps_are_that_would_share_a_transaction() {
    let bench = Bench::new().await;
    let definition = tasuki::saga::define::<u32>("long", 1)
        .pivot_local(Long, |saga| Ok(*saga.input()))
        .build()
        .unwrap();
    let process = bench.process(&Registry::new().with(&definition));
    // One after the other they take longer than a batch may.
    let runs = (0..48).map(|_| process.engine.run(&definition, &7));
    let runs = futures_util::future::join_all(runs);
    let ended = tokio::time::timeout(Duration::from_secs(60), runs).await;
    for ended in ended.unwrap() {
        assert_eq!(ended.unwrap().state, State::Completed);
    }
    process.stop().await;
}

/// Wants a transaction of its own, and so much time there.
struct Brief(Duration);

impl Step for Brief {
    const NAME: &'static str = "brief";
    type Input = u32;
    type Output = ();
    type Failure = Fail<sqlx::Error>;

    fn retry(&self) -> Policy {
        Policy::new(50, Backoff::list([Duration::from_millis(1)]))
    }

    fn timeout(&self) -> Duration {
        self.0
    }
}

impl Local for Brief {
    async fn act(&self, tx: &mut Tx, _: &u32, _: &At) -> Result<(), Fail<sqlx::Error>> {
        tx.get().await?;
        Ok(())
    }

    fn alone(&self) -> bool {
        true
    }
}

#[tokio::test]
async fn a_step_with_little_time_can_have_a_transaction_of_its_own() {
    let bench = Bench::new().await;
    let definition = tasuki::saga::define::<u32>("brief", 1)
        .pivot_local(Brief(Duration::from_millis(50)), |saga| Ok(*saga.input()))
        .build()
        .unwrap();
    let (ended, _) = bench.run(&definition).await;
    assert_eq!(ended.state, State::Completed);
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
