//! Back: aborts, unknown outcomes, cancellation, deadlines.

use tasuki::saga::{StepState, define};

use super::*;

#[tokio::test]
async fn an_abort_unwinds_what_was_done_in_reverse_order() {
    let bench = Bench::new().await;
    bench.world.tell("c:act", [Answer::Abort]);
    let (ended, view) = bench.run(&three_local(&bench.world)).await;

    assert_eq!(ended.state, State::Compensated);
    assert_eq!(ended.reason.as_deref(), Some("c said no"));
    assert_eq!(bench.world.log(), words("a:act b:act c:act b:undo a:undo"));
    assert_eq!(bench.effects().await, words("a:act b:act b:undo a:undo"));
    let failure = view.failure.clone().unwrap();
    assert_eq!(failure, (Some("c".to_owned()), "c said no".to_owned()));
    assert_eq!(view.step("c").unwrap().state, StepState::Failed);
    assert_eq!(view.step("a").unwrap().state, StepState::Undone);
}

#[tokio::test]
async fn a_call_that_aborts_was_not_done_and_is_not_undone() {
    let bench = Bench::new().await;
    bench.world.tell("c:act", [Answer::Retry, Answer::Abort]);
    let (ended, _) = bench.run(&three_remote(&bench.world)).await;
    assert_eq!(ended.state, State::Compensated);
    assert_eq!(
        bench.world.log(),
        words("a:act b:act c:act c:act b:undo a:undo")
    );
}

#[tokio::test]
async fn a_step_whose_outcome_is_unknown_is_compensated_too() {
    for last in [Answer::Unknown, Answer::Panic] {
        let bench = Bench::new().await;
        bench
            .world
            .tell("c:act", [Answer::Retry, Answer::Retry, last]);
        let (ended, view) = bench.run(&three_remote(&bench.world)).await;
        assert_eq!(ended.state, State::Compensated);
        assert_eq!(
            bench.world.log(),
            words("a:act b:act c:act c:act c:act c:undo b:undo a:undo")
        );
        assert!(view.step("c").unwrap().unsure);
    }
}

#[tokio::test]
async fn an_abort_after_an_unknown_outcome_compensates_that_step_too() {
    let bench = Bench::new().await;
    bench.world.tell("c:act", [Answer::Unknown, Answer::Abort]);
    let (ended, _) = bench.run(&three_remote(&bench.world)).await;
    assert_eq!(ended.state, State::Compensated);
    assert_eq!(
        bench.world.log(),
        words("a:act b:act c:act c:act c:undo b:undo a:undo")
    );
}

#[tokio::test]
async fn a_compensation_is_tried_again_until_it_succeeds() {
    let bench = Bench::new().await;
    bench.world.tell("c:act", [Answer::Abort]);
    bench.world.tell("b:undo", [Answer::Retry, Answer::Retry]);
    let (ended, view) = bench.run(&three_local(&bench.world)).await;
    assert_eq!(ended.state, State::Compensated);
    assert_eq!(bench.effects().await, words("a:act b:act b:undo a:undo"));
    assert_eq!(view.step("b").unwrap().failed_undos, 2);
}

#[tokio::test]
async fn when_one_of_a_group_aborts_the_others_are_waited_for_and_undone() {
    let bench = Bench::new().await;
    let world = &bench.world;
    world.tell("a:act", [Answer::Hold]);
    world.tell("b:act", [Answer::Abort]);
    let definition = define::<u32>("group", 1)
        .parallel(|group| {
            group
                .remote(r::<0>(world), |saga| Ok(*saga.input()))
                .remote(r::<1>(world), |saga| Ok(*saga.input()))
        })
        .build()
        .unwrap();
    let process = bench.process(&Registry::new().with(&definition));
    let id = process.engine.begin(&definition, &7).await.unwrap();
    bench.until(id, &State::Compensating).await;
    assert_eq!(world.log(), words("a:act b:act"));
    world.gate.notify_one();
    let ended = process.engine.wait(id).await.unwrap();
    assert_eq!(ended.state, State::Compensated);
    assert_eq!(world.log(), words("a:act b:act a:undo"));
    process.stop().await;
}

