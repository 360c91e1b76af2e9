//! What people do about a saga that needs them.

use serde_json::json;
use tasuki::saga::{By, Close, Error, Filter};

use super::*;

/// A saga whose second compensation fails for good.
async fn parked(bench: &Bench) -> (Definition<u32>, SagaId) {
    bench.world.tell("c:act", [Answer::Abort]);
    bench.world.tell("b:undo", [Answer::Stuck]);
    let definition = three_remote(&bench.world);
    let (ended, view) = bench.run(&definition).await;
    assert_eq!(ended.state, State::NeedsAttention);
    assert_eq!(bench.world.log(), words("a:act b:act c:act b:undo"));
    assert_eq!(view.stuck.unwrap().0.as_deref(), Some("b"));
    assert_eq!(view.failure.unwrap().1, "c said no");
    (definition, ended.id)
}

#[tokio::test]
async fn a_compensation_that_fails_for_good_parks_the_saga_and_resume_completes_it() {
    let bench = Bench::new().await;
    let (definition, id) = parked(&bench).await;
    let process = bench.process(&Registry::new().with(&definition));
    let mut tx = bench.pool().begin().await.unwrap();
    let by = By::new("ada", "the provider is back");
    bench.sagas.resume(&mut tx, id, &by).await.unwrap();
    tx.commit().await.unwrap();
    bench.sagas.ring();
    let view = bench.until(id, &State::Compensated).await;
    // Earlier compensations have waited, and each ran once.
    assert_eq!(
        bench.world.log(),
        words("a:act b:act c:act b:undo b:undo a:undo")
    );
    let note = view.notes.first().unwrap();
    assert_eq!((note.what.as_str(), note.by.as_str()), ("resume", "ada"));
    assert_eq!(note.reason, "the provider is back");
    process.stop().await;
}

#[tokio::test]
async fn a_skipped_compensation_counts_as_done_and_the_earlier_ones_run() {
    let bench = Bench::new().await;
    let (definition, id) = parked(&bench).await;
    let process = bench.process(&Registry::new().with(&definition));
    let mut tx = bench.pool().begin().await.unwrap();
    let by = By::new("ada", "refunded by hand");
    let wrong = bench.sagas.skip(&mut tx, id, "a", None, &by).await;
    assert!(matches!(wrong, Err(Error::Refused { .. })));
    bench.sagas.skip(&mut tx, id, "b", None, &by).await.unwrap();
    tx.commit().await.unwrap();
    bench.until(id, &State::Compensated).await;
    assert_eq!(bench.world.log(), words("a:act b:act c:act b:undo a:undo"));
    process.stop().await;
}

#[tokio::test]
async fn a_closed_saga_ends_as_the_person_says() {
    let bench = Bench::new().await;
    let (_, id) = parked(&bench).await;
    let mut connection = bench.pool().acquire().await.unwrap();
    let by = By::new("ada", "all undone by hand");
    let close = bench
        .sagas
        .close(&mut connection, id, Close::Compensated, &by);
    close.await.unwrap();
    let view = bench.view(id).await;
    assert_eq!(view.state, State::Compensated);
    assert_eq!(view.notes.first().unwrap().what, "close as COMPENSATED");
    let again = bench.sagas.resume(&mut connection, id, &by).await;
    assert!(matches!(again, Err(Error::Refused { .. })), "{again:?}");
}

#[tokio::test]
async fn a_step_that_is_stuck_behind_the_pivot_is_retried_or_taken_as_done() {
    let bench = Bench::new().await;
    let world = &bench.world;
    world.tell("b:act", [Answer::Stuck]);
    let definition = tasuki::saga::define::<u32>("forward", 1)
        .pivot_local(l::<0>(world), |saga| Ok(*saga.input()))
        .remote(G::<1>(world.clone()), |saga| Ok(*saga.input()))
        .remote(G::<2>(world.clone()), |saga| {
            Ok(u32::try_from(saga.output::<G<1>>()?.len())?)
        })
        .build()
        .unwrap();
    let (ended, _) = bench.run(&definition).await;
    assert_eq!(ended.state, State::NeedsAttention);
    let process = bench.process(&Registry::new().with(&definition));
    let mut connection = bench.pool().acquire().await.unwrap();
    let by = By::new("ada", "granted by hand");
    bench
        .sagas
        .skip(&mut connection, ended.id, "b", Some(&json!("four")), &by)
        .await
        .unwrap();
    let view = bench.until(ended.id, &State::Completed).await;
    assert_eq!(view.step("c").unwrap().input.as_ref().unwrap(), 4);
    process.stop().await;
}

#[tokio::test]
async fn a_saga_is_sent_forward_again_from_a_step_and_undone_ones_get_new_keys() {
    let bench = Bench::new().await;
    bench.world.tell("c:act", [Answer::Abort]);
    bench.world.tell("a:undo", [Answer::Stuck]);
    let definition = three_remote(&bench.world);
    let (ended, _) = bench.run(&definition).await;
    let id = ended.id;
    assert_eq!(ended.state, State::NeedsAttention);
    let registry = Registry::new().with(&definition);
    let process = bench.process(&registry);
    let mut connection = bench.pool().acquire().await.unwrap();
    let by = By::new("ada", "there is stock again");
    let sagas = &bench.sagas;
    let done = sagas
        .retry_from(&mut connection, &registry, id, "a", &by)
        .await;
    assert!(matches!(done, Err(Error::Refused { .. })), "a is done");
    let gap = sagas
        .retry_from(&mut connection, &registry, id, "c", &by)
        .await;
    assert!(matches!(gap, Err(Error::Refused { .. })), "b is undone");
    sagas
        .retry_from(&mut connection, &registry, id, "b", &by)
        .await
        .unwrap();
    bench.until(id, &State::Completed).await;
    let keys = bench.world.keys();
    assert_eq!(keys.last().unwrap(), &format!("{id}:c:act.1"));
    process.stop().await;
}

#[tokio::test]
async fn sagas_are_listed_by_state_and_definition_newest_first() {
    let bench = Bench::new().await;
    let (_, stuck) = parked(&bench).await;
    let done = bench.run(&three_local(&bench.world)).await.0.id;
    let mut connection = bench.pool().acquire().await.unwrap();
    let mut list = async |filter: Filter| -> Vec<SagaId> {
        let sagas = bench.sagas.list(&mut connection, &filter).await.unwrap();
        sagas.into_iter().map(|saga| saga.id).collect()
    };
    assert_eq!(list(Filter::new()).await, [done, stuck]);
    assert_eq!(list(Filter::new().limit(1)).await, [done]);
    assert_eq!(list(Filter::new().before(done)).await, [stuck]);
    assert_eq!(list(Filter::new().state("NEEDS_ATTENTION")).await, [stuck]);
    assert_eq!(list(Filter::new().state("COMPLETED")).await, [done]);
    assert_eq!(list(Filter::new().definition("other")).await, []);
}
