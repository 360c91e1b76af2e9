//! Forward: steps, retries, waits, groups, versions.

use sqlx::Executor;
use tasuki::saga::{Error, Invalid, Signal, StepState, define};

use super::*;

#[tokio::test]
async fn a_saga_ends_when_its_steps_are_done_in_their_order() {
    let bench = Bench::new().await;
    let (ended, view) = bench.run(&three_local(&bench.world)).await;

    assert_eq!(ended.state, State::Completed);
    assert_eq!(bench.effects().await, words("a:act b:act c:act"));
    assert_eq!(view.state, State::Completed);
    assert_eq!(view.input, 7);
    let steps: Vec<_> = view.steps.iter().map(|step| step.name.as_str()).collect();
    assert_eq!(steps, ["a", "b", "c"]);
    let last = view.step("c").unwrap();
    assert_eq!(last.state, StepState::Done);
    assert_eq!(last.input.as_ref().unwrap(), 7);
    assert_eq!(last.output.as_ref().unwrap(), "c done");
    assert!(view.finished_at.is_some());
    // What has ended is history.
    assert_eq!(bench.scalar("SELECT count(*) FROM app.sagas").await, 0);
}

#[tokio::test]
async fn calls_elsewhere_get_the_same_key_in_every_attempt() {
    let bench = Bench::new().await;
    bench.world.tell("b:act", [Answer::Retry, Answer::Unknown]);
    let (ended, view) = bench.run(&three_remote(&bench.world)).await;

    assert_eq!(ended.state, State::Completed);
    assert_eq!(bench.world.log(), words("a:act b:act b:act b:act c:act"));
    let keys = bench.world.keys();
    assert_eq!(keys[1], format!("{}:b:act", ended.id));
    assert!(keys[1..4].iter().all(|key| *key == keys[1]));
    let step = view.step("b").unwrap();
    assert_eq!((step.failed_attempts, step.unsure), (2, true));
}

#[tokio::test]
async fn an_intent_is_durable_before_the_call() {
    let bench = Bench::new().await;
    bench.world.tell("a:act", [Answer::Hold]);
    let definition = three_remote(&bench.world);
    let process = bench.process(&Registry::new().with(&definition));
    let id = process.engine.begin(&definition, &7).await.unwrap();
    eventually("it is called", async || {
        (!bench.world.log().is_empty()).then_some(())
    })
    .await;

    let view = bench.view(id).await;
    assert_eq!(view.state, State::Step("a".to_owned()));
    assert_eq!(view.step("a").unwrap().state, StepState::Begun);
    assert_eq!(view.step("a").unwrap().input.as_ref().unwrap(), 7);
    bench.world.gate.notify_one();
    assert_eq!(
        process.engine.wait(id).await.unwrap().state,
        State::Completed
    );
    process.stop().await;
}

#[tokio::test]
async fn a_failing_local_step_is_tried_again_and_leaves_nothing_behind() {
    let bench = Bench::new().await;
    bench.world.tell("b:act", [Answer::Retry, Answer::Panic]);
    let (ended, view) = bench.run(&three_local(&bench.world)).await;

    assert_eq!(ended.state, State::Completed);
    assert_eq!(bench.world.log(), words("a:act b:act b:act b:act c:act"));
    assert_eq!(bench.effects().await, words("a:act b:act c:act"));
    assert_eq!(view.step("b").unwrap().failed_attempts, 2);
}

#[tokio::test]
async fn a_step_that_hides_a_failed_statement_has_not_succeeded() {
    let bench = Bench::new().await;
    bench.world.tell("a:act", [Answer::Swallow]);
    let (ended, view) = bench.run(&three_local(&bench.world)).await;

    assert_eq!(ended.state, State::Completed);
    assert_eq!(bench.effects().await, words("a:act b:act c:act"));
    let first = view.step("a").unwrap();
    assert_eq!(first.failed_attempts, 1);
    assert_eq!(first.output.as_ref().unwrap(), "a done");
}