fn pivoted(world: &World) -> Definition<u32> {
    define::<u32>("pivoted", 1)
        .local(l::<0>(world), |saga| Ok(*saga.input()))
        .pivot_remote(r::<1>(world), |saga| Ok(*saga.input()))
        .local(F::<2>(world.clone()), |saga| Ok(*saga.input()))
        .remote(G::<3>(world.clone()), |saga| Ok(*saga.input()))
        .build()
        .unwrap()
}

#[tokio::test]
async fn behind_the_pivot_nothing_is_undone_and_what_fails_for_good_needs_a_person() {
    let bench = Bench::new().await;
    bench
        .world
        .tell("d:act", [Answer::Retry, Answer::Retry, Answer::Retry]);
    let (ended, view) = bench.run(&pivoted(&bench.world)).await;
    assert_eq!(ended.state, State::NeedsAttention);
    assert_eq!(
        bench.world.log(),
        words("a:act b:act c:act d:act d:act d:act")
    );
    assert_eq!(bench.effects().await, words("a:act c:act"));
    assert_eq!(view.stuck.unwrap().0.as_deref(), Some("d"));
}

#[tokio::test]
async fn a_pivot_that_aborts_unwinds_and_one_that_nobody_knows_of_needs_a_person() {
    let bench = Bench::new().await;
    bench.world.tell("b:act", [Answer::Abort]);
    let (ended, _) = bench.run(&pivoted(&bench.world)).await;
    assert_eq!(ended.state, State::Compensated);
    assert_eq!(bench.effects().await, words("a:act a:undo"));

    let bench = Bench::new().await;
    bench
        .world
        .tell("b:act", [Answer::Unknown, Answer::Retry, Answer::Retry]);
    let (ended, _) = bench.run(&pivoted(&bench.world)).await;
    assert_eq!(ended.state, State::NeedsAttention);
    assert_eq!(bench.effects().await, words("a:act"));
}

#[tokio::test]
async fn a_pivot_that_is_known_not_to_have_happened_unwinds_also_in_another_process() {
    let bench = Bench::new().await;
    let world = &bench.world;
    let pause = Backoff::list([Duration::from_millis(900)]);
    *world.retries.lock().unwrap() = Some(Policy::new(3, pause));
    world.tell("b:act", [Answer::Retry, Answer::Abort]);
    let definition = pivoted(world);
    let registry = Registry::new().with(&definition);
    let first = bench.process(&registry);
    let id = first.engine.begin(&definition, &7).await.unwrap();
    eventually("its pivot was refused for now", async || {
        let view = bench.view(id).await;
        (view.step("b")?.failed_attempts == 1).then_some(())
    })
    .await;
    first.stop().await;
    assert_eq!(world.log(), words("a:act b:act"), "it waits to try again");
    let second = bench.process_of(&registry, bench.settings("two"));
    let ended = second.engine.wait(id).await.unwrap();
    assert_eq!(ended.state, State::Compensated);
    assert!(!bench.view(id).await.step("b").unwrap().unsure);
    second.stop().await;
}

#[tokio::test]
async fn a_pivot_that_was_parked_without_doubt_is_not_doubted_after_a_resume() {
    let bench = Bench::new().await;
    let world = &bench.world;
    world.tell(
        "b:act",
        [Answer::Stuck, Answer::Retry, Answer::Retry, Answer::Retry],
    );
    let definition = define::<u32>("pivoted", 1)
        .local(l::<0>(world), |saga| Ok(*saga.input()))
        .pivot_remote(G::<1>(world.clone()), |saga| Ok(*saga.input()))
        .build()
        .unwrap();
    let (ended, _) = bench.run(&definition).await;
    assert_eq!(ended.state, State::NeedsAttention);
    let mut connection = bench.pool().acquire().await.unwrap();
    let by = tasuki::saga::By::new("ada", "try again");
    let resumed = bench.sagas.resume(&mut connection, ended.id, &by);
    resumed.await.unwrap();
    let process = bench.process(&Registry::new().with(&definition));
    // It was refused each time, and never left in the dark.
    bench.until(ended.id, &State::Compensated).await;
    assert_eq!(bench.effects().await, words("a:act a:undo"));
    process.stop().await;
}

