//! Under which keys a saga that a person sends forward again does its steps.

use tasuki::saga::{By, define};

use super::*;

async fn retry(bench: &Bench, id: SagaId, from: &str) -> Result<(), String> {
    bench.is_written_down(id).await;
    let mut connection = bench.pool().acquire().await.unwrap();
    let by = By::new("ada", "it should be done after all");
    let sent = bench.sagas.retry_from(&mut connection, id, from, &by).await;
    sent.map_err(|error| error.to_string())
}

#[tokio::test]
async fn what_was_refused_under_one_key_is_asked_for_under_another() {
    let bench = Bench::new().await;
    bench.world.tell("c:act", [Answer::Abort]);
    bench.world.tell("b:undo", [Answer::Stuck]);
    let definition = three_remote(&bench.world);
    let (ended, _) = bench.run(&definition).await;
    let id = ended.id;
    assert_eq!(ended.state, State::NeedsAttention);
    let process = bench.process(&Registry::new().with(&definition));
    retry(&bench, id, "c").await.unwrap();
    bench.until(id, &State::Completed).await;
    let keys: Vec<String> = words("a:act b:act c:act b:undo c:act.1")
        .iter()
        .map(|key| format!("{id}:{key}"))
        .collect();
    assert_eq!(bench.world.keys(), keys);
    process.stop().await;
}

#[tokio::test]
async fn a_pivot_that_may_have_happened_keeps_its_key() {
    let bench = Bench::new().await;
    let world = &bench.world;
    world.tell("b:act", vec![Answer::Unknown; 3]);
    let definition = define::<u32>("forward", 1)
        .local(l::<0>(world), |saga| Ok(*saga.input()))
        .pivot_remote(r::<1>(world), |saga| Ok(*saga.input()))
        .build()
        .unwrap();
    let (ended, view) = bench.run(&definition).await;
    let id = ended.id;
    assert_eq!(ended.state, State::NeedsAttention);
    assert!(view.step("b").unwrap().unsure);
    let process = bench.process(&Registry::new().with(&definition));
    retry(&bench, id, "b").await.unwrap();
    bench.until(id, &State::Completed).await;
    let b = format!("{id}:b:act");
    assert_eq!(world.keys()[1..], [b.clone(), b.clone(), b.clone(), b]);
    process.stop().await;
}

#[tokio::test]
async fn a_step_of_which_nobody_knows_whether_it_is_there_is_not_begun_under_any_key() {
    let bench = Bench::new().await;
    bench.world.tell("c:act", vec![Answer::Unknown; 3]);
    bench.world.tell("c:undo", [Answer::Stuck]);
    let (ended, view) = bench.run(&three_remote(&bench.world)).await;
    assert_eq!(view.stuck.unwrap().0.as_deref(), Some("c"));
    let refused = retry(&bench, ended.id, "c").await.unwrap_err();
    let why = "nobody knows whether `c` happened";
    assert!(refused.contains(why), "{refused}");
    // The process that tried to undo it may have died before it could say so.
    let forget = "UPDATE app.sagas SET story = replace(story::text, '\"undo_tries\":1,', '')::json";
    sqlx::query(forget).execute(bench.pool()).await.unwrap();
    let view = bench.view(ended.id).await;
    assert_eq!(view.step("c").unwrap().failed_undos, 0);
    let refused = retry(&bench, ended.id, "c").await.unwrap_err();
    assert!(refused.contains(why), "{refused}");
    assert_eq!(bench.view(ended.id).await, view);
}