#[tokio::test]
async fn an_input_is_made_of_what_the_steps_before_gave() {
    let bench = Bench::new().await;
    let world = &bench.world;
    let definition = define::<u32>("sum", 1)
        .local(l::<0>(world), |saga| Ok(*saga.input()))
        .remote(r::<1>(world), |saga| {
            let before = saga.output::<L<0>>()?;
            Ok(u32::try_from(before.len())?)
        })
        .build()
        .unwrap();
    let (_, view) = bench.run(&definition).await;
    assert_eq!(view.step("b").unwrap().input.as_ref().unwrap(), 6);
}

#[tokio::test]
async fn an_input_that_can_not_be_made_aborts_before_the_pivot() {
    let bench = Bench::new().await;
    let world = &bench.world;
    let definition = define::<u32>("broken", 1)
        .local(l::<0>(world), |saga| Ok(*saga.input()))
        .remote(r::<1>(world), |saga| {
            saga.output::<R<2>>()?;
            Ok(1)
        })
        .build()
        .unwrap();
    let (ended, _) = bench.run(&definition).await;
    assert_eq!(ended.state, State::Compensated);
    assert!(ended.reason.unwrap().contains("no output of `c`"));
    assert_eq!(bench.effects().await, words("a:act a:undo"));
    assert_eq!(bench.world.log(), words("a:act a:undo"));
}

#[tokio::test]
async fn steps_of_a_group_are_called_at_the_same_time() {
    let bench = Bench::new().await;
    let world = &bench.world;
    world.tell("a:act", [Answer::Hold]);
    world.tell("b:act", [Answer::Hold]);
    let definition = define::<u32>("group", 1)
        .parallel(|group| {
            group
                .remote(r::<0>(world), |saga| Ok(*saga.input()))
                .remote(r::<1>(world), |saga| Ok(*saga.input()))
                .local(l::<2>(world), |saga| Ok(*saga.input()))
        })
        .remote(r::<3>(world), |saga| {
            Ok(u32::try_from(saga.output::<R<1>>()?.len())?)
        })
        .build()
        .unwrap();
    let process = bench.process(&Registry::new().with(&definition));
    let id = process.engine.begin(&definition, &7).await.unwrap();
    eventually("both are called", async || {
        (bench.world.log().len() == 3).then_some(())
    })
    .await;
    world.gate.notify_waiters();
    let ended = process.engine.wait(id).await.unwrap();
    assert_eq!(ended.state, State::Completed);
    assert_eq!(
        bench
            .view(id)
            .await
            .step("d")
            .unwrap()
            .input
            .as_ref()
            .unwrap(),
        4
    );
    process.stop().await;
}

pub(super) struct Paid;

impl Signal for Paid {
    const NAME: &'static str = "paid";
    type Payload = String;
}

impl Bench {
    /// Says that it is paid; whether anybody was there to hear it.
    pub(super) async fn pay(&self, id: SagaId, how: &str) -> bool {
        let mut connection = self.pool().acquire().await.unwrap();
        let how = how.to_owned();
        let sent = self.sagas.signal::<Paid>(&mut connection, id, &how).await;
        sent.unwrap()
    }
}

fn waiting(world: &World, patience: Duration) -> Definition<u32> {
    define::<u32>("waiting", 1)
        .local(l::<0>(world), |saga| Ok(*saga.input()))
        .wait::<Paid>(patience)
        .remote(r::<1>(world), |saga| {
            Ok(u32::try_from(saga.signal::<Paid>()?.len())?)
        })
        .build()
        .unwrap()
}

#[tokio::test]
async fn a_saga_waits_for_a_signal_and_gets_what_came_with_it() {
    let bench = Bench::new().await;
    let definition = waiting(&bench.world, HOUR);
    let process = bench.process(&Registry::new().with(&definition));
    let id = process.engine.begin(&definition, &7).await.unwrap();
    let view = bench.until(id, &State::Step("paid".to_owned())).await;
    eventually("it is nobody's", async || {
        bench.view(id).await.locked_by.is_none().then_some(())
    })
    .await;
    assert_eq!(view.step("a").unwrap().state, StepState::Done);

    assert!(bench.pay(id, "four").await);
    bench.sagas.ring();
    assert_eq!(
        process.engine.wait(id).await.unwrap().state,
        State::Completed
    );
    assert_eq!(
        bench
            .view(id)
            .await
            .step("b")
            .unwrap()
            .input
            .as_ref()
            .unwrap(),
        4
    );
    // Nobody hears it any more.
    assert!(!bench.pay(id, "late").await);
    assert_eq!(
        bench.scalar("SELECT count(*) FROM app.saga_signals").await,
        0
    );
    process.stop().await;
}