#[tokio::test]
async fn a_cancelled_saga_turns_back_at_its_next_step() {
    let bench = Bench::new().await;
    bench.world.tell("b:act", [Answer::Hold]);
    let definition = three_remote(&bench.world);
    let process = bench.process(&Registry::new().with(&definition));
    let id = process.engine.begin(&definition, &7).await.unwrap();
    eventually("it is at its second step", async || {
        (bench.world.log().len() == 2).then_some(())
    })
    .await;
    let mut connection = bench.pool().acquire().await.unwrap();
    let cancelled = bench
        .sagas
        .cancel(&mut connection, id, "ada", "changed her mind");
    assert!(cancelled.await.unwrap());
    bench.world.gate.notify_one();
    let ended = process.engine.wait(id).await.unwrap();
    assert_eq!(ended.state, State::Compensated);
    assert_eq!(
        ended.reason.as_deref(),
        Some("cancelled by ada: changed her mind")
    );
    // The intent of the third step was written with the answer of the second, and withdrawn.
    assert_eq!(bench.world.log(), words("a:act b:act b:undo a:undo"));
    process.stop().await;
}

#[tokio::test]
async fn a_saga_that_waits_is_cancelled_at_once() {
    let bench = Bench::new().await;
    let world = &bench.world;
    let definition = define::<u32>("timer", 1)
        .local(l::<0>(world), |saga| Ok(*saga.input()))
        .timer("cooling_off", HOUR)
        .build()
        .unwrap();
    let process = bench.process(&Registry::new().with(&definition));
    let id = process.engine.begin(&definition, &7).await.unwrap();
    bench
        .until(id, &State::Step("cooling_off".to_owned()))
        .await;
    let mut connection = bench.pool().acquire().await.unwrap();
    let cancelled = bench.sagas.cancel(&mut connection, id, "ada", "no more");
    assert!(cancelled.await.unwrap());
    bench.sagas.ring();
    let ended = process.engine.wait(id).await.unwrap();
    assert_eq!(ended.state, State::Compensated);
    assert_eq!(bench.effects().await, words("a:act a:undo"));
    process.stop().await;
}

#[tokio::test]
async fn a_cancellation_behind_the_pivot_comes_too_late() {
    let bench = Bench::new().await;
    let world = &bench.world;
    let definition = define::<u32>("late", 1)
        .pivot_local(l::<0>(world), |saga| Ok(*saga.input()))
        .timer("shipping", HOUR)
        .local(F::<1>(world.clone()), |saga| Ok(*saga.input()))
        .build()
        .unwrap();
    let process = bench.process(&Registry::new().with(&definition));
    let id = process.engine.begin(&definition, &7).await.unwrap();
    bench.until(id, &State::Step("shipping".to_owned())).await;
    let mut connection = bench.pool().acquire().await.unwrap();
    let cancelled = bench.sagas.cancel(&mut connection, id, "ada", "too late");
    assert!(cancelled.await.unwrap());
    // Nobody is called by it, and who comes by chance does nothing.
    bench.is_claimed_early(id).await;
    assert_eq!(bench.effects().await, words("a:act"));
    bench.hour_passes().await;
    bench.until(id, &State::Completed).await;
    assert_eq!(bench.effects().await, words("a:act b:act"));
    process.stop().await;
}

#[tokio::test]
async fn a_saga_that_takes_too_long_turns_back() {
    let bench = Bench::new().await;
    let world = &bench.world;
    let definition = define::<u32>("slow", 1)
        .timeout(Duration::from_millis(300))
        .local(l::<0>(world), |saga| Ok(*saga.input()))
        .timer("cooling_off", HOUR)
        .build()
        .unwrap();
    let (ended, _) = bench.run(&definition).await;
    assert_eq!(ended.state, State::Compensated);
    assert!(ended.reason.unwrap().contains("pivot after"));
    assert_eq!(bench.effects().await, words("a:act a:undo"));
}