#[tokio::test]
async fn a_signal_that_comes_before_the_wait_is_heard() {
    let bench = Bench::new().await;
    let definition = waiting(&bench.world, HOUR);
    let mut connection = bench.pool().acquire().await.unwrap();
    let id = bench
        .sagas
        .start(&mut connection, &definition, &7)
        .await
        .unwrap();
    assert!(bench.pay(id, "early").await);
    let process = bench.process(&Registry::new().with(&definition));
    assert_eq!(
        process.engine.wait(id).await.unwrap().state,
        State::Completed
    );
    process.stop().await;
}

#[tokio::test]
async fn what_was_said_is_kept_once_and_until_it_is_heard() {
    let bench = Bench::new().await;
    let world = &bench.world;
    world.tell("b:act", [Answer::Hold]);
    let definition = waiting(world, HOUR);
    let mut connection = bench.pool().acquire().await.unwrap();
    let started = bench.sagas.start(&mut connection, &definition, &7).await;
    let id = started.unwrap();
    for how in ["first", "then", "and then"] {
        assert!(bench.pay(id, how).await, "somebody is there to hear it");
    }
    let kept = "SELECT count(*) FROM app.saga_signals";
    assert_eq!(bench.scalar(kept).await, 1);
    let process = bench.process(&Registry::new().with(&definition));
    eventually("it is past its wait", async || {
        world.log().contains(&"b:act".to_owned()).then_some(())
    })
    .await;
    assert_eq!(bench.scalar(kept).await, 0);
    let heard = bench.view(id).await.step("paid").unwrap().output.clone();
    assert_eq!(heard.unwrap(), "first");
    world.gate.notify_one();
    let ended = process.engine.wait(id).await.unwrap();
    assert_eq!(ended.state, State::Completed);
    process.stop().await;
}

#[tokio::test]
async fn a_signal_that_does_not_come_in_time_unwinds() {
    let bench = Bench::new().await;
    let definition = waiting(&bench.world, Duration::from_millis(1));
    let (ended, _) = bench.run(&definition).await;
    assert_eq!(ended.state, State::Compensated);
    assert!(ended.reason.unwrap().contains("did not come"));
    assert_eq!(bench.effects().await, words("a:act a:undo"));
}

#[tokio::test]
async fn a_timer_holds_a_saga_up_until_its_time() {
    let bench = Bench::new().await;
    let world = &bench.world;
    let definition = define::<u32>("timer", 1)
        .local(l::<0>(world), |saga| Ok(*saga.input()))
        .timer("cooling_off", HOUR)
        .local(l::<1>(world), |saga| Ok(*saga.input()))
        .build()
        .unwrap();
    let process = bench.process(&Registry::new().with(&definition));
    let id = process.engine.begin(&definition, &7).await.unwrap();
    bench
        .until(id, &State::Step("cooling_off".to_owned()))
        .await;
    eventually("it is nobody's", async || {
        bench.view(id).await.due_at.map(|_| ())
    })
    .await;
    bench.is_claimed_early(id).await;
    assert_eq!(bench.effects().await, words("a:act"));
    bench.hour_passes().await;
    assert_eq!(
        process.engine.wait(id).await.unwrap().state,
        State::Completed
    );
    process.stop().await;
}

#[tokio::test]
async fn versions_of_a_definition_run_side_by_side() {
    let bench = Bench::new().await;
    let world = &bench.world;
    let old = define::<u32>("order", 1)
        .local(l::<0>(world), |saga| Ok(*saga.input()))
        .wait::<Paid>(HOUR)
        .local(l::<1>(world), |saga| Ok(*saga.input()))
        .build()
        .unwrap();
    let new = define::<u32>("order", 2)
        .local(l::<2>(world), |saga| Ok(*saga.input()))
        .build()
        .unwrap();
    let before = bench.process(&Registry::new().with(&old));
    let first = before.engine.begin(&old, &1).await.unwrap();
    bench.until(first, &State::Step("paid".to_owned())).await;
    before.stop().await;

    // A process that does not know the old version leaves it alone; one that does finishes both.
    let newer = bench.process_of(&Registry::new().with(&new), bench.settings("two"));
    assert!(bench.pay(first, "yes").await);
    let second = newer.engine.run(&new, &2).await.unwrap();
    assert_eq!(second.state, State::Completed);
    let unknown = newer.engine.begin(&old, &1).await;
    assert!(matches!(unknown, Err(Error::Unknown { version: 1, .. })));
    newer.stop().await;
    assert_eq!(
        bench.view(first).await.state,
        State::Step("paid".to_owned())
    );
    let both = bench.process_of(
        &Registry::new().with(&new).with(&old),
        bench.settings("three"),
    );
    assert_eq!(
        both.engine.wait(first).await.unwrap().state,
        State::Completed
    );
    both.stop().await;
    assert_eq!(bench.effects().await, words("a:act c:act b:act"));
}

#[tokio::test]
async fn a_saga_that_is_started_in_a_transaction_runs_only_if_that_commits() {
    let bench = Bench::new().await;
    let definition = three_local(&bench.world);
    let process = bench.process(&Registry::new().with(&definition));
    let mut tx = bench.pool().begin().await.unwrap();
    let undone = bench.sagas.start(&mut tx, &definition, &1).await.unwrap();
    tx.rollback().await.unwrap();
    let mut tx = bench.pool().begin().await.unwrap();
    let id = bench.sagas.start(&mut tx, &definition, &2).await.unwrap();
    tx.commit().await.unwrap();
    bench.sagas.ring();
    assert_eq!(
        process.engine.wait(id).await.unwrap().state,
        State::Completed
    );
    let gone = process.engine.wait(undone).await;
    assert!(matches!(gone, Err(Error::NotFound(_))));
    process.stop().await;
}

#[tokio::test]
async fn a_saga_is_begun_once_under_its_id() {
    use tasuki::saga::Begun;
    let bench = Bench::new().await;
    let definition = three_local(&bench.world);
    let process = bench.process(&Registry::new().with(&definition));
    let id = SagaId::new(&Clock::system());
    let engine = &process.engine;
    let begins = (0..8).map(|_| engine.begin_as(id, &definition, &1));
    let begun = futures_util::future::join_all(begins).await;
    let new = begun.into_iter().filter(|it| matches!(it, Ok(Begun::New)));
    assert_eq!(new.count(), 1);
    assert_eq!(engine.wait(id).await.unwrap().state, State::Completed);
    // Also when it has become history.
    let again = engine.begin_as(id, &definition, &1).await.unwrap();
    assert_eq!(again, Begun::Existing);
    assert_eq!(bench.effects().await, words("a:act b:act c:act"));
    process.stop().await;
}

#[tokio::test]
async fn definitions_with_names_that_are_none_are_refused() {
    let world = World::default();
    let twice = define::<u32>("order", 1)
        .local(l::<0>(&world), |saga| Ok(*saga.input()))
        .remote(r::<0>(&world), |saga| Ok(*saga.input()))
        .build();
    assert_eq!(twice.unwrap_err(), Invalid::Twice("a".to_owned()));
    let none = define::<u32>("order", 1).build();
    assert_eq!(none.unwrap_err(), Invalid::Empty("order".to_owned()));
    let odd = define::<u32>("an order", 1)
        .local(l::<0>(&world), |saga| Ok(*saga.input()))
        .build();
    assert_eq!(odd.unwrap_err(), Invalid::Name("an order".to_owned()));
    let bench = Bench::new().await;
    let same = three_local(&bench.world);
    let registry = Registry::new()
        .with(&same)
        .with(&three_remote(&bench.world));
    let engine = Engine::new(&bench.sagas, registry, bench.settings("one"));
    assert!(matches!(engine, Err(Invalid::Version { version: 1, .. })));
}

#[tokio::test]
async fn every_statement_prepares() {
    use sqlx::SqlSafeStr;
    let bench = Bench::new().await;
    let mut connection = bench.pool().acquire().await.unwrap();
    let mut statements = 0;
    for sql in bench.sagas.statements() {
        let sql = AssertSqlSafe(sql.to_owned()).into_sql_str();
        let prepared = connection.prepare(sql).await;
        assert!(prepared.is_ok(), "{prepared:?}");
        statements += 1;
    }
    assert_eq!(statements, 20);
}
